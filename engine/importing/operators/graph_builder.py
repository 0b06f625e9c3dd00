"""The layer graph under construction: nodes, weights, and values of the ONNX file's names."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

import numpy as np

from ...errors import CheckpointError, PatchShapeError
from ...network.graph import (
    MOST_NODES,
    Node,
    TensorShape,
    node_out_of_bounds,
    shape_made,
    times,
)
from ...network.graph_analysis import node_ranges
from ...network.layers import (
    ChannelAffine,
    Channels,
    Concat,
    Conv3d,
    Crop,
    FloatArray,
    Layer,
    Triple,
)
from .folding import held
from .operator_graph import Array, ConstantInputs, Operator, OperatorGraph

CHANNELS = 1
IN_ORDER = (0, 1, 2, 3, 4)
CHANNELS_LAST = (0, 2, 3, 4, 1)
SLICES_FIRST = (0, 2, 1, 3, 4)
AS_SLICES = (2, 1, 3, 4)
"""Axes of a tensor whose slices are the batch, as 2-D layers of a 3-D network read it."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """Output of a node of the layer graph.

    node: its name. batch, channels, extents: of the tensor. axes: index in [N, C, D, H, W] of each
    axis, in the order that the file's operators use.
    """

    node: str
    batch: int
    channels: int
    extents: Triple
    axes: tuple[int, ...] = IN_ORDER

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the axis order that the file's operators use."""
        whole = (self.batch, self.channels, *self.extents)
        return tuple(whole[axis] for axis in self.axes)


@dataclass(frozen=True, slots=True)
class ReshapedView:
    """A tensor under another shape, with its voxels in the same order.

    of: the tensor. shape: the other shape.
    """

    of: GraphTensor
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MovedView:
    """A reshaped view with permuted axes.

    of: the tensor. shape: of the view before the permutation. order: of the axes.
    """

    of: GraphTensor
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def moved_shape(self) -> tuple[int, ...]:
        """Shape after the permutation."""
        return tuple(self.shape[axis] for axis in self.order)


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean of each group of channels.

    of: the tensor. groups: number of groups of adjacent channels; one per channel for instance
    norm.
    """

    of: "GraphTensor | ReshapedView"
    groups: int


@dataclass(frozen=True, slots=True)
class Centred:
    """A tensor minus its means. mean: the means. squared: whether the difference was squared."""

    mean: Mean
    squared: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of each group, its root, or the inverse of that.

    mean: of the groups. form: which of the three. epsilon: added to the variance. factor: per
    channel, multiplied with the inverse deviation.
    """

    mean: Mean
    form: Literal["variance", "deviation", "inverse"] = "variance"
    epsilon: float = 0.0
    factor: "PerChannel | None" = None


@dataclass(frozen=True, slots=True)
class Normal:
    """A part of x * inverse + (shift - mean * inverse), TensorFlow's form of a norm.

    spread: of x. part: x * inverse, mean * inverse, or shift - mean * inverse. shift: per channel.
    """

    spread: Spread
    part: Literal["tensor", "mean", "shift"]
    shift: "PerChannel | None" = None


@dataclass(frozen=True, slots=True)
class Above:
    """Mask of the voxels above a number. of: the tensor. limit: the number."""

    of: GraphTensor
    limit: float


@dataclass(frozen=True, slots=True)
class Divisor:
    """A tensor by which others are divided, as a square root or a norm.

    of: what is inverted. low: number that `of` does not fall below. is_root: whether the divisor is
    the root of `of`. norm_of: node whose channels it is the norm of; empty if it is none.
    """

    of: GraphTensor
    low: float
    is_root: bool = False
    norm_of: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PerChannel:
    """A number per channel. values: [C]."""

    values: FloatArray


GraphValue: TypeAlias = (
    Array | GraphTensor | ReshapedView | MovedView | Mean | Centred | Spread | Normal | Above
)
"""Value of a name in the file; arrays do not depend on the patch."""


_LARGEST_SUM = 64 << 20
"""Limit in bytes of all folded constants, in addition to a multiple of the file's own."""


