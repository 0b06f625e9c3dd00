"""What an importer was told, what it assumed, and what only a person can answer."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from ...errors import CheckpointError

Direction: TypeAlias = Literal["AtoB", "BtoA"]
NormStatistics: TypeAlias = Literal["patch", "stored"]


BY_ONNX = "export the network as ONNX and import that"
"""What to do with a network whose weights do not tell all of it."""


@dataclass(frozen=True, slots=True)
class NetworkChoices:
    """What the user says about a checkpoint; None leaves it to the file.

    code: name of the training code. unproven: import on assumptions, where neither code nor a
    reference says what the network computes. direction, generator: which network of several.
    All others (norm, epsilon, activation, residual, end, concat, upsampling too) are about what the
    network computes, in the words of `Reading`; padding without block_padding is said of both.
    norm_statistics: each patch's own, or those stored in training.
    """

    code: str | None = None
    unproven: bool = False
    padding: str | None = None
    block_padding: str | None = None
    norm: str | None = None
    norm_statistics: NormStatistics | None = None
    activation: str | None = None
    residual: str | None = None
    end: str | None = None
    epsilon: float | None = None
    concat: str | None = None
    upsampling: str | None = None
    direction: Direction | None = None
    generator: str | None = None

    def said(self) -> dict[str, str | float]:
        """What was said of the network's own computation, by field."""
        of_file = {"code", "unproven", "direction", "generator"}
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value
            for name, value in named.items()
            if value is not None and name not in of_file
        }


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact about the generator, and what it was concluded from.

    subject: which property. value: what it is, in words. reason: what that was concluded from.
    """

    subject: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """A choice that the file leaves open although a wrong guess still makes plausible images.

    field: of NetworkChoices, or of CardDraft. answers: best guess first. why: what the
    file does not tell.
    """

    field: str
    answers: tuple[str, ...]
    why: str


class Evidence:
    """Collects findings while a layout is matched, and answers its questions from the choices."""

    def __init__(self, choices: NetworkChoices) -> None:
        self.choices = choices
        self.told: list[Fact] = []
        self.defaulted: list[Fact] = []
        self.undecided: list[Question] = []

    def tell(self, subject: str, value: object, reason: str) -> None:
        """Record what the file, the training code, a reference or the user says."""
        self.told.append(Fact(subject, str(value), reason))

    def assume(self, subject: str, value: object, reason: str) -> None:
        """Record what nothing says and what this family of generators usually does."""
        self.defaulted.append(Fact(subject, str(value), reason))

    def ask(self, name: str, answers: Iterable[str], why: str) -> str:
        """The user's choice, or the first answer under a question that stays open."""
        chosen = getattr(self.choices, name)
        if chosen is not None:
            self.tell(subject(name), chosen, f"said with {setting(name)}")
            return str(chosen)
        question = Question(name, tuple(answers), why)
        self.undecided.append(question)
        return question.answers[0]


def subject(name: str) -> str:
    """A field of NetworkChoices in words."""
    return name.replace("_", " ")


def setting(name: str) -> str:
    """A field of NetworkChoices as a setting of the user's, in messages."""
    return f"setting {name.replace('_', '-')}"


def meaningless(name: str) -> CheckpointError:
    """The error of a choice that this generator does not leave open."""
    return CheckpointError(
        f"{setting(name).capitalize()} has no meaning for this generator; leave it out."
    )
