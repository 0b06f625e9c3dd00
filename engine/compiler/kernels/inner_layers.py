"""Kernels of inner layers: 3^3, 1 x 3 x 3 and 5^3 convolutions, which loop over the planes of their
input, and transposed convolutions of stride 2, whose output is space-to-depth cells of 2^3 voxels.
"""

from itertools import product, starmap

import numpy as np

from ...network.layers import ONES, TWOS, FloatArray, Triple, triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, most_of, structure
from ..steps import IDENTITY, Conv, Geometry
from ..tensors import TensorView
from ..weight_layout import PackedWeight, Slots, WeightArray, slot_index
from .launch import (
    BARRIER_BYTES,
    MOMENTS_BYTES,
    WARP_MOMENTS_BYTES,
    Addresses,
    Launch,
    PlaneTile,
    part_of,
    strides_of,
    table_addresses,
)
from .spec import HALF, ConvKernel

_PLANE_RINGS = {32: 6, 64: 5}
"""Tiles in the shared memory of convolve_by_planes.cu, by the channels that it reads."""

_BEGINNING, _BEGINNING_OF_FLAT = 2.3, 1.0
_BEGINNING_OF_FIVE, _BEGINNING_OF_STRIDED = 1.0, 1.2
"""Fixed cost of a depth loop, in planes; convolve_by_planes.cu begins with the halo of the loop's
ends, if its kernel has three planes, and with latency. In that of convolve_five_planes.cu, products
with fewer planes are less efficient; the number is a guess, as that of a kernel of one plane.
"""
_STRIDED_CHANNELS = 32
"""Input channels of convolve_strided.cu. For 64 or 128 channels with stride 2, cuDNN and a pass
were always faster than a version of it.
"""

_CELL_RINGS = {64: (6, 8), 128: (8, 5)}
"""Tiles and pipeline stages of weights in the shared memory of conv_transpose_to_cells.cu, by the
channels that it reads.
"""
_CELL_OUTPUTS = (32, 64)
"""Output channels per block; the output channels of a layer are a multiple of the first."""

_WORTH = 0.72  # share of the voxels that tiles compute which the target needs, for a kernel to pay


_FLAT, _THREE, _FIVE = (1, 3, 3), (3, 3, 3), (5, 5, 5)


