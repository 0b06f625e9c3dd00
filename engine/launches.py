"""From a step to the kernel that does it: its grid, its block and its arguments."""

from ctypes import Structure
from dataclasses import dataclass
from math import prod
from typing import Protocol

from . import kernel_arguments as arguments
from .graph import Triple
from .steps import (
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    VECTOR_BYTES,
    Activation,
    Convolve,
    ConvolvePatches,
    ConvolveToPatches,
    Pack,
    Pointwise,
    Precision,
    Statistics,
    Step,
    SumTaps,
    Table,
    Tensor,
    Unpack,
    View,
)

_BLOCK = 256
_CHUNKS = 528
"""Blocks that a pass of statistics is spread over: four for each multiprocessor of an H200."""

_EACH = 16  # voxels that a thread measures at least
_CONCLUDED, _PARTS = 16, 64  # channels of a block that joins partial sums, and threads for each

MOST_SHARED = 99 << 10
"""Bytes of shared memory that a block can have on every card with matrix units of m16n8k16."""

_RING, _COLUMNS, _PITCH = 8, 128, 144  # of convolve_patches.cu
_PLANES, _PARTS_OF_PLANE = 2, 6  # of convolve_to_patches.cu
_MULTIPROCESSORS = 132
_DEEP_BLOCKS = 256  # blocks that walk through the depth: one or two for each multiprocessor
_ROW_BLOCKS = 4224
_WIDE_BLOCK, _AT_ONCE = 320, 2  # of pointwise.cu: threads, and voxels that each reads at once
_BORDERS = {"reflect": 0, "replicate": 1, "zero": 2}

OVERFLOW = "overflow"
"""Name of the int32 that is not 0 once a result was not finite."""


class Addresses(Protocol):
    """Where the memory of a program lies."""

    def __call__(self, name: str) -> int:
        """Device address of a tensor, table, constant, or one of the names above."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch; source names the .cu file."""

    source: str
    kernel: str
    grid: Triple
    block: Triple
    shared: int
    arguments: Structure


def scratch_bytes(step: Statistics) -> int:
    """Bytes of the partial sums between the two kernels of a normalisation's statistics."""
    tensor = step.source.tensor
    return tensor.batch * _chunks(step)[0] * tensor.channels * 8


def launches(step: Step, at: Addresses, scratch: int = 0) -> list[Launch]:
    """The kernels of a step that is not cuDNN's; scratch: address of its partial sums."""
    match step:
        case Pack():
            return [_pack(step, at)]
        case ConvolvePatches():
            return [_convolve_patches(step, at)]
        case ConvolveToPatches():
            return [_convolve_to_patches(step, at)]
        case Statistics():
            return _statistics(step, at, scratch)
        case Pointwise():
            return [_pointwise(step, at)]
        case SumTaps():
            return [_sum_taps(step, at)]
        case Unpack():
            return [_unpack(step, at)]
        case Convolve():
            return [_convolve(step, at)]


def _vectors(channels: int, precision: Precision) -> int:
    return channels * NUMBER_BYTES[precision] // VECTOR_BYTES


def _block(channels: int, precision: Precision) -> tuple[int, int]:
    """Threads of a block along the channels, and beside each other."""
    across = min(_vectors(channels, precision), 32)
    return across, _BLOCK // across


def _strides(tensor: Tensor) -> arguments.Strides:
    _, height, width = tensor.extents
    row = width * tensor.channels
    return arguments.Strides(tensor.extents[0] * height * row, height * row, row, tensor.channels)


def _address(view: View, at: Addresses, channel: int = 0) -> int:
    """Address of a view's first voxel; of its tensor's where it is shuffled."""
    strides = _strides(view.tensor)
    depth, height, width = view.origin
    first = depth * strides.plane + height * strides.row + width * strides.voxel + channel
    return at(view.tensor.name) + first * NUMBER_BYTES[view.tensor.precision]


def _activation(activation: Activation) -> arguments.Activation:
    return arguments.Activation(activation.slope, activation.tanh)


def _table(
    table: Table | None, at: Addresses, channel: int = 0
) -> tuple[int | None, int | None, int]:
    """Addresses of the factors and summands, and floats from one patch to the next."""
    if table is None:
        return None, None, 0
    factors = at(table.name) + 4 * channel
    return factors, factors + table.bytes // 2, table.channels if table.patches > 1 else 0


