"""Kernels of 3^3 convolutions, which loop over the planes of their input."""

import numpy as np

from ...network.layers import ONES, TWOS, FloatArray, Triple
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import Conv, Geometry
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

_RINGS = {32: (6, 1), 64: (5, 2), 128: (5, 2)}
"""Tiles and weight chunks in the shared memory of convolve_by_planes.cu, by the channels that it
reads.
"""
_MOST_PARTS = 2
"""Most prologue parts of the input of convolve_by_planes.cu."""

_BEGINNING, _BEGINNING_OF_STRIDED = 2.3, 1.2
"""Fixed cost of a depth loop, in planes; convolve_by_planes.cu begins with the halo of the loop's
ends and with latency.
"""
_STRIDED_CHANNELS = 32
"""Input channels of convolve_strided.cu. For 64 or 128 channels with stride 2, cuDNN and a pass
were always faster than a version of it.
"""


def _is_by_planes(conv: Conv, source: str, stride: Triple) -> bool:
    """Return whether a convolution meets the conditions that both kernels share."""
    return (
        bool(conv.views)
        and isinstance(conv.output, TensorView)
        and conv.output.is_whole
        and conv.geometry == Geometry((3, 3, 3), stride, ONES, ONES)
        and conv.outputs % constants(f"{source}.cu")["OUTPUTS"] == 0
    )


def _fits(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    return (
        _is_by_planes(conv, "convolve_by_planes", ONES)
        and conv.channels in _RINGS
        and len(conv.views) <= _MOST_PARTS
        and all(part.source.channels % 32 == 0 for part in conv.views)
        and all(part.activation.slope <= 1 for part in conv.views)
    )


def _fits_strided(conv: Conv, _gpu: GpuProperties, _in_blocks: bool) -> bool:
    if not _is_by_planes(conv, "convolve_strided", TWOS) or len(conv.views) != 1:
        return False
    [part] = conv.views
    is_read = part.source.is_whole and 0 <= part.activation.slope <= 1
    return is_read and conv.channels == _STRIDED_CHANNELS


def _pack(weight: FloatArray, slots: Slots, source: int) -> PackedWeight:
    """[K, C, 3, 3, 3] -> [K / 32, source / 32, 3, 3, 4, 96, 8]: second operands of m64n96k16.

    For 32 outputs and 32 channels, for each tap along H and W: the channels, and for them the
    outputs by the last tap along D, by the middle one, then by the first. Lane t of four gets
    columns 2 t and 2 t + 1 of each 8: those are 8 consecutive outputs.
    """
    outputs = weight.shape[0]
    shape = outputs // 32, source // 32, 3, 3, 4, 96, 8

    def packed(weight: WeightArray) -> WeightArray:
        filled = np.zeros((outputs, source, 3, 3, 3), weight.dtype)
        filled[:, slot_index(slots)] = weight[:, :, ::-1]
        split = filled.reshape(-1, 4, 4, 2, source // 32, 4, 8, 3, 3, 3)
        return split.transpose(0, 4, 8, 9, 5, 7, 2, 1, 3, 6).reshape(shape)

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


def _loops(conv: Conv, source: str, beginning: float, gpu: GpuProperties) -> tuple[Triple, int]:
    """Return the grid of loops over the planes of the target, and the planes of each."""
    tile, target = constants(f"{source}.cu"), conv.target
    parts = target.batch * target.channels // tile["OUTPUTS"]
    return PlaneTile(tile["HEIGHT"], tile["WIDTH"], beginning).loops(target.extents, parts, gpu)


def _launch(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name = "convolve_by_planes"
    tile, (boxes, held) = constants(f"{name}.cu"), _RINGS[conv.channels]
    grid, planes = _loops(conv, name, _BEGINNING, gpu)
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
    rings = boxes * (tile["BOX"] + 3 * BARRIER_BYTES) + held * (tile["CHUNK"] + BARRIER_BYTES)
    shared = rings + 2 * tile["WARPS"] * tile["OUTPUTS"] * MOMENTS_BYTES
    block = tile["THREADS"], 1, 1
    return Launch(name, _instance(conv.channels), grid, block, shared, values)


def _instance(channels: int) -> str:
    boxes, held = _RINGS[channels]
    return f"convolve_by_planes<{channels // 32}, {boxes}, {held}>"


def _launch_strided(conv: Conv, at: Addresses, gpu: GpuProperties, partials: int | None) -> Launch:
    name, [part] = "convolve_strided", conv.views
    source, target, tile = conv.source, conv.target, constants(f"{name}.cu")
    grid, planes = _loops(conv, name, _BEGINNING_OF_STRIDED, gpu)
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


def _cache_key(conv: Conv) -> str:
    target = conv.target
    read = [
        (part.source.channels, part.source.shuffled, part.table is not None) for part in conv.views
    ]
    parts = target.batch, target.extents, target.channels, conv.statistics is not None, read
    return f"convolution by planes, stride {conv.geometry.stride[0]}, {parts}"


KERNELS = (
    ConvKernel(
        "convolve_by_planes",
        tuple(map(_instance, _RINGS)),
        HALF,
        needs_wgmma=True,
        launch=_launch,
        fits=_fits,
        pack=_pack,
        measures=True,
        forms=("plain",),
        cache_key=_cache_key,
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
        cache_key=_cache_key,
    ),
)
"""Candidates in order: the first that fits a convolution computes it."""
