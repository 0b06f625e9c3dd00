"""What neither names nor shapes of weights tell about a generator, in the words that users say."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from ...errors import CheckpointError
from ...network.architectures import End, Groups, Norm, Rectifier, Residual, Upsampling
from ...network.layers import Constant, Elu, LeakyRelu, PadMode, Relu, Triple, triple

PLAIN_PADS = ("reflect", "replicate", "zero")
ENDS: tuple[End, ...] = get_args(End)
RESIDUALS: Mapping[str, Residual] = {
    "sum": "sum",
    "activated-sum": "activated_sum",
    "none": "none",
}
UPSAMPLINGS: Mapping[str, Upsampling] = {
    "nearest": "nearest",
    "trilinear": "trilinear",
    "trilinear-corners": "trilinear_corners",
}
"""What an architecture calls that which users say in these words."""

CONCATS = ("skip-first", "deeper-first")


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to compute with a checkpoint's weights.

    padding, block_padding, down_padding, up_padding, blur_padding: around the outer convolutions,
    those of the residual blocks, the strided ones, those behind sampling, and the anti-aliasing
    filters: reflect, replicate, zero or constant:VALUE.
    norm: instance, group:N, none, or stored (by statistics of the training).
    activation, block_activation, up_activation: of the encoder, the blocks and the decoder: relu,
    leaky:SLOPE or elu. residual: how a block ends. end: what follows the last convolution.
    epsilon: of the norms. adds_input: whether the patch is added to what the network makes of it.
    upsampling: of a decoder that samples. concat: order of a U-Net's joints.
    stride: of each down-sampling. dilation: of the blocks' convolutions.
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
        """Fields in which this reading is another one, each with what it says."""
        return {
            item.name: str(getattr(self, item.name))
            for item in fields(self)
            if getattr(self, item.name) != getattr(usual, item.name)
        }


U_NET = Reading(padding="zero", activation="leaky:0.2")
"""As Isola et al. 2017 have it."""


def pad_mode(word: str) -> PadMode:
    """A padding; raises CheckpointError for a word that is none."""
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
    """An activation; raises CheckpointError for a word that is none."""
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
    """A norm; raises CheckpointError for a word that is none.

    affine: whether the checkpoint holds a scale and shift of each.
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
    """D, H and W of a stride."""
    return triple(map(int, word.split(",")))


def with_said(
    reading: Reading, said: Mapping[str, str | float], *, up_is_outer: bool = False
) -> Reading:
    """A reading with what a user said; padding and activation are said of all parts.

    up_is_outer: whether pad layers behind sampling are of the outer kind.
    """
    changes: dict[str, Any] = dict(said)
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
        raise CheckpointError(f"{word!r} holds no number behind its colon.") from None


def _no_such(setting: str, word: str, known: str) -> CheckpointError:
    return CheckpointError(f"Setting {setting} must be {known}, not {word!r}.")
