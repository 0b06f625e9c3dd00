"""Readings of a network, the user's choices, and the evidence collected during an import.

A `Reading` states what neither names nor shapes of weights determine, as the architecture does;
`parsed` and `word` convert its fields from and to the users' words. `Evidence` records known facts,
assumptions and open questions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from ...errors import CheckpointError
from ...network.architectures import End, Groups, Norm, Rectifier, Residual, Upsampling
from ...network.layers import Constant, Elu, LeakyRelu, PadMode, Relu, Triple

SkipOrder: TypeAlias = Literal["skip-first", "deeper-first"]
NormStatistics: TypeAlias = Literal["patch", "stored"]
FieldValue: TypeAlias = (
    PadMode
    | Norm
    | Rectifier
    | Residual
    | End
    | Upsampling
    | SkipOrder
    | NormStatistics
    | Triple
    | float
)
"""Value of a field of a reading, or of a choice about it."""

PLAIN_PADS: tuple[PadMode, ...] = ("reflect", "replicate", "zero")
ENDS: tuple[End, ...] = get_args(End)
RESIDUALS: tuple[Residual, ...] = get_args(Residual)
SAMPLINGS: tuple[Upsampling, ...] = get_args(Upsampling)[1:]
"""Up-samplings of a decoder that samples."""

CONCATS: tuple[SkipOrder, ...] = get_args(SkipOrder)
_STATISTICS: tuple[NormStatistics, ...] = get_args(NormStatistics)
_RELU = Relu()


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to compute with a checkpoint's weights.

    padding, block_padding, down_padding, up_padding, blur_padding: of the outer convolutions, those
    of the residual blocks, the strided ones, those after up-sampling, and the anti-aliasing
    filters. norm: whether it has scale and shift is left to the tensors; `stored` has statistics of
    the training. activation, block_activation, up_activation: of the encoder, the blocks and the
    decoder. residual: how a block ends. end: activation after the last convolution. epsilon: of the
    norms. adds_input: whether the patch is added to the network's output. upsampling: of a decoder
    that samples. concat: order of a U-Net's concatenations. stride: of each down-sampling.
    dilation: of the blocks' convolutions.
    """

    padding: PadMode = "reflect"
    block_padding: PadMode = "reflect"
    down_padding: PadMode = "zero"
    up_padding: PadMode = "reflect"
    blur_padding: PadMode = "reflect"
    norm: Norm = "instance"
    activation: Rectifier = _RELU
    block_activation: Rectifier = _RELU
    up_activation: Rectifier = _RELU
    residual: Residual = "sum"
    end: End = "tanh"
    epsilon: float = 1e-5
    upsampling: Upsampling = "nearest"
    concat: SkipOrder = "skip-first"
    stride: Triple = (2, 2, 2)
    dilation: int = 1
    adds_input: bool = False

    def differences(self, usual: "Reading") -> list[str]:
        """Return the fields that differ from another reading."""
        return [
            item.name
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        ]


U_NET = Reading(padding="zero", activation=LeakyRelu(0.2))
"""Reading of the U-Net of Isola et al. 2017."""


def word(value: FieldValue) -> str:
    """Return a field's value in the users' words."""
    match value:
        case Constant(number):
            return f"constant:{number:g}"
        case Relu():
            return "relu"
        case LeakyRelu(slope):
            return f"leaky:{slope:g}"
        case Elu():
            return "elu"
        case Groups(groups):
            return f"group:{groups}"
        case float():
            return f"{value:g}"
        case (d, h, w):
            return f"{d},{h},{w}"
        case _:
            return str(value).replace("_", "-")


def parsed(name: str, text: str | float) -> FieldValue:
    """Return the value of a field of NetworkChoices; raises CheckpointError.

    text: in the users' words; a number for epsilon.
    """
    return text if isinstance(text, float | int) else _PARSERS[name](text)


def _pad_mode(text: str) -> PadMode:
    match text.partition(":"):
        case ("reflect" | "replicate" | "zero" as mode, "", ""):
            return mode
        case ("constant", ":", value):
            return Constant(_number(text, value))
        case _:
            raise _no_such("padding", text, f"{', '.join(map(word, PLAIN_PADS))} or constant:VALUE")


def _rectifier(text: str) -> Rectifier:
    match text.partition(":"):
        case ("relu", "", ""):
            return Relu()
        case ("leaky", ":", slope):
            return LeakyRelu(_number(text, slope))
        case ("elu", "", ""):
            return Elu()
        case _:
            raise _no_such("activation", text, "relu, leaky:SLOPE or elu")


def _norm(text: str) -> Norm:
    match text.partition(":"):
        case ("instance" | "stored" | "none" as norm, "", ""):
            return norm
        case ("group", ":", groups) if groups.isdecimal() and int(groups) > 0:
            return Groups(int(groups))
        case _:
            raise _no_such("norm", text, "instance, group:N or none")


