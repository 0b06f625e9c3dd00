"""Translate steps into launches, for patches and for blocks of a volume: grids, blocks, arguments.

A launch for blocks of a volume is the one for patches with the positions of the blocks added.
"""

from ctypes import Structure, sizeof
from dataclasses import dataclass, replace
from math import prod

from ...network.layers import ZEROS, Triple, added, multiplied, triple
from ..blocks import BlockGrid, BlockRun
from ..gpu_properties import GpuProperties
from ..kernel_source import structure
from ..steps import (
    AddPatches,
    Conv,
    Interleave,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
)
from ..tensors import NUMBER_BYTES, TRANSLATED, Region, TensorView
from .launch import MOMENTS_BYTES, Addresses, Launch, anywhere
from .packing import (
    add_patches,
    interleave,
    pack,
    sum_taps,
    unpack,
)
from .pointwise import pointwise
from .statistics import (
    SUMS_BYTES,
    blocks_that_measure,
    blocks_that_normalise,
    conclude,
    measure,
    normalise,
    statistics,
)
from .table import kernel_of


def scratch_bytes(step: Step, gpu: GpuProperties) -> int:
    """Return the bytes of the partial sums between two launches: of statistics, or of splits."""
    if isinstance(step, Conv) and step.statistics is None:
        return kernel_of(step).partials(step, gpu)
    measured = step.flow.measures
    if measured is None:
        return 0
    size = SUMS_BYTES if isinstance(step, Normalise) else MOMENTS_BYTES
    source = measured.source
    return source.tensor.batch * measuring_blocks(step, gpu) * source.channels * size


def measuring_blocks(step: Step, gpu: GpuProperties) -> int:
    """Return the launched blocks that each process a part of the same channels of a patch."""
    match step:
        case Normalise():
            return blocks_that_normalise(step, gpu)
        case Statistics(source=source):
            return blocks_that_measure(source, gpu)
        case Conv(statistics=Statistics()):
            return prod(convolution(step, anywhere, gpu).grid[:2])
        case _:
            return 0


def launches(step: Step, at: Addresses, gpu: GpuProperties, scratch: int = 0) -> list[Launch]:
    """Return the kernels of a step without cuDNN; scratch: address of its partial sums."""
    match step:
        case Conv(statistics=measured):
            launch = convolution(step, at, gpu, scratch)
            if measured is not None:
                return [launch, conclude(measured, at, scratch, prod(launch.grid[:2]))]
            add = kernel_of(step).add
            if add is None or not scratch_bytes(step, gpu):
                return [launch]
            return [launch, add(step, at, gpu, scratch)]
        case Pack():
            return [pack(step, at)]
        case Statistics():
            return statistics(step, at, gpu, scratch)
        case Pointwise():
            return [pointwise(step, at, gpu)]
        case Normalise():
            return [normalise(step, at, gpu, scratch)]
        case Interleave():
            return [interleave(step, at)]
        case SumTaps():
            return [sum_taps(step, at)]
        case Unpack():
            return [unpack(step, at)]
        case AddPatches():
            return [add_patches(step, at)]


def convolution(conv: Conv, at: Addresses, gpu: GpuProperties, scratch: int = 0) -> Launch:
    """Return the kernel of a convolution; scratch: address of its partial sums, if any."""
    kernel = kernel_of(conv)
    has_partials = conv.statistics or kernel.partials(conv, gpu)
    return kernel.launch(conv, at, gpu, scratch if has_partials else None)


def partial_bytes(step: Step, gpu: GpuProperties) -> int:
    """Return the bytes of the partial sums of one block, which are computed alike in any run."""
    measured = step.flow.measures
    return scratch_bytes(step, gpu) // measured.source.tensor.batch if measured else 0


def measured_volume(
    step: Step, at: Addresses, gpu: GpuProperties, partials: int, blocks: int
) -> Launch:
    """Join the partial sums of all blocks, in their order; partials: address of the first ones."""
    measured = step.flow.measures
    assert measured is not None
    measured = replace(measured, source=_of_blocks(measured.source, BlockRun(0, 1)))
    return conclude(measured, at, partials, measuring_blocks(step, gpu) * blocks)


