"""What an importer was told, what it assumed, and what only a person can answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from ...errors import CheckpointError
from ...network.architectures import Spec
from ...network.graph import FloatArray
from ..read.checkpoint import Checkpoint

Direction: TypeAlias = Literal["AtoB", "BtoA"]
NormStatistics: TypeAlias = Literal["patch", "stored"]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user says about a checkpoint; None leaves it to the file.

    padding: around the stride-1 convolutions. norm_statistics: each patch's own, or those stored
    in training. concat: order of a U-Net's joints. upsampling: kind of a sampling decoder.
    direction: which generator of a pair. generator: name of the one to take.
    tanh: whether the generator ends in one.
    """

    padding: Literal["reflect", "replicate", "zero"] | None = None
    norm_statistics: NormStatistics | None = None
    concat: Literal["skip-first", "deeper-first"] | None = None
    upsampling: Literal["nearest", "trilinear", "trilinear-corners"] | None = None
    direction: Direction | None = None
    generator: str | None = None
    tanh: bool | None = None


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

    field: of Choices, or of the card's purpose. answers: best guess first. why: what the file does
    not tell.
    """

    field: str
    answers: tuple[str, ...]
    why: str

    @property
    def subject(self) -> str:
        """Name under which the answer is told."""
        return subject(self.field)


@dataclass(frozen=True, slots=True)
class Recognised:
    """A checkpoint's generator; while `undecided` is not empty its spec rests on guesses.

    weights: float32, under the names that `architectures.build` gives its layers. layout: the key
    naming that was matched, in words. told: facts that the file or the user tells. defaulted: those
    that were assumed. choices: what the user decided.
    """

    spec: Spec
    weights: Mapping[str, FloatArray] = field(repr=False)
    layout: str
    told: tuple[Fact, ...]
    defaulted: tuple[Fact, ...]
    undecided: tuple[Question, ...]
    checkpoint: Checkpoint = field(repr=False)
    choices: Choices


class Evidence:
    """Collects findings while a layout is matched, and answers its questions from the choices."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.told: list[Fact] = []
        self.defaulted: list[Fact] = []
        self.undecided: list[Question] = []
        self._asked = {"direction", "generator"}

    def tell(self, subject: str, value: object, reason: str) -> None:
        """Record what the file, or the options file beside it, says."""
        self.told.append(Fact(subject, str(value), reason))

    def assume(self, subject: str, value: object, reason: str) -> None:
        """Record what no file says and what this family of generators usually does."""
        self.defaulted.append(Fact(subject, str(value), reason))

    def choose(self, name: str) -> str | bool | None:
        """The user's choice on a subject that this generator has, recorded as told."""
        self._asked.add(name)
        chosen = getattr(self.choices, name)
        if chosen is not None:
            self.tell(subject(name), chosen, f"said with {setting(name)}")
        return chosen

    def ask(self, name: str, answers: Iterable[str], why: str) -> str:
        """The user's choice, or the first answer under a question that stays open."""
        chosen = self.choose(name)
        if chosen is not None:
            return str(chosen)
        question = Question(name, tuple(answers), why)
        self.undecided.append(question)
        return question.answers[0]

    def refuse_unasked(self) -> None:
        """Raise CheckpointError for a choice that this generator does not leave open."""
        for item in fields(self.choices):
            if getattr(self.choices, item.name) is not None and item.name not in self._asked:
                raise CheckpointError(
                    f"{setting(item.name).capitalize()} has no meaning for this generator; "
                    "leave it out."
                )


def subject(name: str) -> str:
    """A field of Choices in words."""
    return name.replace("_", " ")


def setting(name: str) -> str:
    """A field of Choices as a setting of the user's, in messages."""
    return f"setting {name.replace('_', '-')}"
