"""Readings of a network, the user's choices, and the evidence collected during an import.

A `Reading` states what neither names nor shapes of weights determine, in the words that users use.
`Evidence` records known facts, assumptions and open questions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from ...errors import CheckpointError
from ...network.architectures import End, Groups, Norm, Rectifier, Residual, Upsampling
from ...network.layers import Constant, Elu, LeakyRelu, PadMode, Relu, Triple, triple

PLAIN_PADS = ("reflect", "replicate", "zero")
ENDS: tuple[End, ...] = get_args(End)
RESIDUALS: Mapping[str, Residual] = {"sum": "sum", "activated-sum": "activated_sum", "none": "none"}
UPSAMPLINGS: Mapping[str, Upsampling] = {
    "nearest": "nearest",
    "trilinear": "trilinear",
    "trilinear-corners": "trilinear_corners",
    "trilinear-zeros": "trilinear_zeros",
}
"""Terms of the architecture for the users' terms."""

CONCATS = ("skip-first", "deeper-first")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to compute with a checkpoint's weights.

    padding, block_padding, down_padding, up_padding, blur_padding: of the outer convolutions, those
    of the residual blocks, the strided ones, those after up-sampling, and the anti-aliasing
    filters: reflect, replicate, zero or constant:VALUE. norm: instance, group:N, none, or stored
    (statistics of the training). activation, block_activation, up_activation: of the encoder, the
    blocks and the decoder: relu, leaky:SLOPE or elu. residual: how a block ends. end: activation
    after the last convolution. epsilon: of the norms. adds_input: whether the patch is added to the
    network's output. upsampling: of a decoder that samples. concat: order of a U-Net's
    concatenations. stride: of each down-sampling. dilation: of the blocks' convolutions.
    """

    padding: str = "reflect"
    block_padding: str = "reflect"
    down_padding: str = "zero"
    up_padding: str = "reflect"
    blur_padding: str = "reflect"
    norm: str = "instance"
    activation: str = "relu"
    block_activation: str = "relu"
    up_activation: str = "relu"
    residual: str = "sum"
    end: End = "tanh"
    epsilon: float = 1e-5
    upsampling: str = "nearest"
    concat: str = "skip-first"
    stride: str = "2,2,2"
    dilation: int = 1
    adds_input: bool = False

    def differences(self, usual: "Reading") -> dict[str, str]:
        """Return the fields that differ from another reading, with this reading's values."""
        return {
            item.name: str(getattr(self, item.name))
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        }


U_NET = Reading(padding="zero", activation="leaky:0.2")
"""Reading of the U-Net of Isola et al. 2017."""


def pad_mode(word: str) -> PadMode:
    """Parse a padding; raises CheckpointError."""
    match word.partition(":"):
        case ("reflect", "", ""):
            return "reflect"
        case ("replicate", "", ""):
            return "replicate"
        case ("zero", "", ""):
            return "zero"
        case ("constant", ":", value):
            return Constant(_number(word, value))
        case _:
            raise _no_such("padding", word, f"{', '.join(PLAIN_PADS)} or constant:VALUE")


def rectifier(word: str) -> Rectifier:
    """Parse an activation; raises CheckpointError."""
    match word.partition(":"):
        case ("relu", "", ""):
            return Relu()
        case ("leaky", ":", slope):
            return LeakyRelu(_number(word, slope))
        case ("elu", "", ""):
            return Elu()
        case _:
            raise _no_such("activation", word, "relu, leaky:SLOPE or elu")


def norm_kind(word: str, *, affine: bool) -> Norm:
    """Parse a norm; raises CheckpointError.

    affine: whether the checkpoint holds scales and shifts.
    """
    match word.partition(":"):
        case ("instance", "", ""):
            return "instance_affine" if affine else "instance"
        case ("stored", "", ""):
            return "stored"
        case ("none", "", ""):
            return "none"
        case ("group", ":", groups) if groups.isdecimal() and int(groups) > 0:
            return Groups(int(groups), affine)
        case _:
            raise _no_such("norm", word, "instance, group:N or none")


def stride_of(word: str) -> Triple:
    """Parse a stride along D, H and W."""
    return triple(map(int, word.split(",")))


def with_choices(
    reading: Reading, stated: Mapping[str, str | float], *, up_is_outer: bool
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
NormStatistics: TypeAlias = Literal["patch", "stored"]


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

    def stated(self) -> dict[str, str | float]:
        """Choices about the network's computation, by field."""
        of_file = {"code", "unproven", "direction", "generator"}
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value
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