def block_launches(
    step: Step,
    at: Addresses,
    gpu: GpuProperties,
    grid: BlockGrid,
    run: BlockRun,
    scratch: int = 0,
    stored: BlockGrid | None = None,
    copy_of: Addresses | None = None,
) -> list[Launch]:
    """Return the kernels of a step for one run; none if the step is only for blocks past the last.

    at: addresses of the run's first block, and of the input and output volume. scratch: of the
    run's first partial sums, if the step computes statistics. stored: the grid by which maps are
    stored, if it is another one; the address of a map is then that of its first block. copy_of:
    address of the copy from which a pass over voxels reads the run's own blocks, if they are
    copied.
    """
    region = _region(step, run)
    if region.count <= 0:
        return []
    launched = BlockRun(run.first + region.first * run.apart, region.count, run.apart)
    blocks = _LaunchedBlocks(grid, launched, stored)
    match step:
        case AddPatches():
            return launches(replace(step, patches=Region(0, 1), extents=grid.extents), at, gpu)
        case Conv(kernel=None) | Interleave():
            return launches(step, at, gpu)
        case Normalise():  # only of a volume that fills its one block
            return launches(step, at, gpu, scratch)
        case Conv():
            return [_convolution(step, at, gpu, blocks, scratch)]
        case Statistics():
            return [_measuring(step, at, gpu, blocks, scratch)]
        case Pack():
            return [_packing(step, at, blocks)]
        case Pointwise():
            return [_pass(replace(step, patches=region), at, gpu, blocks, copy_of)]
        case SumTaps() | Unpack():
            return [_unpacking(step, at, blocks, region.plane)]


@dataclass(frozen=True, slots=True)
class _LaunchedBlocks:
    """The blocks of one launch: some of a volume's grid.

    stored: grid by which maps are stored, None if by the same one.
    """

    grid: BlockGrid
    run: BlockRun
    stored: BlockGrid | None

    def argument(self, level: Triple, plane: int = 0, excess: Triple = ZEROS) -> Structure:
        """Return the kernel argument for blocks with extents `level` at their resolution; excess:
        voxels of the map past their grid.
        """
        return _blocks(self.grid, self.run, level, plane, excess)

    def source_argument(
        self, level: Triple, stored_level: Triple, excess: Triple = ZEROS
    ) -> Structure:
        """Return the argument of the blocks that it reads; stored_level: extents of the blocks of a
        map, of which it gets the address of the first.
        """
        if self.stored is None:
            return self.argument(level, excess=excess)
        return _blocks(self.stored, BlockRun(0, 1), stored_level, excess=excess)


def _convolution(
    step: Conv, at: Addresses, gpu: GpuProperties, blocks: _LaunchedBlocks, scratch: int
) -> Launch:
    """Launch a convolution; each block is computed as in the step's batch, so its statistics are
    equal.

    The last layer, which computes no statistics, is distributed over only as many blocks as there
    are.
    """
    level, source_level = _levels(step, blocks.grid)
    arguments: dict[str, Structure | int] = {"blocks": blocks.argument(level)}
    if kernel_of(step).finds_blocks:
        source = step.views[0].source
        is_around = step.around is not None and step.translated is None
        arguments["source_blocks"] = (
            blocks.argument(source_level)
            if is_around
            else blocks.source_argument(source_level, source.extents)
        )
        arguments["source_around"] = _around(source, step.around)
    if step.translated:
        views = (replace(one, source=_of_blocks(one.source, blocks.run)) for one in step.views)
        return _in_blocks(convolution(replace(step, inputs=tuple(views)), at, gpu), **arguments)
    own = step
    if step.patches:
        own = replace(step, inputs=replace(step.patches, extents=blocks.grid.extents))
    launch = convolution(own, at, gpu, scratch)
    across, deep, each = launch.grid
    grid = across, deep, each // step.target.batch * blocks.run.count
    return _in_blocks(replace(launch, grid=grid), **arguments)


def _levels(step: Conv, grid: BlockGrid) -> tuple[Triple, Triple]:
    """Return the extents of a block where a convolution writes, and where it reads."""
    if step.patches or step.translated:
        return grid.block, grid.block
    return step.target.extents, multiplied(step.geometry.stride, step.target.extents)


