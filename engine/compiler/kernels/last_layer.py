"""Kernels of the last layer, which write the translated patches."""

from math import prod
from typing import Any

import numpy as np

from ...network.layers import ONES, Constant, FloatArray, Triple
from ...options import Precision
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, most_of, structure
from ..steps import IDENTITY, Conv, Geometry
from ..tensors import TRANSLATED, stored_channels
from ..weight_layout import PackedWeight, Slots, WeightArray, slot_index
from .launch import (
    BARRIER_BYTES,
    OVERFLOW,
    WARP,
    WGMMA_COLUMNS,
    Addresses,
    Launch,
    activation_argument,
    address_if_any,
    address_of,
    border_of,
    concurrent_loops,
    cpp,
    fastest_loop,
    most_shared,
    part_of,
    strides_of,
    vectors,
    wgmma_columns,
)
from .spec import HALF, ConvKernel

MOST_TAPS = 256
"""Most taps stored as channels: beyond that the packed tensor costs more than it saves."""

_MOST_NUMBERS = 2**31
"""Most elements of a patch's tensor that convolve_to_patches.cu can address."""

_LONGEST = 7
"""Largest kernel extent that convolve_to_patches.cu supports."""

_STAGES = {32: 16, 64: 6}
"""Rows in the shared memory of convolve_to_patches_wgmma.cu, by the channels that it reads."""

_NARROW, _NARROW_OF_BLOCKS = 64, 48
"""Columns up to which convolve_to_patches.cu is no slower than the wgmma kernel, for a patch and
for a block of a volume: 60 columns take 1.04 ms in place of 1.19 ms with wgmma at 256x256x180 on an
H200.
"""

_MOST_SUMMED = 4
"""Most output channels of convolve_voxels.cu."""

_ROWS_BEFORE, _CELLS_BEFORE = 6, 1  # rows that a loop reads before its first complete one
_VOXEL_BLOCKS = 6  # of convolve_voxels.cu for each multiprocessor, at most


def has_wide_kernel(geometry: Geometry, outputs: int, precision: Precision) -> bool:
    """Return whether storing a convolution's taps along H and W as output channels pays off."""
    plain = Geometry(
        geometry.kernel, before=geometry.before, after=geometry.after, mode=geometry.mode
    )
    taps = geometry.kernel[1] * stored_channels(geometry.kernel[2], precision)
    return geometry == plain and geometry.kernel[2] >= 5 and outputs * taps <= MOST_TAPS


def _is_wide_last_layer(conv: Conv, gpu: GpuProperties) -> bool:
    """Return whether a convolution meets the conditions that both wide kernels share."""
    geometry = conv.geometry
    return (
        conv.translated is not None
        and len(conv.views) == 1
        and has_wide_kernel(geometry, conv.outputs, conv.precision)
        and not isinstance(geometry.mode, Constant)
        and prod(conv.source.extents) * conv.source.channels < _MOST_NUMBERS
        and conv.channels % 32 == 0
        and max(geometry.kernel) <= _LONGEST
        and _shared(geometry.kernel, conv.channels) <= most_shared(gpu)
    )


def _fits_wgmma(conv: Conv, gpu: GpuProperties, in_blocks: bool) -> bool:
    if not _is_wide_last_layer(conv, gpu):
        return False
    [part] = conv.views
    return (
        conv.output.extents[2] > (_NARROW_OF_BLOCKS if in_blocks else _NARROW)
        and conv.channels in _STAGES
        and 0 <= part.activation.slope <= 1
        and not (part.source.shuffled and any(part.source.origin))
    )


def _fits(conv: Conv, gpu: GpuProperties, in_blocks: bool) -> bool:
    if not _is_wide_last_layer(conv, gpu):
        return False
    [part] = conv.views
    is_bare = part.table is None and part.activation == IDENTITY
    if in_blocks:  # where it must find all that it reads in its own block
        return is_bare and conv.reach.origin == (0, 0, 0)
    return is_bare and not (part.source.shuffled and any(part.source.origin))