def _chunks(step: Statistics) -> tuple[int, int]:
    """How many chunks a patch is measured in, and the voxels of each."""
    tensor = step.source.tensor
    across, beside = _block(tensor.channels, tensor.precision)
    columns = -(-_vectors(tensor.channels, tensor.precision) // across)
    voxels = prod(tensor.extents if step.source.shuffled else step.source.extents)
    most = max(1, _CHUNKS // (columns * tensor.batch))
    chunk = max(-(-voxels // most), _EACH * beside)
    return -(-voxels // chunk), chunk


def _statistics(step: Statistics, at: Addresses, scratch: int) -> list[Launch]:
    view, tensor = step.source, step.source.tensor
    extents = tensor.extents if view.shuffled else view.extents
    strides = _strides(tensor)
    across, beside = _block(tensor.channels, tensor.precision)
    columns = -(-_vectors(tensor.channels, tensor.precision) // across)
    chunks, chunk = _chunks(step)
    voxels = prod(extents)
    measure = arguments.Measure(
        _address(view, at),
        scratch,
        strides.patch,
        strides.plane,
        strides.row,
        extents[1],
        extents[2],
        voxels,
        tensor.channels,
        extents == tensor.extents,
        chunk,
    )
    lanes = VECTOR_BYTES // NUMBER_BYTES[tensor.precision]
    shared = beside * (across * lanes * 8 + 4)
    groups = 8 if view.shuffled else 1
    conclude = arguments.Conclude(
        scratch,
        at(step.target.name),
        at(step.scale) if step.scale else None,
        at(step.shift) if step.shift else None,
        tensor.batch,
        tensor.channels,
        groups,
        chunks,
        chunk,
        voxels,
        step.epsilon,
    )
    blocks = -(-view.channels // _CONCLUDED)
    return [
        Launch(
            "statistics",
            "measure",
            (chunks, columns, tensor.batch),
            (across, beside, 1),
            shared,
            measure,
        ),
        Launch(
            "statistics",
            "conclude",
            (blocks, tensor.batch, 1),
            (_CONCLUDED, _PARTS, 1),
            12 * _CONCLUDED * _PARTS,
            conclude,
        ),
    ]


def _pointwise(step: Pointwise, at: Addresses) -> Launch:
    view, target = step.source, step.target
    across, beside = _block(view.channels, target.precision)
    columns = -(-_vectors(view.channels, target.precision) // across)
    beside = _columns(across, target.extents[2])
    rows = target.extents[0] * target.extents[1]
    per_block = -(-rows // _ROW_BLOCKS)
    size, first = NUMBER_BYTES[target.precision], step.patches.first
    factor, summand, stride = _table(step.table, at)
    residual, beside_it = None, arguments.Strides()
    if step.residual is not None:
        beside_it = _strides(step.residual.tensor)
        residual = _address(step.residual, at) + first * beside_it.patch * size
    sampling = step.sampling
    kernel = "pointwise" if step.residual is None else "pointwise_residual"
    if sampling is not None:
        kernel = "pointwise" + f"_{sampling.mode}" + ("_corners" if sampling.align_corners else "")
    source = _strides(view.tensor)
    values = arguments.Pointwise(
        _address(view, at) + first * source.patch * size,
        residual,
        at(target.name) + step.first_channel * size,
        factor and factor + first * stride * 4,
        summand and summand + first * stride * 4,
        source,
        beside_it,
        _strides(target),
        view.channels,
        stride,
        step.table.channels if step.table else view.channels,
        arguments.Three(*view.extents),
        arguments.Three(*step.extents),
        arguments.Three(*target.extents),
        arguments.Three(*step.origin),
        arguments.Three(*(sampling.factor if sampling else (1, 1, 1))),
        _BORDERS[step.mode],
        view.shuffled,
        per_block,
        _activation(step.activation),
    )
    grid = -(-rows // per_block), columns, step.patches.count
    return Launch("pointwise", kernel, grid, (across, beside, 1), 0, values)


def _columns(across: int, width: int) -> int:
    """Columns of a block such that whole blocks cover a row with little to spare."""
    turns = 1
    while (columns := -(-width // (_AT_ONCE * turns))) * across > _WIDE_BLOCK:
        turns += 1
    return max(columns, 64 // across)


def _pack(step: Pack, at: Addresses) -> Launch:
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
        _BORDERS[step.mode],
        columns,
        span,
    )
    grid = -(-width // columns), height, depth * step.patches.count
    shared = 4 * target.channels + lines * span * size
    return Launch("pack", "pack", grid, (_BLOCK, 1, 1), shared, values)


def _convolve_patches(step: ConvolvePatches, at: Addresses) -> Launch:
    target = step.target
    depth, height, width = target.extents
    steps = -(-step.channels * step.kernel[0] * step.kernel[1] // 2)
    outputs = 32 if target.channels % 32 == 0 else 16
    weights = steps * outputs * 32 + 16 * (steps + 1)
    line = step.channels * _RING * 2 * _PITCH * NUMBER_BYTES[target.precision]
    border = step.kernel[1] - 1
    rows = next(r for r in (8, 4, 2, 1) if weights + (r + border) * line <= MOST_SHARED or r == 1)
    blocks = -(-width // _COLUMNS) * -(-height // rows)
    together = blocks * target.batch * target.channels // outputs
    planes = max(4, -(-depth * together // _DEEP_BLOCKS))
    sizes = zip(target.extents, step.kernel, step.origin, strict=True)
    limit = [extent + kernel - 1 + origin for extent, kernel, origin in sizes]
    values = arguments.ConvolvePatches(
        at(PATCHES),
        at(step.weight),
        at(target.name),
        step.channels,
        arguments.Three(*step.extents),
        arguments.Three(*target.extents),
        arguments.Two(*step.kernel[:2]),
        arguments.Three(*step.origin),
        arguments.Three(*limit),
        _BORDERS[step.mode],
        steps,
        target.channels,
        rows,
        planes,
    )
    grid = blocks, -(-depth // planes), target.batch * target.channels // outputs
    name = f"convolve_patches_{outputs}"
    shared = weights + (rows + border) * line
    return Launch("convolve_patches", name, grid, (_BLOCK, 1, 1), shared, values)


def _convolve_to_patches(step: ConvolveToPatches, at: Addresses) -> Launch:
    view = step.source
    depth, height, width = step.extents
    values = arguments.ConvolveToPatches(
        _address(view, at),
        at(step.weight),
        at(step.bias) if step.bias else None,
        at(TRANSLATED),
        at(OVERFLOW),
        _strides(view.tensor),
        view.channels,
        arguments.Three(*view.extents),
        arguments.Three(*step.extents),
        arguments.Three(*step.kernel),
        arguments.Three(*step.origin),
        _BORDERS[step.mode],
        view.shuffled,
        0,
        step.channels,
        _activation(step.activation),
    )
    repeats = view.tensor.batch * step.channels
    columns, planes = -(-width // _COLUMNS), -(-depth // _PLANES)

    def cost(rows: int) -> tuple[int, int]:
        waves = -(-columns * planes * repeats * -(-height // rows) // _MULTIPROCESSORS)
        return waves * (rows + 6), rows

    values.rows = rows = min(range(1, height + 1), key=cost)
    grid = columns * -(-height // rows), planes, repeats
    shared = last_layer_shared(step.kernel, view.channels)
    name = "convolve_to_patches"
    return Launch(name, name, grid, (_PLANES * _PARTS_OF_PLANE * 32, 1, 1), shared, values)


def last_layer_shared(kernel: Triple, channels: int) -> int:
    """Bytes of shared memory that a block of the last layer's kernel takes."""
    chunks = channels // 32
    return kernel[0] * chunks * 4 * 2 * 32 * 16 + 2 * _PLANES * 8 * 148 * 4


def _span(step: Pack, columns: int) -> int:
    return (columns - 1) * step.stride[1] + step.taps[1]


def _sum_taps(step: SumTaps, at: Addresses) -> Launch:
    source = step.source
    depth, height, width = step.extents
    threads = min(-(-source.extents[2] // 32) * 32, _BLOCK)
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
        _activation(step.activation),
    )
    outputs = threads - step.taps[1] + 1
    grid = -(-width // outputs), -(-height // 2), source.extents[0] * source.batch
    shared = 2 * step.lane_w * threads * 4
    return Launch("unpack", "sum_taps", grid, (threads, 1, 1), shared, values)


def _unpack(step: Unpack, at: Addresses) -> Launch:
    view = step.source
    strides = _strides(view.tensor)
    factor, summand, stride = _table(step.table, at, step.source_channel)
    voxels = prod(view.extents)
    values = arguments.Unpack(
        _address(view, at, step.source_channel),
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
        _activation(step.activation),
    )
    grid = -(-voxels // _BLOCK), view.tensor.batch, 1
    return Launch("unpack", "unpack", grid, (_BLOCK, 1, 1), 0, values)


def _convolve(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    width = next((w for w in (32, 64) if shape.target_channels <= w), 128)
    voxels = shape.batch * prod(shape.target_extents)
    values = arguments.Convolve(
        at(step.source.name),
        at(step.weight),
        region_address(step, at),
        prod(shape.source_extents) * shape.source_channels,
        prod(shape.target_extents) * shape.target_channels,
        arguments.Three(*shape.source_extents),
        shape.source_channels,
        arguments.Three(*shape.target_extents),
        shape.target_channels,
        arguments.Three(*shape.kernel),
        arguments.Three(*shape.stride),
        arguments.Three(*shape.before),
        shape.batch,
    )
    kind = "gradient" if shape.transposed else "convolve"
    tile = 8192 // width
    grid = -(-voxels // tile), -(-shape.target_channels // width), 1
    return Launch("convolve", f"{kind}_{width}", grid, (128, 1, 1), 0, values)


def region_address(step: Convolve, at: Addresses) -> int:
    """Address of the first voxel that a convolution writes."""
    target = step.target
    strides = _strides(target)
    first = step.region.first * strides.patch + step.region.plane * strides.plane
    return at(target.name) + first * NUMBER_BYTES[target.precision]