class Builder:
    """Collects nodes and weights; `values` maps the file's names to values.

    `missing`: outputs that are not supported, such as the indices of MaxPool, by name. `gates`:
    tensors of one channel, by the node that repeats the channel. `divisors`: roots and norms, by
    node. `makers`: operators by the names of their outputs.
    """

    def __init__(self, file: OperatorGraph, entering: GraphTensor) -> None:
        self.opset = file.opset
        self.kinds = file.kinds
        self.nodes: list[Node] = []
        self.weights: dict[str, FloatArray] = {}
        self.values: dict[str, GraphValue] = {file.input: entering, **file.tensors}
        self.missing: dict[str, Operator] = {}
        self.gates: dict[str, GraphTensor] = {}
        self.divisors: dict[str, Divisor] = {}
        self.makers: dict[str, Operator] = {}
        self.is_half = file.is_half
        self.halves = file.halves
        self._left = _LARGEST_SUM + 8 * sum(array.nbytes for array in file.tensors.values())

    def spend(self, operator: Operator, output: Array) -> None:
        """Raise CheckpointError if the folded constants take too much memory."""
        self._left -= held(output) * output.itemsize
        if self._left < 0:
            raise operator.refusal("creates more numbers than any generator needs")

    def value(self, operator: Operator, at: int) -> GraphValue | None:
        """Return an input; None if the operator omits it."""
        if at >= len(operator.inputs) or not operator.inputs[at]:
            return None
        name = operator.inputs[at]
        if name in self.missing:
            raise self.missing[name].refusal("has a second output, which is not supported")
        return self.values[name]

    def tensor(self, operator: Operator, at: int = 0, *, in_order: bool = False) -> GraphTensor:
        """Return an input that depends on the patch; in_order: require [N, C, D, H, W]."""
        value = self.value(operator, at)
        if not isinstance(value, GraphTensor):
            if value is None:
                raise operator.refusal(f"lacks its input {at + 1}")
            if not isinstance(value, np.ndarray):
                raise misplaced(self, operator)
            raise operator.refusal("works on numbers that do not depend on the patch")
        if in_order and value.axes != IN_ORDER:
            raise operator.refusal("works on axes in an order that is not supported")
        return value

    def array(self, operator: Operator, at: int) -> Array | None:
        """Return a constant input; None if the operator omits it."""
        value = self.value(operator, at)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise operator.refusal("takes a value from the patch that must be constant")

    def constants(self, operator: Operator) -> ConstantInputs:
        """Return the inputs after the first, which must be constant or left out."""
        others = (self.array(operator, at) for at in range(1, len(operator.inputs)))
        return ConstantInputs(operator, (None, *others))

    def weight(self, operator: Operator, at: int, shape: tuple[int, ...] | None = None) -> Array:
        """Return a constant float32 input that must not be omitted; shape: required shape."""
        array = self.array(operator, at)
        if array is None or array.dtype != np.float32 or (shape and array.shape != shape):
            raise operator.refusal("has weights that are missing or of another shape")
        return array

    def scale_and_shift(self, operator: Operator, count: int) -> tuple[Array, Array]:
        """Return the scale and the shift of a norm, ones and zeros for one that is omitted."""
        scale, shift = (
            np.full(count, usual, np.float32)
            if self.value(operator, at) is None
            else self.weight(operator, at, (count,))
            for at, usual in ((1, 1), (2, 0))
        )
        return scale, shift

    def keep(self, role: str, array: Array) -> str:
        """Store a weight of the next node; return its name."""
        name = f"{len(self.nodes)}.{role}"
        self.weights[name] = np.ascontiguousarray(array, np.float32)
        return name

    def add(self, operator: Operator, layer: Layer, *inputs: GraphTensor) -> GraphTensor:
        """Add a node with a layer; its output has the axes of the first input."""
        if len(self.nodes) >= MOST_NODES:
            raise operator.refusal("creates more layers than any generator has")
        name = str(len(self.nodes))
        shapes = [TensorShape(one.channels, one.extents) for one in inputs]
        try:
            shape = shape_made(name, layer, shapes)
        except PatchShapeError as error:
            reason = str(error).rstrip(".").removeprefix(f"Layer {name} ")
            raise operator.refusal(f"does not fit: it {reason}") from error
        node = Node(name, layer, tuple(one.node for one in inputs))
        for field, bounds in node_out_of_bounds(node):
            raise operator.refusal(f"makes a layer whose {field.rpartition('.')[2]} {bounds}")
        self.nodes.append(node)
        first = inputs[0]
        return GraphTensor(name, first.batch, shape.channels, shape.extents, first.axes)

    def affine(
        self, operator: Operator, source: GraphTensor, scale: FloatArray, shift: FloatArray
    ) -> GraphTensor:
        """Add scale * x + shift per channel; return the tensor itself for the identity."""
        if (scale == 1).all() and (shift == 0).all():
            return source
        names = self.keep("scale", scale), self.keep("shift", shift)
        return self.add(operator, ChannelAffine(source.channels, *names), source)

    def uniform(
        self, operator: Operator, source: GraphTensor, scale: float, shift: float
    ) -> GraphTensor:
        """Add scale * x + shift with the same numbers for all channels."""
        both = (np.full(source.channels, number, np.float32) for number in (scale, shift))
        return self.affine(operator, source, *both)

    def filled(
        self, operator: Operator, like: GraphTensor, count: int, value: float
    ) -> GraphTensor | None:
        """Add channels of one number, with the extents of another tensor; None if count is 0."""
        output: GraphTensor | None = None
        left = count
        while left:
            some = self.channels(operator, like, 0, min(left, like.channels))
            part = self.uniform(operator, some, 0.0, value)
            output = part if output is None else self.add(operator, Concat(), output, part)
            left -= some.channels
        return output

    def repeated(self, operator: Operator, source: GraphTensor, channels: int) -> GraphTensor:
        """Repeat the single channel of a tensor, by a convolution with ones."""
        if source.channels == channels:
            return source
        if source.channels != 1 or channels < 1 or CHANNELS not in source.axes:
            raise operator.refusal("repeats a tensor in a way that is not supported")
        weight = self.keep("weight", np.ones((channels, 1, 1, 1, 1), np.float32))
        output = self.add(operator, Conv3d(1, channels, (1, 1, 1), weight), source)
        self.gates[output.node] = source
        return output

    def channels(
        self, operator: Operator, source: GraphTensor, first: int, count: int
    ) -> GraphTensor:
        """Add the channels from `first` on; return the tensor itself if they are all of it."""
        if count < 1:
            raise operator.refusal("leaves no channel")
        if (first, count) == (0, source.channels):
            return source
        return self.add(operator, Channels(first, count), source)

    def cropped(self, operator: Operator, source: GraphTensor, cut: list[int]) -> GraphTensor:
        """Add a crop; return the tensor itself if nothing is cut.

        cut: voxels before along D, H and W, then those after.
        """
        layer = Crop((cut[0], cut[1], cut[2]), (cut[3], cut[4], cut[5]))
        return self.add(operator, layer, source) if any(cut) else source

    def lowest(self, tensor: GraphTensor) -> float:
        """Return a number below which no value of a tensor is, whatever the patch."""
        low, _ = node_ranges(self.nodes, self.weights).get(tensor.node, (-inf, inf))
        return low

    def per_channel(self, operator: Operator, array: Array, tensor: GraphTensor) -> FloatArray:
        """Return a constant operand of a tensor as [C].

        Raises CheckpointError if it differs from voxel to voxel.
        """
        if array.ndim > len(tensor.axes):
            raise operator.refusal("joins a tensor with numbers of more axes")
        array = array.reshape((1,) * (len(tensor.axes) - array.ndim) + array.shape)
        extents = zip(array.shape, tensor.shape, tensor.axes, strict=True)
        if any(extent not in (1, own) for extent, own, _ in extents):
            raise operator.refusal(
                f"joins a tensor of {times(tensor.shape)} with numbers of {times(array.shape)}"
            )
        vector = array[tuple(slice(None if axis == CHANNELS else 1) for axis in tensor.axes)]
        if vector.size < array.size and not (array == vector).all():
            raise operator.refusal("joins a tensor with numbers that differ from voxel to voxel")
        return np.broadcast_to(vector.reshape(-1), tensor.channels).astype(np.float32)


