"""The layer graph as it grows: nodes, weights, and what each value of the file became."""

import numpy as np

from ...errors import PatchShapeError
from ...network.graph import Node, TensorShape, shape_made
from ...network.layers import ChannelAffine, Conv3d, FloatArray, Layer
from .file import OnnxFile, Operator
from .tensors import Array
from .values import IN_ORDER, GraphTensor, GraphValue, ReshapedView

_LARGEST_SUM = 64 << 20
"""Bytes of all numbers that are made, beside a few times those of the file."""


class Builder:
    """Collects nodes; `values` maps the file's names to what they became.

    `missing`: names of what is not made of an operator, such as where a largest voxel lay.
    `gates`: tensors of one channel, by the node that repeats it.
    """

    def __init__(self, file: OnnxFile, entering: GraphTensor) -> None:
        self.opset = file.opset
        self.nodes: list[Node] = []
        self.weights: dict[str, FloatArray] = {}
        self.values: dict[str, GraphValue] = {file.input: entering, **file.tensors}
        self.missing: dict[str, Operator] = {}
        self.gates: dict[str, GraphTensor] = {}
        self._left = _LARGEST_SUM + 8 * sum(array.nbytes for array in file.tensors.values())

    def spend(self, operator: Operator, made: Array) -> None:
        """Raise CheckpointError if numbers that were made take more memory than a file may."""
        self._left -= made.nbytes
        if self._left < 0:
            raise operator.refusal("makes more numbers than any generator needs")

    def value(self, operator: Operator, at: int) -> GraphValue | None:
        """An input; None where the operator leaves it out."""
        if at >= len(operator.inputs) or not operator.inputs[at]:
            return None
        name = operator.inputs[at]
        if name in self.missing:
            raise self.missing[name].refusal("makes a second output, which is not supported")
        return self.values[name]

    def tensor(self, operator: Operator, at: int = 0, *, in_order: bool = False) -> GraphTensor:
        """An input that is made from the patch; in_order: whether it must be [N, C, D, H, W]."""
        value = self.value(operator, at)
        if not isinstance(value, GraphTensor):
            raise operator.refusal(
                "does what is not supported with intermediate values"
                if value is not None and not isinstance(value, np.ndarray)
                else "works on numbers that do not come from the patch"
            )
        if in_order and value.axes != IN_ORDER:
            raise operator.refusal("works on axes in an order that is not supported")
        return value

    def array(self, operator: Operator, at: int) -> Array | None:
        """An input that is known beforehand; None where the operator leaves it out."""
        value = self.value(operator, at)
        if value is None or isinstance(value, np.ndarray):
            return value
        raise operator.refusal("takes from the patch what must be known before")

    def weight(self, operator: Operator, at: int, shape: tuple[int, ...] | None = None) -> Array:
        """An input that must be there and known; shape: that it must have."""
        array = self.array(operator, at)
        if array is None or array.dtype != np.float32 or (shape and array.shape != shape):
            raise operator.refusal("has weights that are missing or of another shape")
        return array

    def keep(self, role: str, array: Array) -> str:
        """Keep the weight of the node to come; its name."""
        name = f"{len(self.nodes)}.{role}"
        self.weights[name] = np.ascontiguousarray(array, np.float32)
        return name

    def add(self, operator: Operator, layer: Layer, *inputs: GraphTensor) -> GraphTensor:
        """A node that does a layer, of the axes of its first input."""
        name = str(len(self.nodes))
        shapes = [TensorShape(one.channels, one.extents) for one in inputs]
        try:
            made = shape_made(name, layer, shapes)
        except PatchShapeError as error:
            reason = str(error).rstrip(".").removeprefix(f"Layer {name} ")
            raise operator.refusal(f"does not fit: it {reason}") from error
        self.nodes.append(Node(name, layer, tuple(one.node for one in inputs)))
        first = inputs[0]
        return GraphTensor(name, first.batch, made.channels, made.extents, first.axes)

    def affine(
        self, operator: Operator, source: GraphTensor, scale: FloatArray, shift: FloatArray
    ) -> GraphTensor:
        """scale * x + shift of each channel; the tensor itself where that is what it was."""
        if (scale == 1).all() and (shift == 0).all():
            return source
        names = self.keep("scale", scale), self.keep("shift", shift)
        return self.add(operator, ChannelAffine(source.channels, *names), source)

    def uniform(
        self, operator: Operator, source: GraphTensor, scale: float, shift: float
    ) -> GraphTensor:
        """scale * x + shift, the same of all channels."""
        both = (np.full(source.channels, number, np.float32) for number in (scale, shift))
        return self.affine(operator, source, *both)

    def repeated(self, operator: Operator, source: GraphTensor, channels: int) -> GraphTensor:
        """The one channel of a tensor so many times, by a convolution with ones."""
        if source.channels == channels:
            return source
        if source.channels != 1 or channels < 1 or source.axes != IN_ORDER:
            raise operator.refusal("repeats a tensor in a way that is not supported")
        weight = self.keep("weight", np.ones((channels, 1, 1, 1, 1), np.float32))
        made = self.add(operator, Conv3d(1, channels, (1, 1, 1), weight), source)
        self.gates[made.node] = source
        return made

    def per_channel(self, operator: Operator, array: Array, tensor: GraphTensor) -> FloatArray:
        """A constant that is joined with a tensor, as [C].

        Raises CheckpointError if it differs from voxel to voxel.
        """
        if array.ndim > len(tensor.axes):
            raise operator.refusal("joins a tensor with numbers of more axes")
        shape = (1,) * (len(tensor.axes) - array.ndim) + array.shape
        whole = [0] * len(shape)
        for extent, axis in zip(shape, tensor.axes, strict=True):
            whole[axis] = extent
        channels = whole[1]
        if channels not in (1, tensor.channels) or max(whole[0], *whole[2:]) != 1:
            raise operator.refusal("joins a tensor with numbers that differ from voxel to voxel")
        return np.broadcast_to(array.reshape(-1), tensor.channels).astype(np.float32)


def tensor_of(value: GraphTensor | ReshapedView) -> GraphTensor:
    """The tensor that is seen."""
    return value.of if isinstance(value, ReshapedView) else value


def seen_alike(
    tensor: GraphTensor, value: GraphTensor | ReshapedView
) -> GraphTensor | ReshapedView:
    """A tensor as another one of its shape is seen."""
    return ReshapedView(tensor, value.shape) if isinstance(value, ReshapedView) else tensor


def word(operator: Operator, name: str, usual: str) -> str:
    """An attribute that is a word."""
    return str(operator.attributes.get(name, usual))
