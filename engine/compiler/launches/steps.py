"""From a step to the kernels that do it: grids, blocks and arguments."""

from dataclasses import replace
from math import prod

from ..steps import (
    NUMBER_BYTES,
    VECTOR_BYTES,
    Convolve,
    ConvolvePatches,
    ConvolveToPatches,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
    View,
)
from . import arguments
from .launch import (
    BORDERS,
    Addresses,
    Launch,
    activation_of,
    address_of,
    block_shape,
    region_address,
    strides_of,
    table_addresses,
    vectors,
)
from .outer_layers import (
    blocks_of_a_patch,
    convolve_patches,
    convolve_to_patches,
    pack,
    sum_taps,
    unpack,
)

_CHUNKS = 528
"""Blocks that a pass of statistics is spread over: four for each multiprocessor of an H200."""

_EACH = 16  # voxels that a thread measures at least
_CONCLUDED, _PARTS = 4, 256  # channels of a block that joins partial sums, and threads for each
_MOMENTS_BYTES, _SUMS_BYTES = 12, 8  # of moments.cuh, and of normalise.cu
_ROW_BLOCKS = 4224
_TOGETHER = 132
"""Blocks that wait for each other: one for each multiprocessor of an H200."""

_JOINED, _ACROSS, _LEAST_SHARE = 512, 4, 64  # of normalise.cu: threads, and voxels that pay
_STAGES, _PIECE_BYTES = 3, 128  # of convolve_halves.cu
_WIDE_BLOCK, _AT_ONCE = 320, 2  # of pointwise.cu: threads, and voxels that each reads at once


def scratch_bytes(step: Step) -> int:
    """Bytes of the partial sums between the two halves of a normalisation's statistics."""
    match step:
        case Normalise(statistics=statistics):
            tensor, parts, size = (
                statistics.source.tensor,
                _columns_and_shares(step)[1],
                _SUMS_BYTES,
            )
        case Statistics(source=source):
            tensor, parts, size = source.tensor, _chunks(step)[0], _MOMENTS_BYTES
        case ConvolvePatches(target=tensor, statistics=statistics) if statistics:
            parts, size = blocks_of_a_patch(step), _MOMENTS_BYTES
        case _:
            return 0
    return tensor.batch * parts * tensor.channels * size


def launches(step: Step, at: Addresses, scratch: int = 0) -> list[Launch]:
    """The kernels of a step that is not cuDNN's; scratch: address of its partial sums."""
    match step:
        case Pack():
            return [pack(step, at)]
        case ConvolvePatches():
            measured = step.statistics
            launch = convolve_patches(step, at, scratch if measured else None)
            blocks = blocks_of_a_patch(step)
            return [launch, *([_conclude(measured, at, scratch, blocks)] if measured else [])]
        case ConvolveToPatches():
            return [convolve_to_patches(step, at)]
        case Statistics():
            return _statistics(step, at, scratch)
        case Pointwise():
            return [_pointwise(step, at)]
        case Normalise():
            return [_normalise(step, at, scratch)]
        case SumTaps():
            return [sum_taps(step, at)]
        case Unpack():
            return [unpack(step, at)]
        case Convolve():
            return [_convolve(step, at)]