def check_alike(operator: Operator, first: GraphTensor, second: GraphTensor) -> None:
    """Raise CheckpointError unless two tensors have the same axis order."""
    if first.axes != second.axes:
        raise operator.refusal("joins tensors whose axes are in different orders")


def misplaced(builder: Builder, operator: Operator) -> CheckpointError:
    """Return an error about an operator that takes a part of a norm, or a view, for a tensor."""
    for at, name in enumerate(operator.inputs):
        match builder.value(operator, at):
            case None:
                return operator.refusal(f"lacks its input {at + 1}")
            case Mean():
                return operator.refusal(
                    f"works on a mean, as squeeze and excitation does; {WHOLE_PATCH}"
                )
            case Centred() | Spread() | Normal():
                return operator.refusal(
                    "works on a part of a norm that is not written as (x - mean) / "
                    "sqrt(variance + epsilon), which is not supported"
                )
            case ReshapedView(shape=shape) | MovedView(moved_shape=shape):
                return builder.makers[name].refusal(
                    f"makes a tensor of {times(shape)} that an operator {operator.kind} reads; "
                    "other shapes than [N, C, D, H, W] are supported in norms of groups, in "
                    "sub-pixel shuffling and for slices as a batch"
                )
            case _:
                pass
    return operator.refusal("uses intermediate values in an unsupported way")


WHOLE_PATCH = (
    "its receptive window is the whole patch, so results would differ from patch to patch; such a "
    "generator cannot be imported"
)
"""Reason for rejecting operators whose result depends on more than the patch."""


Rule: TypeAlias = Callable[[Builder, Operator], GraphValue | list[GraphTensor]]
"""Function that converts one operator; returns its output, or its outputs."""
