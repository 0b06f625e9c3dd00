"""Launches of the outermost layers: patches in, patches out."""

from dataclasses import dataclass
from math import prod

from ...network.layers import Triple, triple
from ..card_properties import CardProperties
from ..steps import (
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    AddPatches,
    ConvolvePatches,
    ConvolveToPatches,
    ConvolveVoxels,
    ConvTransposeToPatches,
    Pack,
    Precision,
    SumTaps,
    Unpack,
)
from . import arguments
from .launch import (
    BLOCK,
    OVERFLOW,
    Addresses,
    Launch,
    activation_of,
    address_of,
    border_of,
    part_of,
    strides_of,
    table_addresses,
    vectors,
)

_MOST_SHARED = 99 << 10
"""Bytes of shared memory that a block takes at most, whatever more a card would give, so that a
layer has the same form on all cards with matrix units of m16n8k16: each gives as much.
"""

_RING, _COLUMNS, _PITCH = 8, 128, 144  # of convolve_patches.cu
_STRIDED_PLANES, _STRIDED_ROWS, _STRIDED_COLUMNS = 2, 8, 64  # of convolve_strided_patches.cu
_PLANES, _PARTS_OF_PLANE, _TILES, _WIDTH = 4, 3, 3, 64  # of convolve_to_patches.cu
WARP_GROUP_CHANNELS = 32, 64
"""Of the source of convolve_to_patches_wgmma.cu."""

_GROUP, _WARP_GROUP_COLUMNS = 128, (128, 96, 64)
"""Threads of a warp group, and columns of its blocks of the outer layers; the wider costs less."""

_GROUPS = 4  # that have planes, of convolve_to_patches_wgmma.cu
_GROUP_TILES, _GROUP_RING, _TAPS = 4, 8, 8  # of convolve_patches_wgmma.cu
_BEGINNING = 3  # as many planes of the target take as long as its first ones take to load
_CELLS, _STRIPS = 23, 8  # of conv_transpose_to_patches.cu: columns of a strip, and strips a block
_MOST_WALKS, _WALKS_EVEN, _MOST_IDLE = 2, 16, 0.2
"""Walks through the depth at once on a multiprocessor at most; of what their number on a card is a
multiple, as mostly of the walks that a patch has beside each other; and the share of a card that
may stay idle by that.
"""
_WARP, _MOST_SUMMED, _VOXELS_AT_ONCE = 32, 4, 4  # of convolve_voxels.cu
_VOXEL_BLOCKS = 8  # of its blocks for each multiprocessor, of which as many run at once as may
_FEWEST_PLANES = 4
"""Of a walk, which begins with as many more as its kernel is deep."""