def _is_by_planes(conv: Conv, source: str, kernel: Triple, stride: Triple) -> bool:
    """Return whether a convolution meets the conditions that all of these kernels share."""
    border = triple(edge // 2 for edge in kernel)
    return (
        bool(conv.views)
        and isinstance(conv.output, TensorView)
        and conv.output.is_whole
        and conv.geometry == Geometry(kernel, stride, border, border)
        and conv.outputs % constants(f"{source}.cu")["OUTPUTS"] == 0
    )


def _fits_planes(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    kernel = conv.geometry.kernel
    return (
        kernel in (_FLAT, _THREE)
        and _is_by_planes(conv, "convolve_by_planes", kernel, ONES)
        and conv.channels in _PLANE_RINGS
        and _are_parts(conv)
    )


def _fits_five_planes(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    return (
        _is_by_planes(conv, "convolve_five_planes", _FIVE, ONES)
        and _are_parts(conv)
        and _fills_five_planes(conv)
    )


def _fills_five_planes(conv: Conv) -> bool:
    """Return whether enough of the computed voxels are in the target for the kernel to pay off.

    On an H200, 2026-11-30, a V-Net of 64^3 whose layers of 16^3 and less took it, too, needed 2.17
    ms, and 1.32 ms once the search had found cuDNN to be faster for these.
    """
    tile = constants("convolve_five_planes.cu")
    return _fills(PlaneTile(tile["HEIGHT"], tile["WIDTH"], _BEGINNING_OF_FIVE), conv)


def _are_parts(conv: Conv) -> bool:
    """Return whether a kernel that normalises its input can read all views."""
    return (
        len(conv.views) <= most_of("convolve_by_planes.cu", "ConvolveByPlanes", "parts")
        and all(part.source.channels % 32 == 0 for part in conv.views)
        and all(part.activation.slope <= 1 for part in conv.views)
    )


def _fits_strided(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    if not _is_by_planes(conv, "convolve_strided", _THREE, TWOS) or len(conv.views) != 1:
        return False
    [part] = conv.views
    is_read = part.source.is_whole and 0 <= part.activation.slope <= 1
    return is_read and conv.channels == _STRIDED_CHANNELS


def _pack_planes(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, 3 or 1, 3, 3] -> [K / 32, source / 32, 3, 3, 4, 96, 8]: second operands of m64n96k16.

    For 32 outputs and 32 channels, for each tap along H and W: the channels, and for them the
    outputs by the last tap along D, by the middle one, then by the first; those of a single plane
    stand in the middle. Lane t of four gets columns 2 t and 2 t + 1 of each 8: those are 8
    consecutive outputs.
    """
    outputs = weight.shape[0]
    shape = outputs // 32, source // 32, 3, 3, 4, 96, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, 3, 3, 3), weight.dtype)
        planes = slice(None) if weight.shape[2] == 3 else slice(1, 2)
        filled[:, slot_index(slots), planes] = weight[:, :, ::-1]
        split = filled.reshape(-1, 4, 4, 2, source // 32, 4, 8, 3, 3, 3)
        return split.transpose(0, 4, 8, 9, 5, 7, 2, 1, 3, 6).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_five_planes(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, 5, 5, 5] -> [K / 32, source / 32, 5, 2, 5, 2, 160, 8]: second operands of m64n160k16.

    For 32 outputs and 32 channels, for each tap along W, 16 channels and each tap along H: the
    channels, and for them the columns, in the order of `_pack_planes`.
    """
    outputs = weight.shape[0]
    shape = outputs // 32, source // 32, 5, 2, 5, 2, 160, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, *_FIVE), weight.dtype)
        filled[:, slot_index(slots)] = weight[:, :, ::-1]
        split = filled.reshape(-1, 4, 4, 2, source // 32, 2, 2, 8, *_FIVE)
        return split.transpose(0, 4, 10, 5, 9, 6, 8, 2, 1, 3, 7).reshape(shape)

    return PackedWeight(weight, shape, packed)


def _pack_strided(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, 3, 3, 3] -> [K / 64, source / 16, 3, 9, 2, 64, 8]: first operands of m64n128k16.

    For each 64 outputs and 16 source channels, the operands of the taps, by the kernel's planes.
    """
    outputs, chunks = weight.shape[0], source // 16
    shape = outputs // 64, chunks, 3, 9, 2, 64, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, 3, 3, 3), weight.dtype)
        filled[:, slot_index(slots)] = weight
        split = filled.reshape(-1, 64, chunks, 2, 8, 3, 9)
        return np.ascontiguousarray(split.transpose(0, 2, 5, 6, 3, 1, 4))

    return PackedWeight(weight, shape, packed)


def _plane_loops(
    conv: Conv, source: str, beginning: float, gpu: GpuProperties
) -> tuple[Triple, int]:
    """Return the grid of loops over the planes of the target, and the planes of each."""
    tile, target = constants(f"{source}.cu"), conv.target
    parts = target.batch * target.channels // tile["OUTPUTS"]
    return PlaneTile(tile["HEIGHT"], tile["WIDTH"], beginning).loops(target.extents, parts, gpu)


def _launch_planes(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name = "convolve_by_planes"
    tile, boxes, chunks = constants(f"{name}.cu"), _PLANE_RINGS[conv.channels], conv.channels // 32
    is_flat = conv.geometry.kernel == _FLAT
    grid, planes = _plane_loops(conv, name, _BEGINNING_OF_FLAT if is_flat else _BEGINNING, gpu)
    values = structure(f"{name}.cu", "ConvolveByPlanes")(
        parts=tuple(part_of(part, at) for part in conv.views),
        weights=at(conv.weight),
        target=at(conv.target.name),
        partials=partials,
        target_strides=strides_of(conv.target),
        extents=conv.target.extents,
        outputs=conv.outputs,
        planes=planes,
    )
    rings = boxes * (tile["BOX"] + 3 * BARRIER_BYTES) + chunks * (tile["CHUNK"] + BARRIER_BYTES)
    shared = rings + 2 * tile["WARPS"] * tile["OUTPUTS"] * MOMENTS_BYTES
    block = tile["THREADS"], 1, 1
    kernel = _planes_instance(conv.channels, 0 if is_flat else 1)
    return Launch(name, kernel, grid, block, shared, values)


def _planes_instance(channels: int, border: int) -> str:
    return f"convolve_by_planes<{channels // 32}, {_PLANE_RINGS[channels]}, {border}>"


def _launch_five_planes(
    conv: Conv, at: Addresses, gpu: GpuProperties, _partials: int | None
) -> Launch:
    name = "convolve_five_planes"
    tile = constants(f"{name}.cu")
    grid, planes = _plane_loops(conv, name, _BEGINNING_OF_FIVE, gpu)
    values = structure(f"{name}.cu", "ConvolveFivePlanes")(
        parts=tuple(part_of(part, at) for part in conv.views),
        weights=at(conv.weight),
        target=at(conv.target.name),
        target_strides=strides_of(conv.target),
        extents=conv.target.extents,
        outputs=conv.outputs,
        channels=conv.channels,
        planes=planes,
    )
    boxes, stages = tile["BOXES"], tile["STAGES"]
    shared = boxes * tile["BOX"] + stages * tile["STAGE"] + 2 * (boxes + stages) * BARRIER_BYTES
    return Launch(name, name, grid, (tile["THREADS"], 1, 1), shared, values)


def _launch_strided(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name, [part] = "convolve_strided", conv.views
    source, target, tile = conv.source, conv.target, constants(f"{name}.cu")
    grid, planes = _plane_loops(conv, name, _BEGINNING_OF_STRIDED, gpu)
    factor, summand, stride = table_addresses(part.table, at)
    values = structure(f"{name}.cu", "ConvolveStrided")(
        source=at(source.name),
        weights=at(conv.weight),
        target=at(target.name),
        partials=partials,
        factor=factor,
        summand=summand,
        table_stride=stride,
        slope=part.activation.slope,
        source_extents=source.extents,
        extents=target.extents,
        outputs=conv.outputs,
        planes=planes,
    )
    boxes, stages, scales = tile["BOXES"], tile["STAGES"], 2 * source.channels * 4
    barriers = BARRIER_BYTES * (3 * boxes + stages)
    rings = boxes * tile["BOX"] + stages * tile["STAGE"] + 2 * tile["STAGED"]
    shared = rings + scales + WARP_MOMENTS_BYTES + barriers
    block = tile["THREADS"], 1, 1
    return Launch(name, f"{name}_{conv.channels}", grid, block, shared, values)


def _doubles(conv: Conv) -> bool:
    """Return whether a convolution reads one view and doubles the voxels along each axis.

    In blocks of a volume, its source has one voxel more, after those of the cells.
    """
    return (
        isinstance(conv.output, TensorView)
        and conv.output.shuffled
        and conv.output.extents == tuple(2 * extent for extent in conv.target.extents)
        and len(conv.views) == 1
        and conv.outputs % _CELL_OUTPUTS[0] == 0
    )


def _fits_cells(conv: Conv, _gpu: GpuProperties, in_blocks: bool) -> bool:
    if not _doubles(conv):
        return False
    [part] = conv.views
    after = 1 if in_blocks else 0
    return (
        conv.geometry == Geometry(_THREE, TWOS, ONES, ONES, transposed=True)
        and part.table is None
        and part.activation == IDENTITY
        and part.source.is_whole
        and conv.source.extents == tuple(extent + after for extent in conv.target.extents)
        and conv.channels in _CELL_RINGS
    )


def _outputs_of_product(outputs: int) -> int:
    """Return how many of the outputs a product of 64 rows computes."""
    return 64 if outputs % 64 == 0 else 32


def _pack_cells(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[C, K, 3, 3, 3] -> [K / n, stages, 3, 4, 64, 8]: first operands of m64n128k16.

    The convolution is transposed, of stride 2, padding 1 and output padding 1; its cells of 2^3
    target voxels depend on 2^3 source voxels. n is `_outputs_of_product` of K. The stages are
    ordered by the cell's two planes; with n = 64, by its two rows; by the source planes that these
    depend on; by 32 source channels; and by the source rows. The three operands of a stage lead
    from the first source voxel of a row to the first of the cell's row, to the second, and from the
    second to the second. Their 64 rows are the n outputs, with n = 32 of the cell's first row, then
    its second.
    """
    outputs = weight.shape[1]
    each, chunks = _outputs_of_product(outputs), source // 32
    rows = (0, 1) if each == 64 else (None,)
    order = [
        (upper, below, plane, chunk, row)
        for upper, below in product(range(2), rows)
        for plane, chunk in product(range(upper + 1), range(chunks))
        for row in range(2 if below is None else below + 1)
    ]
    shape = outputs // each, len(order), 3, 4, 64, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, 3, 3, 3), weight.dtype)
        filled[:, slot_index(slots)] = weight.transpose(1, 0, 2, 3, 4)
        split = filled.reshape(-1, each, chunks, 4, 8, 3, 3, 3)
        operands = np.zeros((*shape[:3], 4, 64 // each, each, 8), weight.dtype)
        for stage, (upper, below, plane, chunk, row) in enumerate(order):
            cell_rows = (below,) if below is not None else (0, 1)
            for number, own_row in enumerate(cell_rows):
                for operand, (right, column) in enumerate(((0, 0), (1, 0), (1, 1))):
                    taps = [_tap(upper, plane), _tap(own_row, row), _tap(right, column)]
                    if None not in taps:
                        tap = split[:, :, chunk, :, :, taps[0], taps[1], taps[2]]
                        operands[:, stage, operand, :, number] = tap.transpose(0, 2, 1, 3)
        return operands.reshape(shape)

    return PackedWeight(weight, shape, packed)


def _tap(parity: int, offset: int) -> int | None:
    """Return the tap of 3, padding 1, that leads from source voxel i + offset to 2 i + parity."""
    tap = parity + 1 - 2 * offset
    return tap if tap >= 0 else None


def _cells_tile() -> PlaneTile:
    side = constants("conv_transpose_to_cells.cu")["SIDE"]
    return PlaneTile(side, side, beginning=0.4)


def _fills_cells(conv: Conv) -> bool:
    """Return whether enough of the computed cells are in the target for the kernel to pay off."""
    return _fills(_cells_tile(), conv)


def _fills(tile: PlaneTile, conv: Conv) -> bool:
    _, height, width = extents = conv.target.extents
    return height * width >= _WORTH * tile.count(extents) * tile.height * tile.width


def _launch_cells(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    tensor, outputs = conv.target, _outputs_of_product(conv.outputs)
    tile, (boxes, stages) = constants("conv_transpose_to_cells.cu"), _CELL_RINGS[conv.channels]
    grid, planes = _cells_tile().loops(tensor.extents, conv.batch * conv.outputs // outputs, gpu)
    values = structure("conv_transpose_to_cells.cu", "ConvTransposeToCells")(
        source=at(conv.source.name),
        weights=at(conv.weight),
        target=at(tensor.name),
        partials=partials,
        target_strides=strides_of(tensor),
        source_extents=conv.source.extents,
        cells=tensor.extents,
        outputs=conv.outputs,
        planes=planes,
    )
    rings = boxes * tile["BOX"] + stages * tile["STAGE"]
    barriers = BARRIER_BYTES * (2 * (boxes + stages) + 1)
    shared = rings + 2 * tile["STAGED"] + WARP_MOMENTS_BYTES + barriers
    kernel, block = _cells_instance(conv.channels, outputs), (tile["THREADS"], 1, 1)
    return Launch("conv_transpose_to_cells", kernel, grid, block, shared, values)


def _cells_instance(channels: int, outputs: int) -> str:
    boxes, stages = _CELL_RINGS[channels]
    return f"conv_transpose_to_cells<{channels}, {outputs}, {boxes}, {stages}>"


KERNELS = (
    ConvKernel(
        "convolve_by_planes",
        tuple(starmap(_planes_instance, product(_PLANE_RINGS, (1, 0)))),
        HALF,
        needs_wgmma=True,
        launch=_launch_planes,
        fits=_fits_planes,
        pack=_pack_planes,
        measures=True,
        forms=("plain",),
    ),
    ConvKernel(
        "convolve_five_planes",
        precisions=HALF,
        needs_wgmma=True,
        launch=_launch_five_planes,
        fits=_fits_five_planes,
        pack=_pack_five_planes,
        forms=("plain",),
    ),
    ConvKernel(
        "convolve_strided",
        precisions=HALF,
        needs_wgmma=True,
        in_blocks=True,
        launch=_launch_strided,
        fits=_fits_strided,
        pack=_pack_strided,
        measures=True,
        finds_blocks=True,
        forms=("plain",),
    ),
    ConvKernel(
        "conv_transpose_to_cells",
        tuple(
            _cells_instance(channels, outputs)
            for channels in _CELL_RINGS
            for outputs in _CELL_OUTPUTS
        ),
        HALF,
        needs_wgmma=True,
        in_blocks=True,
        launch=_launch_cells,
        fits=_fits_cells,
        pack=_pack_cells,
        measures=True,
        forms=("gradient", "subpixel"),
        pays=_fills_cells,
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
