"""Launches that make translated patches of a tensor, where the last layer does not itself."""

from math import prod

from ..kernel_source import structure
from ..steps import AddPatches, SumTaps, Unpack
from ..tensors import PATCHES, TRANSLATED
from .launch import BLOCK, OVERFLOW, Addresses, Launch
from .tensor_arguments import (
    activation_of,
    address_of,
    strides_of,
    table_addresses,
)


def sum_taps(step: SumTaps, at: Addresses) -> Launch:
    """The sum over the taps of the last layer."""
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, BLOCK)
    first = step.patches.first * step.channels * depth + step.patches.plane
    values = structure("unpack.cu", "SumTaps")(
        source=at(source.name),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED) + first * height * width * 4,
        overflow=at(OVERFLOW),
        planes=source.extents[0],
        extents=step.extents,
        channels=step.channels,
        source_channels=source.channels,
        taps=step.taps,
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
        activation=activation_of(step.activation, at, step.source_channel),
    )
    grid = -(-voxels // BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (BLOCK, 1, 1), 0, values)


def add_patches(step: AddPatches, at: Addresses) -> Launch:
    """The patches on top of what was made of them."""
    count = step.patches.count * step.channels * prod(step.extents)
    values = structure("unpack.cu", "AddPatches")(
        patches=at(PATCHES), translated=at(TRANSLATED), count=count
    )
    return Launch("unpack", "add_patches", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values)