def _measuring(
    step: Statistics, at: Addresses, gpu: GpuProperties, blocks: _LaunchedBlocks, scratch: int
) -> Launch:
    launch, source = measure(step, at, gpu, scratch, None), step.source
    level, excess = source.extents, source.tensor.excess
    if source.shuffled:
        level, excess = (triple(extent // 2 for extent in voxels) for voxels in (level, excess))
    launch = replace(launch, grid=(*launch.grid[:2], blocks.run.count))
    return _in_blocks(launch, blocks=blocks.argument(level, excess=excess))


def _packing(step: Pack, at: Addresses, blocks: _LaunchedBlocks) -> Launch:
    step = replace(step, extents=blocks.grid.extents, patches=Region(0, blocks.run.count))
    return _in_blocks(pack(step, at), blocks=blocks.argument(blocks.grid.block))


def _pass(
    step: Pointwise,
    at: Addresses,
    gpu: GpuProperties,
    blocks: _LaunchedBlocks,
    copy_of: Addresses | None,
) -> Launch:
    beyond = _bytes_before(step) if blocks.stored else {}
    level = step.source.extents
    return _in_blocks(
        pointwise(step, lambda name: at(name) - beyond.get(name, 0), gpu),
        blocks=blocks.argument(step.extents, excess=step.excess),
        source_blocks=blocks.source_argument(level, level, step.source.tensor.excess),
        source_around=_around(step.source, step.around),
        source_copy=_to_copy(step.source, at, copy_of),
        residual_copy=_to_copy(step.residual, at, copy_of),
    )


def _bytes_before(step: Pointwise) -> dict[str, int]:
    """Return the bytes of the blocks before the region's first one, in maps that are read by block
    number.

    The address of such a map is that of the first of all its blocks.
    """
    views = None if step.around else step.source, step.residual
    tensors = [view.tensor for view in views if view is not None]
    return {item.name: step.patches.first * (item.bytes // item.batch) for item in tensors}


def _unpacking(
    step: SumTaps | Unpack, at: Addresses, blocks: _LaunchedBlocks, plane: int
) -> Launch:
    count, channel = blocks.run.count, 0
    match step:
        case SumTaps(source=source):
            of_blocks = replace(source, batch=count)
            launch = sum_taps(replace(step, source=of_blocks, patches=Region(0, count)), at)
        case Unpack(source=source, channel=channel):
            launch = unpack(replace(step, source=_of_blocks(source, blocks.run)), at)
    return _in_blocks(
        launch,
        blocks=blocks.argument(blocks.grid.block, plane),
        translated=at(TRANSLATED) + 4 * channel * prod(blocks.grid.extents),
    )


def _to_copy(view: TensorView | None, at: Addresses, copy_of: Addresses | None) -> int:
    """Return the offset in elements from a run's blocks of a tensor to the copy that is read."""
    if view is None or copy_of is None:
        return 0
    tensor = view.tensor
    return (copy_of(tensor.name) - at(tensor.name)) // NUMBER_BYTES[tensor.precision]


def _around(view: TensorView, first: Triple | None) -> Structure:
    if first is None:
        return structure("blocks.cuh", "Around")()
    return structure("blocks.cuh", "Around")(view.extents, first)


def _region(step: Step, run: BlockRun) -> Region:
    """Return the blocks of the run that a step applies to."""
    match step:
        case Pack(patches=region) | Pointwise(patches=region) | SumTaps(patches=region):
            return replace(region, count=min(region.count, run.count - region.first))
        case Conv(region=Region() as region):
            return region if region.first < run.count else replace(region, count=0)
        case _:
            return Region(0, run.count)


def _of_blocks(view: TensorView, run: BlockRun) -> TensorView:
    return replace(view, tensor=replace(view.tensor, batch=run.count))


def _blocks(
    grid: BlockGrid, run: BlockRun, level: Triple, plane: int = 0, excess: Triple = ZEROS
) -> Structure:
    """Return the kernel argument of blocks that have the extents `level` at its resolution; excess:
    voxels of the map past their grid.
    """
    return structure("blocks.cuh", "Blocks")(
        first=run.first,
        apart=run.apart,
        plane=plane,
        counts=grid.counts[1:],
        extents=level,
        volume=added(grid.volume_at(level), excess),
        shares=tuple((1 << 31) // extent + 1 for extent in level),
    )


def _in_blocks(launch: Launch, **arguments: Structure | int) -> Launch:
    """Return the launch with additional arguments, by field name."""
    plain: Structure = launch.arguments
    kind = structure(f"{launch.source}.cu", type(plain).__name__, in_blocks=True)
    values = kind.from_buffer_copy(bytes(plain).ljust(sizeof(kind), b"\0"))
    for name, value in arguments.items():
        setattr(values, name, value)
    return replace(launch, arguments=values, in_blocks=True)