def most_shared(card: CardProperties) -> int:
    """Bytes of shared memory that a block of the outermost layers takes at most."""
    return min(_MOST_SHARED, card.shared_per_block)


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
    border, border_value = border_of(step.mode)
    values = arguments.PackArguments(
        patches=at(PATCHES) + step.patches.first * patch,
        target=at(target.name),
        patch_channels=step.channels,
        extents=arguments.Three(*step.extents),
        target_extents=arguments.Three(*target.extents),
        channels=target.channels,
        origin=arguments.Three(*step.origin),
        taps=arguments.Two(*step.taps),
        stride=arguments.Two(*step.stride),
        border=border,
        columns=columns,
        span=span,
        border_value=border_value,
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


def _warp_group_columns(width: int) -> int:
    """Columns of a block that leave the least of its last one empty."""
    return min(_WARP_GROUP_COLUMNS, key=lambda columns: -(-width // columns) * columns)


def _walk_of_groups(step: ConvolvePatches, card: CardProperties) -> _Walk:
    target = step.target
    depth, height, width = target.extents
    columns, outputs = _warp_group_columns(width), step.outputs_at_once
    rows = _GROUP_TILES * 64 // outputs
    lines = rows + 8 - 64 // outputs
    numbers = _GROUP_RING * lines * columns * _TAPS
    shared = numbers * NUMBER_BYTES[target.precision] + 8 * (2 * _GROUP_RING + 2) + 12 * 128
    blocks = -(-width // columns) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    planes = _fastest_planes(depth, blocks * parts, card.multiprocessors, _BEGINNING)
    return _Walk((blocks, -(-depth // planes), parts), rows, planes, shared)


def _walk(step: ConvolvePatches, card: CardProperties) -> _Walk:
    if step.wgmma:
        return _walk_of_groups(step, card)
    target = step.target
    depth, height, width = target.extents
    outputs = _outputs(step)
    weights = _lines(step) * outputs * 32 + 16 * (_lines(step) + 1)
    line = step.channels * _RING * 2 * _PITCH * NUMBER_BYTES[target.precision]
    border = step.kernel[1] - 1
    most = most_shared(card)
    rows = next(r for r in (8, 4, 2, 1) if weights + (r + border) * line <= most or r == 1)
    shared = weights + (rows + border) * line
    blocks = -(-width // _COLUMNS) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    planes = _planes(depth, blocks * parts, _walks(card, shared), step.kernel[0] - 1)
    return _Walk((blocks, -(-depth // planes), parts), rows, planes, shared)


def _walks(card: CardProperties, shared: int) -> int:
    """Blocks that walk through the depth at the same time, each with so much shared memory."""
    each = min(_MOST_WALKS, max(1, card.blocks_at_once(shared)))
    return each * card.multiprocessors


def _planes(depth: int, beside: int, at_once: int, border: int) -> int:
    """Planes of each walk; beside: how many walks a plane takes. border: planes read besides."""
    even = max(1, at_once // _WALKS_EVEN) * _WALKS_EVEN
    if even >= (1 - _MOST_IDLE) * at_once:
        return max(_FEWEST_PLANES, -(-depth * beside // even))
    return _fastest_planes(depth, beside, at_once, border)


def _fastest_planes(depth: int, beside: int, at_once: int, border: int) -> int:
    """As `_planes`; border: planes that take as long as what a walk takes besides its own."""

    def seconds(planes: int) -> int:
        """As if a plane took one, with all walks that do not fit at once behind the others."""
        waves = -(-beside * -(-depth // planes) // at_once)
        return waves * (planes + border)

    return min(range(_FEWEST_PLANES, max(depth, _FEWEST_PLANES) + 1), key=seconds)


def _outputs(step: ConvolvePatches) -> int:
    """Channels of the target that a block makes."""
    return 32 if step.target.channels % 32 == 0 else 16


def _lines(step: ConvolvePatches) -> int:
    """Pairs of lines of the kernel."""
    return -(-step.channels * step.kernel[0] * step.kernel[1] // 2)


def blocks_of_a_patch(step: ConvolvePatches, card: CardProperties) -> int:
    """Blocks that measure a part of the same channels."""
    across, deep, _ = _walk(step, card).grid
    return across * deep


def convolve_patches(
    step: ConvolvePatches, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The first layer on the matrix units; partials: where the moments of its blocks go."""
    if step.stride > 1:
        return _convolve_strided_patches(step, at)
    target, walk = step.target, _walk(step, card)
    values = arguments.ConvolvePatchesArguments(
        patches=at(PATCHES),
        weights=at(step.weight),
        target=at(target.name),
        partials=partials,
        patch_channels=step.channels,
        extents=arguments.Three(*step.extents),
        target_extents=arguments.Three(*target.extents),
        kernel=arguments.Two(*step.kernel[:2]),
        origin=arguments.Three(*step.origin),
        limit=arguments.Three(*_limit(step)),
        border=border_of(step.mode)[0],
        steps=_lines(step),
        outputs=target.channels,
        rows=walk.rows,
        planes=walk.planes,
    )
    if step.wgmma:
        name = f"convolve_patches_{step.outputs_at_once}_{_warp_group_columns(target.extents[2])}"
        block = 3 * _GROUP, 1, 1
        return Launch("convolve_patches_wgmma", name, walk.grid, block, walk.shared, values)
    name = f"convolve_patches_{_outputs(step)}"
    return Launch("convolve_patches", name, walk.grid, (BLOCK, 1, 1), walk.shared, values)


def _limit(step: ConvolvePatches) -> Triple:
    """The end of what the first layer sees of a patch, which may lie past the patch's own."""
    sizes = zip(step.target.extents, step.kernel, step.origin, strict=True)
    return triple((e - 1) * step.stride + k + o for e, k, o in sizes)


def _convolve_strided_patches(step: ConvolvePatches, at: Addresses) -> Launch:
    target = step.target
    depth, height, width = target.extents
    strips = -(-width // _STRIDED_COLUMNS)
    values = arguments.ConvolveStridedPatchesArguments(
        patches=at(PATCHES),
        weights=at(step.weight),
        target=at(target.name),
        extents=arguments.Three(*step.extents),
        target_extents=arguments.Three(*target.extents),
        origin=arguments.Three(*step.origin),
        limit=arguments.Three(*_limit(step)),
        border=border_of(step.mode)[0],
        outputs=target.channels,
        strips=strips,
    )
    grid = strips * -(-height // _STRIDED_ROWS), -(-depth // _STRIDED_PLANES), target.batch
    name = "convolve_strided_patches"
    return Launch(name, f"{name}_{_outputs(step)}", grid, (BLOCK, 1, 1), 0, values)


def convolve_to_patches(step: ConvolveToPatches, at: Addresses, card: CardProperties) -> Launch:
    """The last layer on the matrix units."""
    view = step.source
    depth, height, width = step.extents
    repeats = view.tensor.batch * step.channels
    wide, deep = _WIDTH, _PLANES
    if step.wgmma:
        wide = _warp_group_columns(width)
        deep = _planes_of_groups(wide)
    columns, planes = -(-width // wide), -(-depth // deep)

    def cost(rows: int) -> tuple[int, int]:
        waves = -(-columns * planes * repeats * -(-height // rows) // card.multiprocessors)
        return waves * (rows + 6), rows

    rows = min(range(1, height + 1), key=cost)
    values = arguments.ConvolveToPatchesArguments(
        source=address_of(view, at),
        weights=at(step.weight),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED),
        overflow=at(OVERFLOW),
        source_strides=strides_of(view.tensor),
        channels=view.channels,
        extents=arguments.Three(*view.extents),
        target_extents=arguments.Three(*step.extents),
        kernel=arguments.Three(*step.kernel),
        origin=arguments.Three(*step.origin),
        border=border_of(step.mode)[0],
        shuffled=view.shuffled,
        rows=rows,
        outputs=step.channels,
        activation=activation_of(step.activation, at),
    )
    grid = columns * -(-height // rows), planes, repeats
    if step.wgmma:
        name = f"convolve_to_patches_{view.channels}_{wide}"
        shared = _last_of_groups_shared(step.kernel, view.channels, wide)
        block = (_GROUPS + 1) * _GROUP, 1, 1
        return Launch("convolve_to_patches_wgmma", name, grid, block, shared, values)
    shared = last_layer_shared(step.kernel, view.channels)
    name = "convolve_to_patches"
    kernel = f"{name}_zero" if step.mode == "zero" else name
    return Launch(name, kernel, grid, (_PLANES * _PARTS_OF_PLANE * 32, 1, 1), shared, values)


def last_layer_shared(kernel: Triple, channels: int) -> int:
    """Bytes of shared memory that a block of the last layer's kernel takes."""
    operands = kernel[0] * channels // 32
    sums = 2 * 8 * (_PARTS_OF_PLANE * _TILES * 8 + 4)
    return operands * 4 * 2 * 32 * 16 + _PLANES * (sums + operands + 2) * 4


def _last_of_groups_shared(kernel: Triple, channels: int, columns: int) -> int:
    weights = 7 * channels // 16 * 2 * 15 * 64 * 2
    width, stages = columns + _TAPS, 16 if channels == 32 else 6
    stored = stages * channels * width * 2
    sums = _GROUPS * 8 * (width + 4) * 4
    planes = _planes_of_groups(columns) + kernel[0]
    return weights + stored + sums + 16 * stages + 4 * (width + planes)


def _planes_of_groups(columns: int) -> int:
    """Planes of the target of a block of the last layer's warp groups."""
    return 2 * _GROUPS if columns == 64 else _GROUPS


def conv_transpose_to_patches(
    step: ConvTransposeToPatches, at: Addresses, card: CardProperties
) -> Launch:
    """The last layer as a transposed convolution on the matrix units."""
    first, *others = step.parts
    depth, height, width = first.source.extents
    strips = (depth + 1) * -(-(width + 1) // _CELLS)
    blocks = -(-strips // _STRIPS)
    repeats = first.source.tensor.batch * step.channels
    channels = sum(part.source.channels for part in step.parts)
    shared = cells_shared(channels)
    at_once = card.multiprocessors * min(_MOST_WALKS, max(1, card.blocks_at_once(shared)))

    def cost(rows: int) -> tuple[int, int]:
        waves = -(-blocks * repeats * -(-(height + 1) // rows) // at_once)
        return waves * (rows + 1), rows

    rows = step.rows or min(range(1, height + 2), key=cost)
    parts = (part_of(first, at), *(part_of(part, at) for part in others))
    values = arguments.ConvTransposeToPatchesArguments(
        parts=(arguments.PartArguments * 2)(*parts),
        weights=at(step.weight),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED),
        overflow=at(OVERFLOW),
        extents=arguments.Three(depth, height, width),
        rows=rows,
        outputs=step.channels,
        activation=activation_of(step.activation, at),
    )
    name = "conv_transpose_to_patches"
    grid = blocks, -(-(height + 1) // rows), repeats
    return Launch(name, name, grid, (_STRIPS * 32, 1, 1), shared, values)


def cells_shared(channels: int) -> int:
    """Bytes of shared memory that a block of the transposed last layer takes."""
    return 2 * channels // 32 * 4 * 32 * 16 + 2 * channels * 4


def convolve_voxels(step: ConvolveVoxels, at: Addresses, card: CardProperties) -> Launch:
    """The last layer as a sum over the channels of each voxel."""
    tensor = step.source.source.tensor
    voxels = prod(tensor.extents)
    values = arguments.ConvolveVoxelsArguments(
        part=part_of(step.source, at),
        weights=at(step.weight),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED),
        overflow=at(OVERFLOW),
        voxels=voxels,
        activation=activation_of(step.activation, at),
    )
    lanes = _lanes_of_voxel(tensor.channels, tensor.precision)
    beside = BLOCK // lanes
    blocks = min(-(-voxels // (_VOXELS_AT_ONCE * beside)), _VOXEL_BLOCKS * card.multiprocessors)
    name = "convolve_voxels"
    grid, block = (blocks, tensor.batch, 1), (lanes, beside, 1)
    return Launch(name, f"{name}_{step.channels}", grid, block, 0, values)


def sums_voxels(channels: int, outputs: int, precision: Precision) -> bool:
    """Whether convolve_voxels.cu takes a voxel of so many channels, and makes so many of it."""
    return vectors(channels, precision) <= _WARP and outputs <= _MOST_SUMMED


def _lanes_of_voxel(channels: int, precision: Precision) -> int:
    """Those of a warp that share a voxel, of which each has a vector at most."""
    return 1 << (vectors(channels, precision) - 1).bit_length()


def sum_taps(step: SumTaps, at: Addresses) -> Launch:
    """The sum over the taps of the last layer."""
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, BLOCK)
    first = step.patches.first * step.channels * depth + step.patches.plane
    values = arguments.SumTapsArguments(
        source=at(source.name),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED) + first * height * width * 4,
        overflow=at(OVERFLOW),
        planes=source.extents[0],
        extents=arguments.Three(*step.extents),
        channels=step.channels,
        source_channels=source.channels,
        taps=arguments.Two(*step.taps),
        lane_width=step.lane_w,
        activation=activation_of(step.activation, at),
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
    values = arguments.UnpackArguments(
        source=address_of(view, at, step.source_channel),
        factor=factor,
        summand=summand,
        translated=at(TRANSLATED) + step.channel * voxels * 4,
        overflow=at(OVERFLOW),
        patch_stride=strides.patch,
        plane_stride=strides.plane,
        row_stride=strides.row,
        voxel_stride=strides.voxel,
        table_stride=stride,
        extents=arguments.Three(*view.extents),
        count=step.count,
        channels=step.channels,
        activation=activation_of(step.activation, at, step.source_channel),
    )
    grid = -(-voxels // BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (BLOCK, 1, 1), 0, values)


def add_patches(step: AddPatches, at: Addresses) -> Launch:
    """The patches on top of what was made of them."""
    count = step.patches.count * step.channels * prod(step.extents)
    values = arguments.AddPatchesArguments(
        patches=at(PATCHES), translated=at(TRANSLATED), count=count
    )
    return Launch("unpack", "add_patches", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values)
