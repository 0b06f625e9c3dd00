"""Kernels of the first layer, which read the input patches directly."""

from ctypes import Structure
from dataclasses import dataclass

import numpy as np

from ...network.layers import Constant, FloatArray, Triple, added
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import Conv, Geometry
from ..tensors import NUMBER_BYTES, PATCHES, Tensor
from ..weight_layout import PackedWeight, Slots, WeightArray
from .launch import (
    BARRIER_BYTES,
    WARP_MOMENTS_BYTES,
    WGMMA_COLUMNS,
    Addresses,
    Launch,
    border_of,
    concurrent_loops,
    fastest_loop,
    most_shared,
    wgmma_columns,
)
from .spec import HALF, ConvKernel

_BEGINNING = 3  # as many planes of the target take as long as its first ones take to load
_LOOPS_EVEN, _MOST_IDLE = 16, 0.2
"""Multiple to which the number of concurrent depth loops on a GPU is rounded, because loops next to
each other in a patch mostly are a multiple of it; and the share of a GPU that may stay idle because
of it.
"""
_FEWEST_PLANES = 4
"""Fewest planes of a depth loop, which starts with as many more as its kernel is deep."""

_LONGEST = 7
"""Largest kernel extent for which there is enough shared memory."""


def _reads_patches(conv: Conv) -> bool:
    """Return whether a convolution meets the conditions that the first-layer kernels share."""
    geometry = conv.geometry
    plain = Geometry(
        geometry.kernel, geometry.stride, geometry.before, geometry.after, mode=geometry.mode
    )
    return (
        conv.patches is not None
        and geometry == plain
        and not isinstance(geometry.mode, Constant)
        and conv.outputs % 16 == 0
        and max(geometry.kernel) <= _LONGEST
        and conv.channels == 1
    )