def _fits_transposed(conv: Conv, gpu: GpuProperties, _in_blocks: bool) -> bool:
    geometry = Geometry((4, 4, 4), (2, 2, 2), ONES, ONES, transposed=True)
    most_parts = most_of("conv_transpose_to_patches.cu", "ConvTransposeToPatches", "parts")
    return (
        conv.translated is not None
        and conv.geometry == geometry
        and 1 <= len(conv.views) <= most_parts
        and conv.output.extents == tuple(2 * e for e in conv.views[0].source.extents)
        and all(part.source.channels % 32 == 0 for part in conv.views)
        and _transposed_shared(conv.channels) <= most_shared(gpu)
    )


def _fits_voxels(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    """Return whether a convolution sums over the channels of each voxel."""
    return (
        conv.translated is not None
        and conv.geometry == Geometry(ONES, dilation=conv.geometry.dilation)
        and len(conv.views) == 1
        and conv.views[0].source.is_whole
        and conv.source.scale is None
        and vectors(conv.channels, conv.precision) <= WARP
        and conv.outputs <= _MOST_SUMMED
    )


def _pack(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, kD, kH <= 7, kW <= 8] -> [K, kD, source / 32, 4, 2, 32, 8]: operands of m16n8k16.

    The 16 rows of an operand are the kernel columns of a pair of kernel rows, its depth half of 32
    channels: in step s, lane 4 n + t holds of column n the channels 8 t + 4 s to 8 t + 4 s + 3, two
    of the first kernel row, two of the second, and again.
    """
    outputs, _, depth, height, width = weight.shape
    shape = outputs, depth, source // 32, 4, 2, 32, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, depth, 8, 8), weight.dtype)
        filled[:, slot_index(slots), :, :height, :width] = weight
        split = filled.reshape(outputs, source // 32, 4, 2, 2, 2, depth, 4, 2, 8)
        return split.transpose(0, 6, 1, 7, 3, 9, 2, 4, 8, 5).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_wgmma(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, kD, kH <= 7, kW <= 8] -> [K, kD, source / 16, 2, 15, 8, 8]: operands of m64n*k16.

    For each kernel plane and half of 16 channels, chunks of 8 kernel columns and 8 channels follow
    each other: those of the kernel rows 0, 7, 6, ... 0, 7, ... 2, so that an operand of 8 rows may
    begin with any of them. Row 7 is 0.
    """
    outputs, _, depth, height, width = weight.shape
    shape = outputs, depth, source // 16, 2, 15, 8, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, depth, 8, 8), weight.dtype)
        filled[:, slot_index(slots), :, :height, :width] = weight
        turned = filled[:, :, :, -np.arange(15) % 8]
        split = turned.reshape(outputs, source // 16, 2, 8, depth, 15, 8)
        return split.transpose(0, 4, 1, 2, 5, 6, 3).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_transposed(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[C, K, 4, 4, 4] -> [K, 2, source / 32, 2, 2, 32, 8]: operands of m16n8k16.

    The convolution is transposed, of stride 2 and padding 1; its cells of 2^3 target voxels depend
    on 2^3 source voxels. Along each axis tap 2 f + p leads to voxel p of a cell, from the farther
    (f = 1) of the two, which comes first, or from the nearer. The operands are ordered by the
    source plane; its chunks of 32 channels; the source row, the nearer first; and half of the
    channels. The 16 rows of one are the cell's voxels, from the farther source voxel along W, then
    from the nearer: in step s, lane 4 n + t holds the channels 8 t + 4 s to 8 t + 4 s + 3 of voxel
    n, two from the farther, two from the nearer, and again.
    """
    outputs = weight.shape[1]
    shape = outputs, 2, source // 32, 2, 2, 32, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, 4, 4, 4), weight.dtype)
        filled[:, slot_index(slots)] = weight.transpose(1, 0, 2, 3, 4)
        split = filled.reshape(outputs, source // 32, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2)
        farther_first = split[:, :, :, :, :, :, ::-1, :, :, :, ::-1]
        return farther_first.transpose(0, 6, 1, 8, 3, 7, 9, 11, 2, 4, 10, 5).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_voxels(weight: FloatArray, slots: Slots, channels: int) -> PackedWeight:
    """[K, C, 1, 1, 1] -> [K, channels]."""
    shape = weight.shape[0], channels

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros(shape, weight.dtype)
        filled[:, slot_index(slots)] = weight.reshape(shape[0], -1)
        return filled

    return PackedWeight(weight, shape, packed)


def _launch(conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None) -> Launch:
    [part] = conv.views
    tile = constants("convolve_to_patches.cu")
    grid, fields = _row_loops(conv, at, gpu, tile["COLUMNS"], tile["PLANES"])
    values = structure("convolve_to_patches.cu", "ConvolveToPatches")(
        source=address_of(part.source, at),
        source_strides=strides_of(conv.source),
        channels=conv.channels,
        shuffled=part.source.shuffled,
        **fields,
    )
    name, shared = "convolve_to_patches", _shared(conv.geometry.kernel, conv.channels)
    kernel = f"{name}<{cpp(conv.geometry.mode == 'zero')}>"
    return Launch(name, kernel, grid, (tile["THREADS"], 1, 1), shared, values)


def _launch_wgmma(conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None) -> Launch:
    wide = wgmma_columns(conv.output.extents[2])
    grid, fields = _row_loops(conv, at, gpu, wide, _wgmma_planes(wide))
    values = structure("convolve_to_patches_wgmma.cu", "ConvolveActivatedToPatches")(
        part=part_of(conv.views[0], at), **fields
    )
    name, channels = "convolve_to_patches_wgmma", conv.channels
    block = constants("convolve_to_patches_wgmma.cu")["THREADS"], 1, 1
    kernel, shared = _wgmma_instance(channels, wide), _wgmma_shared(channels, wide)
    return Launch(name, kernel, grid, block, shared, values)


def _wgmma_instance(channels: int, columns: int) -> str:
    return f"convolve_to_patches_wgmma<{channels}, {columns}, {_STAGES[channels]}>"


def _row_loops(
    conv: Conv, at: Addresses, gpu: GpuProperties, wide: int, deep: int
) -> tuple[Triple, dict[str, Any]]:
    """Return the grid of blocks of `wide` columns and `deep` planes, and the fields both kernels
    share.
    """
    depth, height, width = conv.output.extents
    repeats = conv.batch * conv.outputs
    columns, planes = -(-width // wide), -(-depth // deep)
    loops, concurrent = columns * planes * repeats, gpu.multiprocessors
    rows = fastest_loop(height, loops, concurrent, _ROWS_BEFORE, range(1, height + 1))
    return (columns * -(-height // rows), planes, repeats), {
        **_translated(conv, at),
        "extents": conv.views[0].source.extents,
        "target_extents": conv.output.extents,
        "kernel": conv.geometry.kernel,
        "origin": conv.geometry.origin,
        "border": border_of(conv.geometry.mode)[0],
        "rows": rows,
        "outputs": conv.outputs,
    }


def _translated(conv: Conv, at: Addresses) -> dict[str, Any]:
    """Return the fields of all kernels that write the translated patches."""
    return {
        "weights": at(conv.weight),
        "bias": address_if_any(conv.bias, at),
        "translated": at(TRANSLATED),
        "overflow": at(OVERFLOW),
        "activation": activation_argument(conv.activation, at),
    }


def _shared(kernel: Triple, channels: int) -> int:
    """Return the bytes of shared memory of a block of convolve_to_patches.cu."""
    tile = constants("convolve_to_patches.cu")
    operands = kernel[0] * channels // tile["CHUNK"]
    sums = 2 * 8 * tile["PITCH"]
    return operands * 4 * 2 * 32 * 16 + tile["PLANES"] * (sums + operands + 2) * 4


def _wgmma_shared(channels: int, columns: int) -> int:
    tile, stages = constants("convolve_to_patches_wgmma.cu"), _STAGES[channels]
    weights = tile["KERNEL"] * channels // 16 * 2 * tile["TURNED"] * tile["PIECE"] * 2
    width = columns + tile["TAPS"]
    stored = stages * channels * width * 2
    sums = tile["GROUPS"] * 8 * (width + 4) * 4
    planes = _wgmma_planes(columns) + tile["KERNEL"] - 1
    return weights + stored + sums + 2 * BARRIER_BYTES * stages + 8 * planes + 4 * width


def _wgmma_planes(columns: int) -> int:
    """Return the target planes of a block of the last layer's wgmma kernel."""
    groups = constants("convolve_to_patches_wgmma.cu")["GROUPS"]
    return 2 * groups if columns == 64 else groups


def _launch_transposed(
    conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None
) -> Launch:
    depth, height, width = extents = conv.views[0].source.extents
    tile = constants("conv_transpose_to_patches.cu")
    strips = (depth + 1) * -(-(width + 1) // tile["CELLS"])
    blocks = -(-strips // tile["WARPS"])
    repeats = conv.batch * conv.outputs
    shared = _transposed_shared(conv.channels)
    loops, concurrent = blocks * repeats, concurrent_loops(gpu, shared)
    rows = fastest_loop(height + 1, loops, concurrent, _CELLS_BEFORE, range(1, height + 2))
    values = structure("conv_transpose_to_patches.cu", "ConvTransposeToPatches")(
        parts=tuple(part_of(part, at) for part in conv.views),
        extents=extents,
        rows=rows,
        outputs=conv.outputs,
        **_translated(conv, at),
    )
    name = "conv_transpose_to_patches"
    grid = blocks, -(-(height + 1) // rows), repeats
    return Launch(name, name, grid, (tile["WARPS"] * 32, 1, 1), shared, values)


def _transposed_shared(channels: int) -> int:
    """Return the bytes of shared memory of a block of conv_transpose_to_patches.cu."""
    return 2 * channels // 32 * 4 * 32 * 16 + 2 * channels * 4


def _launch_voxels(conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None) -> Launch:
    tensor = conv.source
    voxels = prod(tensor.extents)
    values = structure("convolve_voxels.cu", "ConvolveVoxels")(
        part=part_of(conv.views[0], at), voxels=voxels, **_translated(conv, at)
    )
    # Lanes of a warp that share a voxel, of which each has a vector at most.
    lanes = 1 << (vectors(tensor.channels, tensor.precision) - 1).bit_length()
    tile = constants("convolve_voxels.cu")
    voxels_each = tile["THREADS"] // lanes
    blocks = min(-(-voxels // (tile["AT_ONCE"] * voxels_each)), _VOXEL_BLOCKS * gpu.multiprocessors)
    name = "convolve_voxels"
    grid, block = (blocks, tensor.batch, 1), (lanes, voxels_each, 1)
    return Launch(name, f"{name}<{conv.outputs}>", grid, block, 0, values)


KERNELS = (
    ConvKernel(
        "convolve_to_patches_wgmma",
        tuple(_wgmma_instance(channels, n) for channels in _STAGES for n in WGMMA_COLUMNS),
        HALF,
        needs_wgmma=True,
        in_blocks=True,
        launch=_launch_wgmma,
        fits=_fits_wgmma,
        pack=_pack_wgmma,
        finds_blocks=True,
    ),
    ConvKernel(
        "convolve_to_patches",
        ("convolve_to_patches<false>", "convolve_to_patches<true>"),
        HALF,
        in_blocks=True,
        launch=_launch,
        fits=_fits,
        pack=_pack,
    ),
    ConvKernel(
        "conv_transpose_to_patches",
        precisions=HALF,
        launch=_launch_transposed,
        fits=_fits_transposed,
        pack=_pack_transposed,
    ),
    ConvKernel(
        "convolve_voxels",
        tuple(f"convolve_voxels<{n}>" for n in range(1, _MOST_SUMMED + 1)),
        launch=_launch_voxels,
        fits=_fits_voxels,
        pack=_pack_voxels,
        has_float_weight=True,
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
