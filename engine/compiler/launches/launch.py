"""What a kernel launch consists of, and how tensors look to a kernel."""

from ctypes import Structure
from dataclasses import dataclass
from typing import Protocol

from ...network.layers import Constant, PadMode, Triple
from ...options import Precision
from ..card_properties import CardProperties
from ..steps import ActivatedView, Activation, Convolve, Curve
from ..tensors import NUMBER_BYTES, VECTOR_BYTES, AffineTable, Tensor, TensorView
from . import arguments

BLOCK = 256
"""Threads of a block where nothing speaks for another number."""

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

WARP_GROUP, _WARP_GROUP_COLUMNS = 128, (128, 96, 64)
"""Threads of a warp group, and columns of its blocks of the outer layers; the wider costs less."""

_MOST_SHARED = 99 << 10
"""Bytes of shared memory that a block takes at most, whatever more a card would give, so that a
layer has the same form on all cards with matrix units of m16n8k16: each gives as much.
"""

MOST_WALKS = 2
"""Walks through the depth at once on a multiprocessor at most, of a block of the outer layers."""

OVERFLOW = "overflow"
"""Name of the int32 that is not 0 once a result was not finite."""


class Addresses(Protocol):
    """Where the memory of a program lies."""

    def __call__(self, name: str) -> int:
        """Device address of a tensor, table, constant, or one of the names above."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; source names the .cu file.

    cooperative: its blocks wait for each other, so all must run at once: the grid is cut to what
    the card has room for, along its first axis rather than its second. source, kernel: file and
    function. grid, block: blocks and threads along x, y and z. shared: bytes of dynamic shared
    memory a block. arguments: the kernel's one parameter. in_blocks: whether the patches are blocks
    of one volume, of which the arguments tell more.
    """

    source: str
    kernel: str
    grid: Triple
    block: Triple
    shared: int
    arguments: Structure
    cooperative: bool = False
    in_blocks: bool = False


def most_shared(card: CardProperties) -> int:
    """Bytes of shared memory that a block of the outermost layers takes at most."""
    return min(_MOST_SHARED, card.shared_per_block)


def warp_group_columns(width: int) -> int:
    """Columns of a block that leave the least of its last one empty."""
    return min(_WARP_GROUP_COLUMNS, key=lambda columns: -(-width // columns) * columns)


def vectors(channels: int, precision: Precision) -> int:
    """Vectors of a voxel."""
    return channels * NUMBER_BYTES[precision] // VECTOR_BYTES


def block_shape(channels: int, precision: Precision) -> tuple[int, int]:
    """Threads of a block along the channels, and beside each other."""
    across = min(vectors(channels, precision), 32)
    return across, BLOCK // across


def strides_of(tensor: Tensor) -> arguments.StridesArguments:
    """Numbers from one patch, plane, row and voxel to the next."""
    _, height, width = tensor.extents
    row = width * tensor.channels
    plane = height * row
    return arguments.StridesArguments(
        patch=tensor.extents[0] * plane, plane=plane, row=row, voxel=tensor.channels
    )


def address_of(view: TensorView, at: Addresses, channel: int = 0) -> int:
    """Address of a view's first voxel; of its tensor's where it is shuffled."""
    strides = strides_of(view.tensor)
    depth, height, width = (0, 0, 0) if view.shuffled else view.origin
    first = depth * strides.plane + height * strides.row + width * strides.voxel + channel
    return at(view.tensor.name) + first * NUMBER_BYTES[view.tensor.precision]


def activation_of(
    activation: Activation, at: Addresses, channel: int = 0
) -> arguments.ActivationArguments:
    """The activation as kernels take it, of the channels from `channel` on."""
    return arguments.ActivationArguments(
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


def region_address(step: Convolve, at: Addresses) -> int:
    """Address of the first voxel that a convolution writes."""
    target = step.target
    strides = strides_of(target)
    first = step.region.first * strides.patch + step.region.plane * strides.plane
    return at(target.name) + first * NUMBER_BYTES[target.precision]


def part_of(part: ActivatedView, at: Addresses) -> arguments.PartArguments:
    """A part as kernels take it."""
    factor, summand, stride = table_addresses(part.table, at)
    return arguments.PartArguments(
        source=address_of(part.source, at),
        factor=factor,
        summand=summand,
        strides=strides_of(part.source.tensor),
        channels=part.source.channels,
        table_stride=stride,
        slope=part.activation.slope,
        shuffled=part.source.shuffled,
        origin=arguments.Three(*part.source.origin),
    )