def _fits_wgmma(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    geometry = conv.geometry
    return (
        _reads_patches(conv)
        and geometry.stride == (1, 1, 1)
        and geometry.kernel in ((7, 7, 7), (3, 3, 3))
        and conv.outputs % 32 == 0
    )


def _fits(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    return _reads_patches(conv) and conv.geometry.stride == (1, 1, 1)


def _fits_strided(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    is_strided = conv.geometry.stride == (2, 2, 2) and conv.geometry.kernel == (4, 4, 4)
    return _reads_patches(conv) and is_strided


def _pack(weight: FloatArray, _slots: Slots, _channels: int) -> PackedWeight:
    """[K, C, kD, kH, kW] -> [steps, K / 8, 32, 4]: second operands of an m16n8k16 product.

    The depth of the product is pairs of lines (c, i, j) of 8 taps each. Lane 4 n + t of a step
    holds the taps 2 t, 2 t + 1 of output n, of the pair's first line, then of its second.
    """
    outputs, channels, depth, height, width = weight.shape
    lines = channels * depth * height
    steps = -(-lines // 2)
    shape = steps, outputs // 8, 32, 4

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, 2 * steps, 8), weight.dtype)
        filled[:, :lines, :width] = weight.reshape(outputs, lines, width)
        split = filled.reshape(outputs // 8, 8, steps, 2, 4, 2)
        return split.transpose(2, 0, 1, 4, 3, 5).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_strided(weight: FloatArray, slots: Slots, channels: int) -> PackedWeight:
    """[K, 1, 4, 4, 4] -> [4, K / 8, 32, 4]: as `_pack`, with lines of two kernel rows."""
    return _pack(weight.reshape(*weight.shape[:3], 2, 8), slots, channels)


def _outputs_of_product(outputs: int, edge: int) -> int:
    """Return how many of the outputs a wgmma product computes; edge: of the kernel."""
    return 64 if edge == 7 and outputs % 64 == 0 else 32


def _pack_wgmma(weight: FloatArray, _slots: Slots, _channels: int) -> PackedWeight:
    """[K, 1, k, k, k] -> [K / n, k, products, 4, 32, 8]: first operands of m64n*k16, in registers.

    k is 7 or 3. n is `_outputs_of_product` of K; the 64 rows of an operand are outputs for one row
    of the target, or for two. Those depend on 8 input rows of 8 taps each, or for 3^3 on 4 rows of
    4. The operands are ordered by the kernel plane and by 16 of these taps, two input rows or all
    4. Lane 4 g + t of warp w holds, of rows 16 w + g and 16 w + g + 8, the taps 2 t, 2 t + 1 of the
    first 8, then of the others.
    """
    outputs, edge = weight.shape[0], weight.shape[-1]
    each, window = _outputs_of_product(outputs, edge), edge + 1
    products = window * window // 16
    shape = outputs // each, edge, products, 4, 32, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs // each, 64 // each, each, edge, window, window), weight.dtype)
        for row in range(64 // each):
            own = weight.reshape(-1, each, edge, edge, edge)
            filled[:, row, :, :, row : row + edge, :edge] = own
        split = filled.reshape(-1, 4, 2, 8, edge, products, 2, 4, 2)
        return split.transpose(0, 4, 5, 1, 3, 7, 6, 2, 8).reshape(shape)

    return PackedWeight(weight, shape, packed)


@dataclass(frozen=True, slots=True)
class _Loops:
    """Distribution of the first layer over blocks; rows, planes: of the target, each."""

    grid: Triple
    rows: int
    planes: int
    shared: int


def _wgmma_outputs(conv: Conv) -> int:
    """Return how many of the target's channels a wgmma product computes."""
    return _outputs_of_product(conv.outputs, conv.geometry.kernel[0])


def _wgmma_rows(conv: Conv) -> int:
    return 64 // _wgmma_outputs(conv)


def _resident(edge: int) -> int:
    """Return the blocks of the wgmma kernel on each multiprocessor; edge: of the kernel."""
    return 1 if edge == 7 else 2


def _wgmma_columns(conv: Conv) -> int:
    """Return the columns of a block: for a small kernel, few enough for two resident blocks."""
    return wgmma_columns(conv.target.extents[2]) if conv.geometry.kernel[2] == 7 else 64


def _wgmma_loops(conv: Conv, gpu: GpuProperties) -> _Loops:
    target, edge = conv.target, conv.geometry.kernel[2]
    depth, height, width = target.extents
    columns, outputs = _wgmma_columns(conv), _wgmma_outputs(conv)
    tile_rows, tile = 64 // outputs, constants("convolve_patches_wgmma.cu")
    rows, window = tile["TILES"] * tile_rows, edge + 1
    lines = (rows + window - tile_rows) * window // tile["PIECE"]
    numbers = tile["RING"] * lines * columns * tile["PIECE"]
    barriers = BARRIER_BYTES * (2 * tile["RING"] + 2)
    shared = numbers * NUMBER_BYTES[target.precision] + barriers + WARP_MOMENTS_BYTES
    blocks = -(-width // columns) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    concurrent = gpu.multiprocessors * _resident(edge)
    planes = _fastest_planes(depth, blocks * parts, concurrent, _BEGINNING)
    return _Loops((blocks, -(-depth // planes), parts), rows, planes, shared)


def _loops(conv: Conv, gpu: GpuProperties) -> _Loops:
    target, kernel = conv.target, conv.geometry.kernel
    depth, height, width = target.extents
    outputs = _outputs(target)
    weights = _lines(conv) * outputs * 32 + 16 * (_lines(conv) + 1)
    tile, size = constants("convolve_patches.cu"), NUMBER_BYTES[target.precision]
    line = conv.channels * tile["RING"] * 2 * tile["PITCH"] * size
    border = kernel[1] - 1
    most = most_shared(gpu)
    rows = next(r for r in (8, 4, 2, 1) if weights + (r + border) * line <= most or r == 1)
    shared = weights + (rows + border) * line
    blocks = -(-width // tile["COLUMNS"]) * -(-height // rows)
    parts = target.batch * target.channels // outputs
    planes = _planes(depth, blocks * parts, concurrent_loops(gpu, shared), kernel[0] - 1)
    return _Loops((blocks, -(-depth // planes), parts), rows, planes, shared)


def _planes(depth: int, loops: int, concurrent: int, border: int) -> int:
    """Return the planes of a depth loop; loops: that a plane takes. border: extra planes."""
    even = max(1, concurrent // _LOOPS_EVEN) * _LOOPS_EVEN
    if even >= (1 - _MOST_IDLE) * concurrent:
        return max(_FEWEST_PLANES, -(-depth * loops // even))
    return _fastest_planes(depth, loops, concurrent, border)


def _fastest_planes(depth: int, loops: int, concurrent: int, border: int) -> int:
    """Return planes as `_planes`; border: planes that cost as much as the rest of a loop."""
    offered = range(_FEWEST_PLANES, max(depth, _FEWEST_PLANES) + 1)
    return fastest_loop(depth, loops, concurrent, border, offered)


def _outputs(target: Tensor) -> int:
    """Return how many of the target's channels a block computes."""
    return 32 if target.channels % 32 == 0 else 16


def _lines(conv: Conv) -> int:
    """Return how many pairs of lines the kernel has."""
    depth, height, _ = conv.geometry.kernel
    return -(-conv.channels * depth * height // 2)


def _extents(conv: Conv) -> Triple:
    """Return the extents of a patch."""
    assert conv.patches is not None
    return conv.patches.extents


def _limit(conv: Conv) -> Triple:
    """Return the end of the voxels read from a patch, which may lie past the patch's own."""
    return added(conv.reach.origin, conv.reach.extents)


def _launch(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name, loops = "convolve_patches", _loops(conv, gpu)
    kernel, values = f"{name}<{_outputs(conv.target)}>", _arguments(conv, at, loops, partials)
    block = constants("convolve_patches.cu")["THREADS"], 1, 1
    return Launch(name, kernel, loops.grid, block, loops.shared, values)


def _launch_wgmma(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    loops = _wgmma_loops(conv, gpu)
    values = _arguments(conv, at, loops, partials)
    edge = conv.geometry.kernel[2]
    kernel = _wgmma_instance(edge, _wgmma_outputs(conv), _wgmma_columns(conv))
    block = constants("convolve_patches_wgmma.cu")["THREADS"], 1, 1
    return Launch("convolve_patches_wgmma", kernel, loops.grid, block, loops.shared, values)


def _wgmma_instance(edge: int, outputs: int, columns: int) -> str:
    """Return the C++ name for a kernel of this edge, of which so many blocks are resident."""
    return f"convolve_patches_wgmma<{edge}, {outputs}, {columns}, {_resident(edge)}>"


def _arguments(conv: Conv, at: Addresses, loops: _Loops, partials: int | None) -> Structure:
    target = conv.target
    return structure("convolve_patches.cuh", "ConvolvePatches")(
        patches=at(PATCHES),
        weights=at(conv.weight),
        target=at(target.name),
        partials=partials,
        patch_channels=conv.channels,
        extents=_extents(conv),
        target_extents=target.extents,
        kernel=conv.geometry.kernel[:2],
        origin=conv.geometry.origin,
        limit=_limit(conv),
        border=border_of(conv.geometry.mode)[0],
        steps=_lines(conv),
        outputs=target.channels,
        rows=loops.rows,
        planes=loops.planes,
    )


def _launch_strided(
    conv: Conv, at: Addresses, _gpu: GpuProperties, _partials: int | None
) -> Launch:
    target, tile = conv.target, constants("convolve_strided_patches.cu")
    depth, height, width = target.extents
    strips = -(-width // tile["COLUMNS"])
    values = structure("convolve_strided_patches.cu", "ConvolveStridedPatches")(
        patches=at(PATCHES),
        weights=at(conv.weight),
        target=at(target.name),
        extents=_extents(conv),
        target_extents=target.extents,
        origin=conv.geometry.origin,
        limit=_limit(conv),
        border=border_of(conv.geometry.mode)[0],
        outputs=target.channels,
        strips=strips,
    )
    grid = strips * -(-height // tile["ROWS"]), -(-depth // tile["PLANES"]), target.batch
    name, block = "convolve_strided_patches", (tile["WARPS"] * 32, 1, 1)
    return Launch(name, f"{name}<{_outputs(target)}>", grid, block, 0, values)


KERNELS = (
    ConvKernel(
        "convolve_patches_wgmma",
        (
            _wgmma_instance(3, 32, 64),
            *(_wgmma_instance(7, n, columns) for n in (32, 64) for columns in WGMMA_COLUMNS),
        ),
        HALF,
        needs_wgmma=True,
        in_blocks=True,
        launch=_launch_wgmma,
        fits=_fits_wgmma,
        pack=_pack_wgmma,
        measures=True,
        rows=_wgmma_rows,
    ),
    ConvKernel(
        "convolve_patches",
        ("convolve_patches<16>", "convolve_patches<32>"),
        HALF,
        in_blocks=True,
        launch=_launch,
        fits=_fits,
        pack=_pack,
        measures=True,
    ),
    ConvKernel(
        "convolve_strided_patches",
        ("convolve_strided_patches<16>", "convolve_strided_patches<32>"),
        HALF,
        launch=_launch_strided,
        fits=_fits_strided,
        pack=_pack_strided,
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
