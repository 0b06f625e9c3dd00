"""Launches that move numbers: patches to a tensor and back, where no convolution does so itself,
and phases of a transposed convolution to voxels.
"""

from math import prod

from ..kernel_source import structure
from ..steps import AddPatches, Interleave, Pack, SumTaps, Unpack
from ..tensors import NUMBER_BYTES, PATCHES, TRANSLATED
from .launch import (
    BLOCK,
    OVERFLOW,
    Addresses,
    Launch,
    activation_argument,
    address_if_any,
    address_of,
    border_of,
    strides_of,
    table_addresses,
    vectors,
)
from .spec import KernelSpec


def pack(step: Pack, at: Addresses) -> Launch:
    """Return the launch that packs the patches."""
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


def sum_taps(step: SumTaps, at: Addresses) -> Launch:
    """Return the launch that sums over the taps of the last layer."""
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, BLOCK)
    first = step.patches.first * step.channels * depth + step.patches.plane
    values = structure("unpack.cu", "SumTaps")(
        source=at(source.name),
        bias=address_if_any(step.bias, at),
        translated=at(TRANSLATED) + first * height * width * 4,
        overflow=at(OVERFLOW),
        planes=source.extents[0],
        extents=step.extents,
        channels=step.channels,
        source_channels=source.channels,
        taps=step.taps,
        lane_width=step.lane_w,
        activation=activation_argument(step.activation, at),
    )
    outputs = threads - step.taps[1] + 1
    grid = -(-width // outputs), -(-height // 2), source.extents[0] * source.batch
    shared = 2 * step.lane_w * threads * 4
    return Launch("unpack", "sum_taps", grid, (threads, 1, 1), shared, values)


def unpack(step: Unpack, at: Addresses) -> Launch:
    """Return the launch that writes a tensor as translated patches."""
    view = step.source
    strides = strides_of(view.tensor)
    factor, summand, stride = table_addresses(step.table, at, step.source_channel)
    voxels = prod(view.extents)
    values = structure("unpack.cu", "Unpack")(
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
        extents=view.extents,
        count=step.count,
        channels=step.channels,
        activation=activation_argument(step.activation, at, step.source_channel),
    )
    grid = -(-voxels // BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (BLOCK, 1, 1), 0, values)


def add_patches(step: AddPatches, at: Addresses) -> Launch:
    """Return the launch that adds the patches to the translated ones."""
    count = step.patches.count * step.channels * prod(step.extents)
    values = structure("unpack.cu", "AddPatches")(
        patches=at(PATCHES), translated=at(TRANSLATED), count=count
    )
    return Launch("unpack", "add_patches", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values)


def interleave(step: Interleave, at: Addresses) -> Launch:
    """Return the launch that moves the phases of a transposed convolution to voxels."""
    source, target = step.source, step.target
    across = vectors(step.output.channels, target.precision)
    values = structure("interleave.cu", "Interleave")(
        source=at(source.name),
        target=address_of(step.output, at),
        source_strides=strides_of(source),
        target_strides=strides_of(target),
        extents=target.extents,
        stride=step.stride,
        origin=step.origin,
        channels=step.channels,
        vectors=across,
    )
    grid = -(-prod(target.extents) * across // BLOCK), target.batch, 1
    return Launch("interleave", "interleave", grid, (BLOCK, 1, 1), 0, values)


KERNELS = (
    KernelSpec("pack", in_blocks=True),
    KernelSpec("unpack", in_blocks=True),
    KernelSpec("interleave"),
)
