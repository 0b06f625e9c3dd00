"""From a step to the kernels that do it: grids, blocks and arguments."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...network.layers import Downsample, Pool, Triple, Upsample
from ..card_properties import CardProperties
from ..steps import (
    COUNTERS,
    IDENTITY,
    NUMBER_BYTES,
    VECTOR_BYTES,
    AddPatches,
    ChannelGroups,
    Combination,
    Convolve,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    Normalise,
    Pack,
    PassTile,
    Pointwise,
    Sampling,
    Statistics,
    Step,
    SumTaps,
    TensorView,
    Unpack,
)
from . import arguments
from .cells import blocks_of_cells, conv_transpose_to_cells
from .launch import (
    Addresses,
    Launch,
    activation_of,
    address_of,
    block_shape,
    border_of,
    region_address,
    strides_of,
    table_addresses,
    vectors,
)
from .outer_layers import (
    add_patches,
    blocks_of_a_patch,
    conv_transpose_to_patches,
    convolve_patches,
    convolve_to_patches,
    pack,
    sum_taps,
    unpack,
)
from .tiles import usual_tile

_MEASURING, _MEASURERS = 2, 512
"""Blocks for each multiprocessor that a pass of statistics is spread over, and their threads."""

_EACH = 4  # voxels that a thread measures at least, which it reads at once
_CONCLUDED, _PARTS = 4, 256  # channels of a block that joins partial sums, and threads for each
_GROUPED = 256  # threads of a block that joins those of a group
_MOMENTS_BYTES, _SUMS_BYTES = 12, 8  # of moments.cuh, and of normalise.cu
_COMBINATIONS: dict[Combination, int] = {"add": 0, "subtract": 1, "multiply": 2, "gate": 3}
"""The `Combination` of pass.cuh."""

_JOINED, _ACROSS, _LEAST_SHARE = 512, 4, 64  # of normalise.cu: threads, and voxels that pay
_RUN = 4  # voxels of a thread of convolve_depthwise.cu
_STAGES, _PIECE_BYTES = 3, 128  # of convolve_split_fp16.cu


def scratch_bytes(step: Step, card: CardProperties) -> int:
    """Bytes of the partial sums between the two parts of a normalisation's statistics."""
    match step:
        case Normalise(statistics=Statistics(source=source)):
            parts, size = _columns_and_shares(step, card)[1], _SUMS_BYTES
        case Statistics(source=source):
            parts, size = _measuring(source, card).chunks, _MOMENTS_BYTES
        case ConvolvePatches(statistics=Statistics(source=source)):
            parts, size = blocks_of_a_patch(step, card), _MOMENTS_BYTES
        case ConvTransposeToCells(statistics=Statistics(source=source)):
            parts, size = blocks_of_cells(step, card), _MOMENTS_BYTES
        case _:
            return 0
    return source.tensor.batch * parts * source.channels * size


def launches(step: Step, at: Addresses, card: CardProperties, scratch: int = 0) -> list[Launch]:
    """The kernels of a step that is not cuDNN's; scratch: address of its partial sums."""
    match step:
        case Pack():
            return [pack(step, at)]
        case ConvolvePatches():
            measured = step.statistics
            launch = convolve_patches(step, at, card, scratch if measured else None)
            blocks = blocks_of_a_patch(step, card)
            return [launch, *([conclude(measured, at, scratch, blocks)] if measured else [])]
        case ConvTransposeToCells():
            measured = step.statistics
            launch = conv_transpose_to_cells(step, at, card, scratch if measured else None)
            blocks = blocks_of_cells(step, card)
            return [launch, *([conclude(measured, at, scratch, blocks)] if measured else [])]
        case ConvolveToPatches():
            return [convolve_to_patches(step, at, card)]
        case ConvTransposeToPatches():
            return [conv_transpose_to_patches(step, at, card)]
        case Statistics():
            return _statistics(step, at, card, scratch)
        case Pointwise():
            return [_pointwise(step, at, card)]
        case Normalise():
            return [_normalise(step, at, card, scratch)]
        case SumTaps():
            return [sum_taps(step, at)]
        case Unpack():
            return [unpack(step, at)]
        case AddPatches():
            return [add_patches(step, at)]
        case Convolve():
            return [_convolve(step, at)]