def _term(name: str, terms: tuple[FieldValue, ...]) -> Callable[[str], FieldValue]:
    """Return the parser of a setting that is one of some terms."""

    def parse(text: str) -> FieldValue:
        for term in terms:
            if word(term) == text:
                return term
        raise _no_such(name, text, f"one of {', '.join(map(word, terms))}")

    return parse


_PARSERS: Mapping[str, Callable[[str], FieldValue]] = {
    "padding": _pad_mode,
    "block_padding": _pad_mode,
    "norm": _norm,
    "norm_statistics": _term("norm-statistics", _STATISTICS),
    "activation": _rectifier,
    "residual": _term("residual", RESIDUALS),
    "end": _term("end", ENDS),
    "concat": _term("concat", CONCATS),
    "upsampling": _term("upsampling", SAMPLINGS),
}
"""Parsers of the users' words, by field of NetworkChoices."""


def with_choices(
    reading: Reading, stated: Mapping[str, FieldValue], *, up_is_outer: bool
) -> Reading:
    """Return a reading with the user's choices; padding and activation apply to all parts.

    up_is_outer: whether the padding applies after up-sampling too.
    """
    changes: dict[str, Any] = dict(stated)
    if statistics := changes.pop("norm_statistics", None):
        changes["norm"] = "stored" if statistics == "stored" else "instance"
    if "padding" in changes:
        changes.setdefault("block_padding", changes["padding"])
        if up_is_outer:
            changes["up_padding"] = changes["padding"]
    if "activation" in changes:
        changes |= dict.fromkeys(("block_activation", "up_activation"), changes["activation"])
    return replace(reading, **changes)


def _number(word: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CheckpointError(f"{word!r} has no number after its colon.") from None


def _no_such(setting: str, word: str, known: str) -> CheckpointError:
    return CheckpointError(f"Setting {setting} must be {known}, not {word!r}.")


Direction: TypeAlias = Literal["AtoB", "BtoA"]


BY_EXPORT = (
    "export the network from its training code in four lines (docs/torch-export.md) and import that"
)
"""Advice for a network that its weights do not determine."""


@dataclass(frozen=True, slots=True)
class NetworkChoices:
    """The user's choices for a checkpoint; None leaves it to the file.

    code: name of the training code. unproven: import on assumptions if neither code nor reference
    determines the computation. direction, generator: which network of several. All others (norm,
    epsilon, activation, residual, end, concat, upsampling too) are fields of `Reading`; padding
    without block_padding applies to both. norm_statistics: those of each patch, or those stored in
    training.
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

    def stated(self) -> dict[str, FieldValue]:
        """Choices about the network's computation, by field; raises CheckpointError."""
        of_file = {"code", "unproven", "direction", "generator"}
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: parsed(name, value)
            for name, value in named.items()
            if value is not None and name not in of_file
        }


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the generator.

    subject: the property. value: in words. reason: source of the value.
    """

    subject: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Question:
    """A choice that the file leaves open, although a wrong guess still gives plausible images.

    field: of NetworkChoices, or of CardDraft. answers: best guess first. why: what the file does
    not determine.
    """

    field: str
    answers: tuple[str, ...]
    why: str


class Evidence:
    """Collects facts, assumptions and open questions, and answers questions from the choices."""

    def __init__(self, choices: NetworkChoices) -> None:
        self.choices = choices
        self.facts: list[Fact] = []
        self.assumptions: list[Fact] = []
        self.undecided: list[Question] = []

    def record(self, subject: str, value: object, reason: str) -> None:
        """Record a fact from the file, the training code, a reference or the user."""
        self.facts.append(Fact(subject, str(value), reason))

    def assume(self, subject: str, value: object, reason: str) -> None:
        """Record an assumption: what this family of generators usually does."""
        self.assumptions.append(Fact(subject, str(value), reason))

    def ask(self, name: str, answers: Iterable[str], why: str) -> str:
        """Return the user's choice, or record an open question and return its first answer."""
        chosen = getattr(self.choices, name)
        if chosen is not None:
            self.record(subject(name), chosen, f"set with {setting(name)}")
            return str(chosen)
        question = Question(name, tuple(answers), why)
        self.undecided.append(question)
        return question.answers[0]


def subject(name: str) -> str:
    """Format a field of NetworkChoices for tables."""
    return name.replace("_", " ")


def setting(name: str) -> str:
    """Format a field of NetworkChoices as a setting, for messages."""
    return f"setting {name.replace('_', '-')}"


def meaningless(name: str) -> CheckpointError:
    """Return the error for a choice that does not apply to this generator."""
    return CheckpointError(
        f"{setting(name).capitalize()} does not apply to this generator; omit it."
    )
