"""Launches of the first layer: patches in."""

from dataclasses import dataclass
from math import prod

from ...network.layers import Triple, triple
from ..card_properties import CardProperties
from ..kernel_source import constants, structure
from ..steps import ConvolvePatches, Pack
from ..tensors import NUMBER_BYTES, PATCHES
from .launch import (
    BLOCK,
    MOST_WALKS,
    Addresses,
    Launch,
    most_shared,
    warp_group_columns,
)
from .tensor_arguments import border_of
from .walks import cheapest_walk

_BEGINNING = 3  # as many planes of the target take as long as its first ones take to load
_WALKS_EVEN, _MOST_IDLE = 16, 0.2
"""Of what the number of walks on a card is a multiple, as mostly of the walks that a patch has
beside each other; and the share of a card that may stay idle by that.
"""
_FEWEST_PLANES = 4
"""Of a walk, which begins with as many more as its kernel is deep."""


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
    values = structure("pack.cu", "Pack")(
        patches=at(PATCHES) + step.patches.first * patch,
        target=at(target.name),
        patch_channels=step.channels,
        extents=step.extents,
        target_extents=target.extents,
        channels=target.channels,
        origin=step.origin,
        taps=step.taps,
        stride=step.stride,
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


def _columns_of_groups(step: ConvolvePatches) -> int:
    """Columns of a block by warp groups: of a small kernel so few that two blocks have room."""
    return warp_group_columns(step.target.extents[2]) if step.kernel[2] == 7 else 64


def _walk_of_groups(step: ConvolvePatches, card: CardProperties) -> _Walk:
    target = step.target
    depth, height, width = target.extents
    columns, outputs = _columns_of_groups(step), step.outputs_per_product
    tile_rows, tile = 64 // outputs, constants("convolve_patches_wgmma.cu")
    rows, seen = tile["TILES"] * tile_rows, step.kernel[1] + 1
    lines = (rows + seen - tile_rows) * seen // tile["PIECE"]
    numbers = tile["RING"] * lines * columns * tile["PIECE"]
    shared = numbers * NUMBER_BYTES[target.precision] + 8 * (2 * tile["RING"] + 2) + 12 * 128
    blocks = -(-width // columns) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    at_once = card.multiprocessors * (1 if step.kernel[2] == 7 else 2)
    planes = _fastest_planes(depth, blocks * parts, at_once, _BEGINNING)
    return _Walk((blocks, -(-depth // planes), parts), rows, planes, shared)


def _walk(step: ConvolvePatches, card: CardProperties) -> _Walk:
    if step.wgmma:
        return _walk_of_groups(step, card)
    target = step.target
    depth, height, width = target.extents
    outputs = _outputs(step)
    weights = _lines(step) * outputs * 32 + 16 * (_lines(step) + 1)
    tile, size = constants("convolve_patches.cu"), NUMBER_BYTES[target.precision]
    line = step.channels * tile["RING"] * 2 * tile["PITCH"] * size
    border = step.kernel[1] - 1
    most = most_shared(card)
    rows = next(r for r in (8, 4, 2, 1) if weights + (r + border) * line <= most or r == 1)
    shared = weights + (rows + border) * line
    blocks = -(-width // tile["COLUMNS"]) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    planes = _planes(depth, blocks * parts, _walks(card, shared), step.kernel[0] - 1)
    return _Walk((blocks, -(-depth // planes), parts), rows, planes, shared)


def _walks(card: CardProperties, shared: int) -> int:
    """Blocks that walk through the depth at the same time, each with so much shared memory."""
    each = min(MOST_WALKS, max(1, card.resident_blocks(shared)))
    return each * card.multiprocessors


def _planes(depth: int, beside: int, at_once: int, border: int) -> int:
    """Planes of each walk; beside: how many walks a plane takes. border: planes read besides."""
    even = max(1, at_once // _WALKS_EVEN) * _WALKS_EVEN
    if even >= (1 - _MOST_IDLE) * at_once:
        return max(_FEWEST_PLANES, -(-depth * beside // even))
    return _fastest_planes(depth, beside, at_once, border)


def _fastest_planes(depth: int, beside: int, at_once: int, border: int) -> int:
    """As `_planes`; border: planes that take as long as what a walk takes besides its own."""
    offered = range(_FEWEST_PLANES, max(depth, _FEWEST_PLANES) + 1)
    return cheapest_walk(depth, beside, at_once, border, offered)


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
    values = structure("convolve_patches.cuh", "ConvolvePatches")(
        patches=at(PATCHES),
        weights=at(step.weight),
        target=at(target.name),
        partials=partials,
        patch_channels=step.channels,
        extents=step.extents,
        target_extents=target.extents,
        kernel=step.kernel[:2],
        origin=step.origin,
        limit=_limit(step),
        border=border_of(step.mode)[0],
        steps=_lines(step),
        outputs=target.channels,
        rows=walk.rows,
        planes=walk.planes,
    )
    if step.wgmma:
        form = step.kernel[2], step.outputs_per_product, _columns_of_groups(step)
        name = f"convolve_patches_{form[0]}_{form[1]}_{form[2]}"
        block = constants("convolve_patches_wgmma.cu")["THREADS"], 1, 1
        return Launch("convolve_patches_wgmma", name, walk.grid, block, walk.shared, values)
    name = f"convolve_patches_{_outputs(step)}"
    block = constants("convolve_patches.cu")["THREADS"], 1, 1
    return Launch("convolve_patches", name, walk.grid, block, walk.shared, values)


def _limit(step: ConvolvePatches) -> Triple:
    """The end of what the first layer sees of a patch, which may lie past the patch's own."""
    sizes = zip(step.target.extents, step.kernel, step.origin, strict=True)
    return triple((e - 1) * step.stride + k + o for e, k, o in sizes)


def _convolve_strided_patches(step: ConvolvePatches, at: Addresses) -> Launch:
    target = step.target
    depth, height, width = target.extents
    tile = constants("convolve_strided_patches.cu")
    strips = -(-width // tile["COLUMNS"])
    values = structure("convolve_strided_patches.cu", "ConvolveStridedPatches")(
        patches=at(PATCHES),
        weights=at(step.weight),
        target=at(target.name),
        extents=step.extents,
        target_extents=target.extents,
        origin=step.origin,
        limit=_limit(step),
        border=border_of(step.mode)[0],
        outputs=target.channels,
        strips=strips,
    )
    grid = strips * -(-height // tile["ROWS"]), -(-depth // tile["PLANES"]), target.batch
    name, block = "convolve_strided_patches", (tile["WARPS"] * 32, 1, 1)
    return Launch(name, f"{name}_{_outputs(step)}", grid, block, 0, values)