@dataclass(frozen=True, slots=True)
class _Measuring:
    """How a pass of statistics is spread over blocks.

    extents: of the view, counted in cells of `cells` voxels. across: vectors of a block. columns:
    of blocks beside each other, along the channels. chunk: of a block, counted as the extents.
    """

    extents: Triple
    cells: int
    across: int
    columns: int
    chunk: int

    @property
    def chunks(self) -> int:
        """Blocks that share the voxels of a patch."""
        return -(-prod(self.extents) // self.chunk)


def _measuring(view: TensorView, card: CardProperties) -> _Measuring:
    depth, height, width = extents = view.extents
    cells = 8 if view.shuffled else 1
    if view.shuffled:
        extents = depth // 2, height // 2, width // 2
    vectors_each = vectors(view.channels, view.tensor.precision)
    across = next(width for width in (1, 2, _ACROSS) if vectors_each <= width or width == _ACROSS)
    columns = -(-vectors_each // across)
    most = max(1, _MEASURING * card.multiprocessors // (columns * view.tensor.batch))
    chunk = max(-(-prod(extents) // most), _EACH * (_MEASURERS // across // cells))
    return _Measuring(extents, cells, across, columns, chunk)


def _statistics(
    step: Statistics, at: Addresses, card: CardProperties, scratch: int
) -> list[Launch]:
    if step.groups is None:
        return [measure(step, at, card, scratch, at(step.target.name))]
    found = measure(step, at, card, scratch, None)
    return [found, conclude(step, at, scratch, found.grid[0])]


def measure(
    step: Statistics, at: Addresses, card: CardProperties, scratch: int, table: int | None
) -> Launch:
    """The moments of each channel; table: None where another launch joins them."""
    view, tensor, spread = step.source, step.source.tensor, _measuring(step.source, card)
    values = arguments.MeasureArguments(
        source=address_of(view, at),
        partials=scratch,
        table=table,
        scale=at(step.scale) if step.scale else None,
        shift=at(step.shift) if step.shift else None,
        counters=at(COUNTERS),
        strides=strides_of(tensor),
        extents=arguments.Three(*spread.extents),
        origin=arguments.Three(*view.origin),
        channels=view.channels,
        cells=spread.cells,
        dense=spread.extents == tensor.extents,
        chunk=spread.chunk,
        epsilon=step.epsilon,
    )
    grid = spread.chunks, spread.columns, tensor.batch
    block, shared = (spread.across, _MEASURERS // spread.across, 1), _MEASURERS * _MOMENTS_BYTES
    return Launch("statistics", "measure", grid, block, shared, values)


def conclude(step: Statistics, at: Addresses, scratch: int, chunks: int) -> Launch:
    """The table of what so many launched blocks a patch have measured."""
    if step.groups is not None:
        return _conclude_groups(step, step.groups, at, scratch, chunks)
    channels, patches = step.source.channels, step.source.tensor.batch
    values = arguments.ConcludeArguments(
        partials=scratch,
        table=at(step.target.name),
        scale=at(step.scale) if step.scale else None,
        shift=at(step.shift) if step.shift else None,
        patches=patches,
        channels=channels,
        chunks=chunks,
        epsilon=step.epsilon,
    )
    grid = -(-channels // _CONCLUDED), patches, 1
    shared = _MOMENTS_BYTES * _CONCLUDED * _PARTS
    return Launch("statistics", "conclude", grid, (_CONCLUDED, _PARTS, 1), shared, values)


def _conclude_groups(
    step: Statistics, groups: ChannelGroups, at: Addresses, scratch: int, chunks: int
) -> Launch:
    view, tensor = step.source, step.source.tensor
    values = arguments.ConcludeGroupsArguments(
        partials=scratch,
        table=at(step.target.name),
        scale=at(step.scale) if step.scale else None,
        shift=at(step.shift) if step.shift else None,
        bias=at(groups.bias) if groups.bias else None,
        patches=tensor.batch,
        channels=view.channels,
        chunks=chunks,
        group=groups.channels,
        epsilon=step.epsilon,
    )
    grid, shared = (groups.count, tensor.batch, 1), _MOMENTS_BYTES * _GROUPED
    return Launch("statistics", "conclude_groups", grid, (_GROUPED, 1, 1), shared, values)


def _columns_and_shares(step: Normalise, card: CardProperties) -> tuple[int, int]:
    """Groups of channels of all patches, and blocks that share the voxels of each.

    All blocks wait for each other: there is one for each multiprocessor.
    """
    tensor = step.statistics.source.tensor
    columns = -(-vectors(tensor.channels, tensor.precision) // _ACROSS) * tensor.batch
    most = max(1, card.multiprocessors // columns)
    return columns, min(most, -(-prod(tensor.extents) // _LEAST_SHARE))


def _normalise(step: Normalise, at: Addresses, card: CardProperties, scratch: int) -> Launch:
    statistics, tensor = step.statistics, step.statistics.source.tensor
    columns, shares = _columns_and_shares(step, card)
    lanes = VECTOR_BYTES // NUMBER_BYTES[tensor.precision]
    values = arguments.NormaliseArguments(
        pointwise=_pass(replace(step.pointwise, table=None), at, None),
        partials=scratch,
        scale=at(statistics.scale) if statistics.scale else None,
        shift=at(statistics.shift) if statistics.shift else None,
        barrier=at(step.barrier),
        voxels=prod(tensor.extents),
        groups=columns // tensor.batch,
        columns=columns,
        epsilon=statistics.epsilon,
    )
    kernel = "normalise" if step.pointwise.residual is None else "normalise_residual"
    if not _is_linear(step.pointwise):
        kernel = "normalise_general"
    # First the sums of each warp, then the table and partial sums of every thread.
    shared = max((_JOINED // 32 * 8 + 4) * _ACROSS * lanes, _ACROSS * lanes * 8 + _JOINED * 8)
    block = _ACROSS, _JOINED // _ACROSS, 1
    return Launch("normalise", kernel, (shares, columns, 1), block, shared, values, waits=True)


def _pointwise(step: Pointwise, at: Addresses, card: CardProperties) -> Launch:
    view, target = step.source, step.target
    across, _ = block_shape(view.channels, target.precision)
    columns = -(-vectors(view.channels, target.precision) // across)
    depth, height, _ = step.target_extents
    tile, sampling = step.tile or usual_tile(step, card), step.sampling
    kernel = f"pointwise_{_sampled(sampling)}" if sampling else "pointwise"
    if not _is_linear(step):
        kernel += "_general"
    elif step.residual:
        kernel += "_residual"
    grid = -(-depth * height // tile.rows), columns, step.patches.count
    block = across, tile.columns, 1
    source = "sampled" if sampling else "pointwise"
    return Launch(source, kernel, grid, block, 0, _pass(step, at, tile))


def _is_linear(step: Pointwise) -> bool:
    """Whether a pass is none of the form GENERAL of pass.cuh."""
    activation = step.activation
    has_one_slope = activation.curve == "linear" and activation.slopes is None
    return has_one_slope and step.after == IDENTITY and step.combination == "add"


def _sampled(sampling: Sampling) -> str:
    """What a kernel's name says of a sampling."""
    match sampling:
        case Downsample():
            return "binomial"
        case Pool(mode):
            return mode
        case Upsample(mode, align_corners=align_corners):
            return f"{mode}_corners" if align_corners else mode


def _factors(sampling: Sampling | None) -> Triple:
    match sampling:
        case Pool(stride=factors) | Upsample(factor=factors) | Downsample(factor=factors):
            return factors
        case None:
            return 1, 1, 1


def _window(sampling: Sampling | None) -> arguments.WindowArguments:
    if not isinstance(sampling, Pool):
        return arguments.WindowArguments()
    return arguments.WindowArguments(
        kernel=arguments.Three(*sampling.kernel),
        padding=arguments.Three(*sampling.padding),
        counts_padding=sampling.counts_padding,
    )


def _filter(sampling: Sampling | None) -> arguments.FilterArguments:
    if not isinstance(sampling, Downsample):
        return arguments.FilterArguments()
    border, value = border_of(sampling.mode)
    row = arguments.Seven(*sampling.filter.tolist())
    return arguments.FilterArguments(taps=sampling.taps, border=border, border_value=value, row=row)


def _pass(step: Pointwise, at: Addresses, tile: PassTile | None) -> arguments.PointwiseArguments:
    view, target, sampling = step.source, step.target, step.sampling
    size, first = NUMBER_BYTES[target.precision], step.patches.first
    factor, summand, stride = table_addresses(step.table, at)
    residual, residual_strides = None, arguments.StridesArguments()
    if step.residual is not None:
        residual_strides = strides_of(step.residual.tensor)
        residual = address_of(step.residual, at) + first * residual_strides.patch * size
    source_strides = strides_of(view.tensor)
    border, border_value = border_of(step.mode)
    return arguments.PointwiseArguments(
        source=address_of(view, at) + first * source_strides.patch * size,
        residual=residual,
        target=at(target.name) + step.first_channel * size,
        factor=factor and factor + first * stride * 4,
        summand=summand and summand + first * stride * 4,
        source_strides=source_strides,
        residual_strides=residual_strides,
        target_strides=strides_of(target),
        channels=view.channels,
        table_stride=stride,
        table_channels=step.table.channels if step.table else view.channels,
        source_extents=arguments.Three(*view.extents),
        extents=arguments.Three(*step.extents),
        target_extents=arguments.Three(*step.target_extents),
        origin=arguments.Three(*step.origin),
        factors=arguments.Three(*_factors(sampling)),
        border=border,
        rows=tile.rows if tile else 0,
        run=tile.run if tile else 0,
        shuffled=view.shuffled,
        source_origin=arguments.Three(*view.origin),
        target_cell=target.channels // 8 if step.shuffles else 0,
        source_unit=_unit(view),
        residual_unit=_unit(step.residual),
        target_scale=target.scale or 0.0,
        combination=_COMBINATIONS[step.combination],
        activation=activation_of(step.activation, at),
        after=activation_of(step.after, at),
        border_value=border_value,
        filter=_filter(sampling),
        window=_window(sampling),
    )


def _unit(view: TensorView | None) -> float:
    """What 1 stands for in a tensor of split fp16; 0 for any other."""
    return 1 / view.tensor.scale if view and view.tensor.scale else 0.0


def _convolve(step: Convolve, at: Addresses) -> Launch:
    if step.shape.split_fp16:
        return _convolve_split_fp16(step, at)
    return (_convolve_depthwise if step.shape.is_depthwise else _convolve_plainly)(step, at)


def _convolve_split_fp16(step: Convolve, at: Addresses) -> Launch:
    shape, width = step.shape, step.outputs or usual_outputs(step)
    tile = 64 if width == 128 else 128
    border = "_border" if any(shape.before + shape.after) else ""
    return Launch(
        source="convolve_split_fp16",
        kernel=f"convolve_split_fp16_{width}{border}",
        grid=_tiles(step, tile, width),
        block=(tile * width // 64, 1, 1),
        shared=_STAGES * (tile + width) * _PIECE_BYTES,
        arguments=arguments.ConvolveSplitFp16Arguments(**_convolved(step, at), scale=step.scale),
    )


def _convolve_plainly(step: Convolve, at: Addresses) -> Launch:
    width = step.outputs or usual_outputs(step)
    kind = "gradient" if step.shape.transposed else "convolve"
    values = arguments.ConvolveArguments(
        **_convolved(step, at),
        dilation=arguments.Three(*step.shape.dilation),
        inputs=step.shape.summed_channels,
        outputs=step.shape.target_channels // step.shape.groups,
    )
    grid = _tiles(step, 8192 // width, width)
    return Launch("convolve", f"{kind}_{width}", grid, (128, 1, 1), 0, values)


def _convolve_depthwise(step: Convolve, at: Addresses) -> Launch:
    shape = step.shape
    kind = "gradient" if shape.transposed else "convolve"
    values = arguments.ConvolveDepthwiseArguments(
        **_convolved(step, at), dilation=arguments.Three(*shape.dilation)
    )
    across, beside = block_shape(shape.target_channels, shape.precision)
    depth, height, width = shape.target_extents
    runs = shape.batch * depth * height * -(-width // _RUN)
    columns = -(-vectors(shape.target_channels, shape.precision) // across)
    grid, block = (-(-runs // beside), columns, 1), (across, beside, 1)
    return Launch("convolve_depthwise", f"{kind}_depthwise", grid, block, 0, values)


def usual_outputs(step: Convolve) -> int:
    """Channels that a block of the own kernel makes."""
    outputs = step.shape.target_channels // step.shape.groups
    return next((width for width in (32, 64) if outputs <= width), 128)


def _tiles(step: Convolve, voxels: int, outputs: int) -> Triple:
    """The grid of blocks that each make so many outputs of so many voxels."""
    shape = step.shape
    made = shape.batch * prod(shape.target_extents)
    columns = shape.groups * -(-shape.target_channels // shape.groups // outputs)
    return -(-made // voxels), columns, 1


def _convolved(step: Convolve, at: Addresses) -> dict[str, Any]:
    """What both kinds of convolution take."""
    shape = step.shape
    return {
        "source": at(step.source.name),
        "weight": at(step.weight),
        "target": region_address(step, at),
        "source_patch": prod(shape.source_extents) * shape.source_channels,
        "target_patch": prod(shape.target_extents) * shape.target_channels,
        **arguments.convolution_geometry(shape),
        "patches": shape.batch,
    }
