"""Launches that make translated patches of a tensor, where the last layer does not itself."""

from ctypes import Structure, c_int, c_longlong, c_void_p
from math import prod

from ..steps import AddPatches, SumTaps, Unpack
from ..tensors import PATCHES, TRANSLATED
from .launch import BLOCK, OVERFLOW, Addresses, Launch
from .tensor_arguments import (
    ActivationArguments,
    Three,
    Two,
    activation_of,
    address_of,
    strides_of,
    table_addresses,
)


class SumTapsArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("bias", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("planes", c_int),
        ("extents", Three),
        ("channels", c_int),
        ("source_channels", c_int),
        ("taps", Two),
        ("lane_width", c_int),
        ("activation", ActivationArguments),
    )


def sum_taps(step: SumTaps, at: Addresses) -> Launch:
    """The sum over the taps of the last layer."""
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, BLOCK)
    first = step.patches.first * step.channels * depth + step.patches.plane
    values = SumTapsArguments(
        source=at(source.name),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED) + first * height * width * 4,
        overflow=at(OVERFLOW),
        planes=source.extents[0],
        extents=Three(*step.extents),
        channels=step.channels,
        source_channels=source.channels,
        taps=Two(*step.taps),
        lane_width=step.lane_w,
        activation=activation_of(step.activation, at),
    )
    outputs = threads - step.taps[1] + 1
    grid = -(-width // outputs), -(-height // 2), source.extents[0] * source.batch
    shared = 2 * step.lane_w * threads * 4
    return Launch("unpack", "sum_taps", grid, (threads, 1, 1), shared, values)


class UnpackArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("source", c_void_p),
        ("factor", c_void_p),
        ("summand", c_void_p),
        ("translated", c_void_p),
        ("overflow", c_void_p),
        ("patch_stride", c_longlong),
        ("plane_stride", c_longlong),
        ("row_stride", c_longlong),
        ("voxel_stride", c_int),
        ("table_stride", c_int),
        ("extents", Three),
        ("count", c_int),
        ("channels", c_int),
        ("activation", ActivationArguments),
    )


def unpack(step: Unpack, at: Addresses) -> Launch:
    """A tensor as translated patches."""
    view = step.source
    strides = strides_of(view.tensor)
    factor, summand, stride = table_addresses(step.table, at, step.source_channel)
    voxels = prod(view.extents)
    values = UnpackArguments(
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
        extents=Three(*view.extents),
        count=step.count,
        channels=step.channels,
        activation=activation_of(step.activation, at, step.source_channel),
    )
    grid = -(-voxels // BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (BLOCK, 1, 1), 0, values)


class AddPatchesArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("patches", c_void_p),
        ("translated", c_void_p),
        ("count", c_longlong),
    )


def add_patches(step: AddPatches, at: Addresses) -> Launch:
    """The patches on top of what was made of them."""
    count = step.patches.count * step.channels * prod(step.extents)
    values = AddPatchesArguments(patches=at(PATCHES), translated=at(TRANSLATED), count=count)
    return Launch("unpack", "add_patches", (-(-count // BLOCK), 1, 1), (BLOCK, 1, 1), 0, values)
