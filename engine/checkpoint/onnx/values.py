"""What stands for a value of an ONNX graph while it is written down as layers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...network.layers import FloatArray, Triple
from .tensors import Array

CHANNELS = 1
IN_ORDER = (0, 1, 2, 3, 4)
CHANNELS_LAST = (0, 2, 3, 4, 1)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """What a node of the layer graph makes.

    node: its name. batch, channels, extents: of it. axes: which of [N, C, D, H, W] each axis is, as
    the file's operators see it.
    """

    node: str
    batch: int
    channels: int
    extents: Triple
    axes: tuple[int, ...] = IN_ORDER

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes as the file's operators see them."""
        whole = (self.batch, self.channels, *self.extents)
        return tuple(whole[axis] for axis in self.axes)


@dataclass(frozen=True, slots=True)
class ReshapedView:
    """The voxels of a tensor in their order under another shape.

    of: that tensor. shape: the other one.
    """

    of: GraphTensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MovedView:
    """A view whose axes were moved.

    of: the tensor that is seen. shape: as it was seen before. order: of the axes.
    """

    of: GraphTensor
    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of each group of channels.

    of: over which it is taken. groups: of neighbouring channels; as many as channels for each.
    """

    of: "GraphTensor | ReshapedView"
    groups: int


@dataclass(frozen=True, slots=True)
class Centred:
    """A tensor less its means. mean: those. squared: whether that was squared."""

    mean: Mean
    squared: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of each group, or what is made of it.

    mean: of the groups. form: what of it. epsilon: added to the variance. factor: of each channel,
    with which the inverse deviation was multiplied.
    """

    mean: Mean
    form: Literal["variance", "deviation", "inverse"] = "variance"
    epsilon: float = 0.0
    factor: "PerChannel | None" = None


@dataclass(frozen=True, slots=True)
class Normal:
    """A part of x * inverse + (shift - mean * inverse), in which TensorFlow normalises.

    spread: of x. part: x times the inverse deviation, the mean times it, or the shift less that.
    shift: of each channel.
    """

    spread: Spread
    part: Literal["tensor", "mean", "shift"]
    shift: "PerChannel | None" = None


@dataclass(frozen=True, slots=True)
class Above:
    """Where a tensor is above a number. of: that tensor. limit: that number."""

    of: GraphTensor
    limit: float


@dataclass(frozen=True, slots=True, eq=False)
class PerChannel:
    """A number for each channel. values: [C]."""

    values: FloatArray


GraphValue: TypeAlias = (
    Array | GraphTensor | ReshapedView | MovedView | Mean | Centred | Spread | Normal | Above
)
"""An array is what is known before any patch is."""
