"""How tensors look to a kernel: where they lie, and what is done to what is read of them."""

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p

from ...network.layers import Constant, PadMode
from ..steps import ActivatedView, Activation, Convolve, Curve
from ..tensors import NUMBER_BYTES, AffineTable, Tensor, TensorView
from .launch import Addresses

Three = c_int * 3
Two = c_int * 2

_BORDERS = {"reflect": 0, "replicate": 1, "zero": 2}
"""The `Border` of element.cuh; a constant is what zero is but for its value."""

_CURVES: dict[Curve, int] = {
    "linear": 0,
    "tanh": 1,
    "sigmoid": 2,
    "elu": 3,
    "softplus": 4,
    "clip": 5,
    "erf": 6,
}
"""The `Curve` of element.cuh."""


class StridesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patch", c_longlong),
        ("plane", c_longlong),
        ("row", c_longlong),
        ("voxel", c_int),
    )


def strides_of(tensor: Tensor) -> StridesArguments:
    """Numbers from one patch, plane, row and voxel to the next."""
    _, height, width = tensor.extents
    row = width * tensor.channels
    plane = height * row
    return StridesArguments(
        patch=tensor.extents[0] * plane, plane=plane, row=row, voxel=tensor.channels
    )


def address_of(view: TensorView, at: Addresses, channel: int = 0) -> int:
    """Address of a view's first voxel; of its tensor's where it is shuffled."""
    strides = strides_of(view.tensor)
    depth, height, width = (0, 0, 0) if view.shuffled else view.origin
    first = depth * strides.plane + height * strides.row + width * strides.voxel + channel
    return at(view.tensor.name) + first * NUMBER_BYTES[view.tensor.precision]


def region_address(step: Convolve, at: Addresses) -> int:
    """Address of the first voxel that a convolution writes."""
    target = step.target
    strides = strides_of(target)
    first = step.region.first * strides.patch + step.region.plane * strides.plane
    return at(target.name) + first * NUMBER_BYTES[target.precision]


class ActivationArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("slopes", c_void_p),
        ("slope", c_float),
        ("low", c_float),
        ("high", c_float),
        ("curve", c_int),
    )


def activation_of(activation: Activation, at: Addresses, channel: int = 0) -> ActivationArguments:
    """The activation as kernels take it, of the channels from `channel` on."""
    return ActivationArguments(
        slopes=at(activation.slopes) + 4 * channel if activation.slopes else None,
        slope=activation.slope,
        low=activation.low,
        high=activation.high,
        curve=_CURVES[activation.curve],
    )


def border_of(mode: PadMode) -> tuple[int, float]:
    """How a kernel continues a tensor, and the value behind a constant border."""
    if isinstance(mode, Constant):
        return _BORDERS["zero"], mode.value
    return _BORDERS[mode], 0.0


def table_addresses(
    table: AffineTable | None, at: Addresses, channel: int = 0
) -> tuple[int | None, int | None, int]:
    """Addresses of the factors and summands, and floats from one patch to the next."""
    if table is None:
        return None, None, 0
    factors = at(table.name) + 4 * channel
    return factors, factors + table.bytes // 2, table.channels if table.patches > 1 else 0


class PartArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("strides", StridesArguments),
        ("channels", c_int),
        ("table_stride", c_int),
        ("slope", c_float),
        ("shuffled", c_int),
        ("origin", Three),
    )


def part_of(part: ActivatedView, at: Addresses) -> PartArguments:
    """A part as kernels take it."""
    factor, summand, stride = table_addresses(part.table, at)
    return PartArguments(
        source=address_of(part.source, at),
        factor=factor,
        summand=summand,
        strides=strides_of(part.source.tensor),
        channels=part.source.channels,
        table_stride=stride,
        slope=part.activation.slope,
        shuffled=part.source.shuffled,
        origin=Three(*part.source.origin),
    )