def _chunks(step: Statistics) -> tuple[int, int]:
    """How many chunks a patch is measured in, and the voxels of each."""
    tensor = step.source.tensor
    across, beside = block_shape(tensor.channels, tensor.precision)
    columns = -(-vectors(tensor.channels, tensor.precision) // across)
    voxels = prod(tensor.extents if step.source.shuffled else step.source.extents)
    most = max(1, _CHUNKS // (columns * tensor.batch))
    chunk = max(-(-voxels // most), _EACH * beside)
    return -(-voxels // chunk), chunk


def _statistics(step: Statistics, at: Addresses, scratch: int) -> list[Launch]:
    view, tensor = step.source, step.source.tensor
    extents = tensor.extents if view.shuffled else view.extents
    strides = strides_of(tensor)
    across, beside = block_shape(tensor.channels, tensor.precision)
    columns = -(-vectors(tensor.channels, tensor.precision) // across)
    chunks, chunk = _chunks(step)
    voxels = prod(extents)
    measure = arguments.Measure(
        address_of(view, at),
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
    shared = beside * across * lanes * _MOMENTS_BYTES
    grid = chunks, columns, tensor.batch
    return [
        Launch("statistics", "measure", grid, (across, beside, 1), shared, measure),
        _conclude(step, at, scratch, chunks),
    ]


def _conclude(step: Statistics, at: Addresses, scratch: int, chunks: int) -> Launch:
    view, tensor = step.source, step.source.tensor
    values = arguments.Conclude(
        scratch,
        at(step.target.name),
        at(step.scale) if step.scale else None,
        at(step.shift) if step.shift else None,
        tensor.batch,
        tensor.channels,
        8 if view.shuffled else 1,
        chunks,
        step.epsilon,
    )
    grid = -(-view.channels // _CONCLUDED), tensor.batch, 1
    shared = _MOMENTS_BYTES * _CONCLUDED * _PARTS
    return Launch("statistics", "conclude", grid, (_CONCLUDED, _PARTS, 1), shared, values)


def _columns_and_shares(step: Normalise) -> tuple[int, int]:
    """Groups of channels of all patches, and blocks that share the voxels of each."""
    tensor = step.statistics.source.tensor
    columns = -(-vectors(tensor.channels, tensor.precision) // _ACROSS) * tensor.batch
    most = max(1, _TOGETHER // columns)
    return columns, min(most, -(-prod(tensor.extents) // _LEAST_SHARE))


def _normalise(step: Normalise, at: Addresses, scratch: int) -> Launch:
    statistics, tensor = step.statistics, step.statistics.source.tensor
    columns, shares = _columns_and_shares(step)
    lanes = VECTOR_BYTES // NUMBER_BYTES[tensor.precision]
    values = arguments.Normalise(
        _pass(replace(step.pointwise, table=None), at, 0),
        scratch,
        at(statistics.scale) if statistics.scale else None,
        at(statistics.shift) if statistics.shift else None,
        at(step.barrier),
        prod(tensor.extents),
        columns // tensor.batch,
        columns,
        statistics.epsilon,
    )
    kernel = "normalise" if step.pointwise.residual is None else "normalise_residual"
    # First the sums of each warp, then the table and partial sums of every thread.
    shared = max((_JOINED // 32 * 8 + 4) * _ACROSS * lanes, _ACROSS * lanes * 8 + _JOINED * 8)
    block = _ACROSS, _JOINED // _ACROSS, 1
    return Launch("normalise", kernel, (shares, columns, 1), block, shared, values, waits=True)


def _pointwise(step: Pointwise, at: Addresses) -> Launch:
    view, target = step.source, step.target
    across, _ = block_shape(view.channels, target.precision)
    columns = -(-vectors(view.channels, target.precision) // across)
    rows = target.extents[0] * target.extents[1]
    per_block = -(-rows // _ROW_BLOCKS)
    sampling = step.sampling
    kernel = "pointwise" if step.residual is None else "pointwise_residual"
    if sampling is not None:
        kernel = "pointwise" + f"_{sampling.mode}" + ("_corners" if sampling.align_corners else "")
    grid = -(-rows // per_block), columns, step.patches.count
    block = across, _columns(across, target.extents[2]), 1
    return Launch("pointwise", kernel, grid, block, 0, _pass(step, at, per_block))


def _pass(step: Pointwise, at: Addresses, rows: int) -> arguments.Pointwise:
    view, target, sampling = step.source, step.target, step.sampling
    size, first = NUMBER_BYTES[target.precision], step.patches.first
    factor, summand, stride = table_addresses(step.table, at)
    residual, beside_it = None, arguments.Strides()
    if step.residual is not None:
        beside_it = strides_of(step.residual.tensor)
        residual = address_of(step.residual, at) + first * beside_it.patch * size
    source = strides_of(view.tensor)
    return arguments.Pointwise(
        address_of(view, at) + first * source.patch * size,
        residual,
        at(target.name) + step.first_channel * size,
        factor and factor + first * stride * 4,
        summand and summand + first * stride * 4,
        source,
        beside_it,
        strides_of(target),
        view.channels,
        stride,
        step.table.channels if step.table else view.channels,
        arguments.Three(*view.extents),
        arguments.Three(*step.extents),
        arguments.Three(*target.extents),
        arguments.Three(*step.origin),
        arguments.Three(*(sampling.factor if sampling else (1, 1, 1))),
        BORDERS[step.mode],
        view.shuffled,
        rows,
        _unit(view),
        _unit(step.residual),
        target.scale or 0.0,
        activation_of(step.activation),
    )


def _unit(view: View | None) -> float:
    """What 1 stands for in a tensor of halves; 0 for any other."""
    return 1 / view.tensor.scale if view and view.tensor.scale else 0.0


def _columns(across: int, width: int) -> int:
    """Columns of a block such that whole blocks cover a row with little to spare."""
    turns = 1
    while (columns := -(-width // (_AT_ONCE * turns))) * across > _WIDE_BLOCK:
        turns += 1
    return max(columns, 64 // across)


def _convolve(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    width = next((w for w in (32, 64) if shape.target_channels <= w), 128)
    voxels = shape.batch * prod(shape.target_extents)
    common = (
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
    if shape.halves:
        tile = 64 if width == 128 else 128
        grid = -(-voxels // tile), -(-shape.target_channels // width), 1
        shared = _STAGES * (tile + width) * _PIECE_BYTES
        halves = arguments.ConvolveHalves(*common, step.scale)
        border = "_border" if any(shape.before + shape.after) else ""
        name = f"convolve_halves_{width}{border}"
        threads = tile * width // 64
        return Launch("convolve_halves", name, grid, (threads, 1, 1), shared, halves)
    kind = "gradient" if shape.transposed else "convolve"
    tile = 8192 // width
    grid = -(-voxels // tile), -(-shape.target_channels // width), 1
    plain = arguments.Convolve(*common)
    return Launch("convolve", f"{kind}_{width}", grid, (128, 1, 1), 0, plain)
