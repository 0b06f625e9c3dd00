"""Launches of the outermost layers: patches in, patches out."""

from dataclasses import dataclass
from math import prod

from ...network.graph import Triple
from ..steps import (
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    ConvolvePatches,
    ConvolveToPatches,
    Pack,
    SumTaps,
    Unpack,
)
from . import arguments
from .launch import (
    BLOCK,
    BORDERS,
    OVERFLOW,
    Addresses,
    Launch,
    activation_of,
    address_of,
    strides_of,
    table_addresses,
)

MOST_SHARED = 99 << 10
"""Bytes of shared memory that a block can have on every card with matrix units of m16n8k16."""

_RING, _COLUMNS, _PITCH = 8, 128, 144  # of convolve_patches.cu
_PLANES, _PARTS_OF_PLANE, _TILES, _WIDTH = 4, 3, 3, 64  # of convolve_to_patches.cu
_MULTIPROCESSORS = 132
_DEEP_BLOCKS = 256  # blocks that walk through the depth: one or two for each multiprocessor


def pack(step: Pack, at: Addresses) -> Launch:
    """The patches, packed."""
    target = step.target
    depth, height, width = target.extents
    lines = step.channels * step.taps[0]
    size = NUMBER_BYTES[target.precision]
    columns = min(width, 128)
    while columns > 1 and 4 * target.channels + lines * size * _span(step, columns) > 40_000:
        columns = -(-columns // 2)
    span = _span(step, columns)
    patch = step.channels * prod(step.extents) * 4
    values = arguments.Pack(
        at(PATCHES) + step.patches.first * patch,
        at(target.name),
        step.channels,
        arguments.Three(*step.extents),
        arguments.Three(*target.extents),
        target.channels,
        arguments.Three(*step.origin),
        arguments.Two(*step.taps),
        arguments.Two(*step.stride),
        BORDERS[step.mode],
        columns,
        span,
    )
    grid = -(-width // columns), height, depth * step.patches.count
    shared = 4 * target.channels + lines * span * size
    return Launch("pack", "pack", grid, (BLOCK, 1, 1), shared, values)


def _span(step: Pack, columns: int) -> int:
    return (columns - 1) * step.stride[1] + step.taps[1]


@dataclass(frozen=True, slots=True)
class _Walk:
    """How the first layer is spread over blocks; rows, planes: of the target, each."""

    grid: Triple
    rows: int
    planes: int
    shared: int


def _walk(step: ConvolvePatches) -> _Walk:
    target = step.target
    depth, height, width = target.extents
    outputs = _outputs(step)
    weights = _lines(step) * outputs * 32 + 16 * (_lines(step) + 1)
    line = step.channels * _RING * 2 * _PITCH * NUMBER_BYTES[target.precision]
    border = step.kernel[1] - 1
    rows = next(r for r in (8, 4, 2, 1) if weights + (r + border) * line <= MOST_SHARED or r == 1)
    blocks = -(-width // _COLUMNS) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    planes = max(4, -(-depth * blocks * parts // _DEEP_BLOCKS))
    return _Walk(
        (blocks, -(-depth // planes), parts), rows, planes, weights + (rows + border) * line
    )


def _outputs(step: ConvolvePatches) -> int:
    """Channels of the target that a block makes."""
    return 32 if step.target.channels % 32 == 0 else 16


def _lines(step: ConvolvePatches) -> int:
    """Pairs of lines of the kernel."""
    return -(-step.channels * step.kernel[0] * step.kernel[1] // 2)


def blocks_of_a_patch(step: ConvolvePatches) -> int:
    """Blocks that measure a part of the same channels."""
    across, deep, _ = _walk(step).grid
    return across * deep


def convolve_patches(step: ConvolvePatches, at: Addresses, partials: int | None) -> Launch:
    """The first layer on the matrix units; partials: where the moments of its blocks go."""
    target, walk = step.target, _walk(step)
    sizes = zip(target.extents, step.kernel, step.origin, strict=True)
    limit = [extent + kernel - 1 + origin for extent, kernel, origin in sizes]
    values = arguments.ConvolvePatches(
        at(PATCHES),
        at(step.weight),
        at(target.name),
        partials,
        step.channels,
        arguments.Three(*step.extents),
        arguments.Three(*target.extents),
        arguments.Two(*step.kernel[:2]),
        arguments.Three(*step.origin),
        arguments.Three(*limit),
        BORDERS[step.mode],
        _lines(step),
        target.channels,
        walk.rows,
        walk.planes,
    )
    name = f"convolve_patches_{_outputs(step)}"
    return Launch("convolve_patches", name, walk.grid, (BLOCK, 1, 1), walk.shared, values)


def convolve_to_patches(step: ConvolveToPatches, at: Addresses) -> Launch:
    """The last layer on the matrix units."""
    view = step.source
    depth, height, width = step.extents
    values = arguments.ConvolveToPatches(
        address_of(view, at),
        at(step.weight),
        at(step.bias) if step.bias else None,
        at(TRANSLATED),
        at(OVERFLOW),
        strides_of(view.tensor),
        view.channels,
        arguments.Three(*view.extents),
        arguments.Three(*step.extents),
        arguments.Three(*step.kernel),
        arguments.Three(*step.origin),
        BORDERS[step.mode],
        view.shuffled,
        0,
        step.channels,
        activation_of(step.activation),
    )
    repeats = view.tensor.batch * step.channels
    columns, planes = -(-width // _WIDTH), -(-depth // _PLANES)

    def cost(rows: int) -> tuple[int, int]:
        waves = -(-columns * planes * repeats * -(-height // rows) // _MULTIPROCESSORS)
        return waves * (rows + 6), rows

    values.rows = rows = min(range(1, height + 1), key=cost)
    grid = columns * -(-height // rows), planes, repeats
    shared = last_layer_shared(step.kernel, view.channels)
    name = "convolve_to_patches"
    kernel = f"{name}_zero" if step.mode == "zero" else name
    return Launch(name, kernel, grid, (_PLANES * _PARTS_OF_PLANE * 32, 1, 1), shared, values)


def last_layer_shared(kernel: Triple, channels: int) -> int:
    """Bytes of shared memory that a block of the last layer's kernel takes."""
    operands = kernel[0] * channels // 32
    sums = 2 * 8 * (_PARTS_OF_PLANE * _TILES * 8 + 4)
    return operands * 4 * 2 * 32 * 16 + _PLANES * (sums + operands + 2) * 4


def sum_taps(step: SumTaps, at: Addresses) -> Launch:
    """The sum over the taps of the last layer."""
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, BLOCK)
    first = step.patches.first * step.channels * depth + step.patches.plane
    values = arguments.SumTaps(
        at(source.name),
        at(step.bias) if step.bias else None,
        at(TRANSLATED) + first * height * width * 4,
        at(OVERFLOW),
        source.extents[0],
        arguments.Three(*step.extents),
        step.channels,
        source.channels,
        arguments.Two(*step.taps),
        step.lane_w,
        activation_of(step.activation),
    )
    outputs = threads - step.taps[1] + 1
    grid = -(-width // outputs), -(-height // 2), source.extents[0] * source.batch
    shared = 2 * step.lane_w * threads * 4
    return Launch("unpack", "sum_taps", grid, (threads, 1, 1), shared, values)


def unpack(step: Unpack, at: Addresses) -> Launch:
    """A tensor as translated patches."""
    view = step.source
    strides = strides_of(view.tensor)
    factor, summand, stride = table_addresses(step.table, at, step.source_channel)
    voxels = prod(view.extents)
    values = arguments.Unpack(
        address_of(view, at, step.source_channel),
        factor,
        summand,
        at(TRANSLATED) + step.channel * voxels * 4,
        at(OVERFLOW),
        strides.patch,
        strides.plane,
        strides.row,
        strides.voxel,
        stride,
        arguments.Three(*view.extents),
        step.count,
        step.channels,
        activation_of(step.activation),
    )
    grid = -(-voxels // BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (BLOCK, 1, 1), 0, values)
