"""Kernel arguments of tensors: their addresses, and the prologue applied when they are read."""

from ctypes import Structure

from ...network.layers import Constant, PadMode
from ..kernel_source import constants, structure
from ..steps import ActivatedView, Activation, Conv
from ..tensors import NUMBER_BYTES, AffineTable, Tensor, TensorView
from .launch import Addresses


def strides_of(tensor: Tensor) -> Structure:
    """Return the elements from one patch, plane, row and voxel to the next."""
    _, height, width = tensor.extents
    row = width * tensor.channels
    plane = height * row
    return structure("element.cuh", "Strides")(
        patch=tensor.extents[0] * plane, plane=plane, row=row, voxel=tensor.channels
    )


def address_of(view: TensorView, at: Addresses, channel: int = 0) -> int:
    """Return the address of a view's first voxel; of its tensor's if it is space-to-depth."""
    strides = strides_of(view.tensor)
    depth, height, width = (0, 0, 0) if view.shuffled else view.origin
    first = depth * strides.plane + height * strides.row + width * strides.voxel + channel
    return at(view.tensor.name) + first * NUMBER_BYTES[view.tensor.precision]


def region_address(step: Conv, at: Addresses) -> int:
    """Return the address of the first voxel that a convolution writes."""
    target, region = step.target, step.region
    if region is None:
        return at(target.name)
    strides = strides_of(target)
    first = region.first * strides.patch + region.plane * strides.plane
    return at(target.name) + first * NUMBER_BYTES[target.precision]


def activation_of(activation: Activation, at: Addresses, channel: int = 0) -> Structure:
    """Return the activation as a kernel argument, for the channels from `channel` on."""
    return structure("element.cuh", "Activation")(
        slopes=at(activation.slopes) + 4 * channel if activation.slopes else None,
        slope=activation.slope,
        low=activation.low,
        high=activation.high,
        curve=constants("element.cuh")[activation.curve.upper()],
    )


def border_of(mode: PadMode) -> tuple[int, float]:
    """Return how a kernel continues a tensor, and the value outside a constant border."""
    borders = constants("element.cuh")
    if isinstance(mode, Constant):
        return borders["CONSTANT"], mode.value
    return borders["CONSTANT" if mode == "zero" else mode.upper()], 0.0


def table_addresses(
    table: AffineTable | None, at: Addresses, channel: int = 0
) -> tuple[int | None, int | None, int]:
    """Return the addresses of factors and summands, and the floats from one patch to the next."""
    if table is None:
        return None, None, 0
    factors = at(table.name) + 4 * channel
    return factors, factors + table.bytes // 2, table.channels if table.patches > 1 else 0


def part_of(part: ActivatedView, at: Addresses) -> Structure:
    """Return a prologue as a kernel argument."""
    factor, summand, stride = table_addresses(part.table, at)
    return structure("part.cuh", "Part")(
        source=address_of(part.source, at),
        factor=factor,
        summand=summand,
        strides=strides_of(part.source.tensor),
        channels=part.source.channels,
        table_stride=stride,
        slope=part.activation.slope,
        shuffled=part.source.shuffled,
        origin=part.source.origin,
    )
