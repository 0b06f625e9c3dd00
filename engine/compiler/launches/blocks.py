"""Launches of a step for blocks of a volume: those for as many patches, told where they lie."""

from ctypes import Structure, c_int, c_longlong, c_uint, sizeof
from dataclasses import replace
from math import prod

from ...network.layers import Triple, triple
from ..blocks import BlockGrid, BlockRun
from ..card_properties import CardProperties
from ..steps import (
    AddPatches,
    Convolve,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
)
from ..tensors import NUMBER_BYTES, TRANSLATED, Region, Tensor, TensorView
from .cells import ConvTransposeToCellsArguments, conv_transpose_to_cells
from .first_layer import ConvolvePatchesArguments, PackArguments, convolve_patches
from .last_layer import ConvolveActivatedToPatchesArguments, ConvolveToPatchesArguments
from .launch import Addresses, Launch
from .passes import PointwiseArguments
from .planes import ConvolveStridedArguments, convolve_by_planes
from .statistics import MeasureArguments, conclude, measure
from .steps import launches, measuring_blocks, scratch_bytes
from .tensor_arguments import Three, Two
from .unpack import SumTapsArguments, UnpackArguments

_Shares = c_uint * 3


class BlocksArguments(Structure):
    __slots__ = ()
    _fields_ = (
        ("first", c_int),
        ("apart", c_int),
        ("plane", c_int),
        ("counts", Two),
        ("extents", Three),
        ("volume", Three),
        ("shares", _Shares),
    )


class AroundArguments(Structure):
    __slots__ = ()
    _fields_ = (("extents", Three), ("first", Three))


_OF_TARGET = (("blocks", BlocksArguments),)
_OF_SOURCE = (
    *_OF_TARGET,
    ("source_blocks", BlocksArguments),
    ("source_around", AroundArguments),
)
_OF_RESIDUAL = (
    *_OF_SOURCE,
    ("residual_around", AroundArguments),
    ("source_copy", c_longlong),
    ("residual_copy", c_longlong),
)


def _with(
    told: tuple[tuple[str, type], ...], *structures: type[Structure]
) -> dict[type[Structure], type[Structure]]:
    """Structures by those of the same name without what is told behind their fields."""
    return {
        plain: type(plain.__name__, (plain,), {"__slots__": (), "_fields_": told})
        for plain in structures
    }


IN_BLOCKS: dict[type[Structure], type[Structure]] = {
    **_with(
        _OF_TARGET,
        PackArguments,
        ConvolvePatchesArguments,
        ConvTransposeToCellsArguments,
        MeasureArguments,
        ConvolveToPatchesArguments,
        SumTapsArguments,
        UnpackArguments,
    ),
    **_with(_OF_SOURCE, ConvolveStridedArguments, ConvolveActivatedToPatchesArguments),
    **_with(_OF_RESIDUAL, PointwiseArguments),
}
"""What a kernel takes where its patches are blocks of one volume, by what it takes otherwise."""


def partial_bytes(step: Step, card: CardProperties) -> int:
    """Bytes of the partial sums of one block, which is measured alike in any run."""
    measured = step.flow.measures
    return scratch_bytes(step, card) // measured.source.tensor.batch if measured else 0


def measured_volume(
    step: Step, at: Addresses, card: CardProperties, partials: int, blocks: int
) -> Launch:
    """Joins the partial sums of all blocks, in their order; partials: address of the first ones."""
    measured = step.flow.measures
    assert measured is not None
    measured = replace(measured, source=_of_blocks(measured.source, 1))
    return conclude(measured, at, partials, measuring_blocks(step, card) * blocks)


def block_launches(
    step: Step,
    at: Addresses,
    card: CardProperties,
    grid: BlockGrid,
    run: BlockRun,
    scratch: int = 0,
    stored: BlockGrid | None = None,
    copy_of: Addresses | None = None,
) -> list[Launch]:
    """The kernels of a step for one run; none where it is for those past the last block.

    at: addresses of the run's first block, and of the volume that comes in and goes out. scratch:
    of the run's first partial sums, if the step measures. stored: the grid by which maps are kept,
    if it is another one; the address of a map is then that of its first block. copy_of: where what
    a pass over voxels reads of the run's own blocks is, if that is elsewhere.
    """
    region = _region(step, run)
    if region.count <= 0:
        return []
    first, count, apart = run.first + region.first * run.apart, region.count, run.apart
    match step:
        case AddPatches():
            return launches(replace(step, patches=Region(0, 1), extents=grid.extents), at, card)
        case Convolve():
            return launches(step, at, card)
        case Normalise():  # only of a volume that fills its one block
            return launches(step, at, card, scratch)
        case Pack():
            step = replace(step, extents=grid.extents, patches=Region(0, count))
            blocks = [_blocks(grid, grid.block, first, apart)]
        case ConvolvePatches(target=target):
            step = replace(step, extents=grid.extents)
            launch = convolve_patches(step, at, card, scratch if step.statistics else None)
            blocks = [_blocks(grid, grid.block, first, apart)]
            return [_for_blocks(launch, target.batch, blocks, count)]
        case ConvTransposeToCells(target=TensorView(tensor=cells)):
            launch = conv_transpose_to_cells(step, at, card, scratch if step.statistics else None)
            blocks = [_blocks(grid, cells.extents, first, apart)]
            return [_for_blocks(launch, cells.batch, blocks, count)]
        case ConvolveByPlanes(parts=(part,), target=target):
            launch = convolve_by_planes(step, at, card, scratch if step.statistics else None)
            level = triple(step.stride * extent for extent in target.extents)
            source = _blocks(grid, level, first, apart)
            if stored is not None and step.around is None:
                source = _blocks(stored, part.source.extents, 0)
            blocks = [_blocks(grid, target.extents, first, apart), source]
            launch = _for_blocks(launch, target.batch, blocks, count)
            launch.arguments.source_around = _around(part.source, step.around)
            return [launch]
        case Pointwise():
            step = replace(step, patches=region)
            level = step.source.extents
            source = _blocks(stored, level, 0) if stored else _blocks(grid, level, first, apart)
            blocks = [_blocks(grid, step.extents, first, apart), source]
        case Statistics(source=source):
            launch = measure(step, at, card, scratch, None)
            level = _halves(source.extents) if source.shuffled else source.extents
            launch = replace(launch, grid=(*launch.grid[:2], count))
            return [_in_blocks(launch, [_blocks(grid, level, first, apart)])]
        case ConvolveToPatches(part=part):
            step = replace(step, part=replace(part, source=_of_blocks(part.source, count)))
            blocks = [_blocks(grid, grid.block, first, apart)]
            if step.wgmma:
                source = _blocks(stored, part.source.extents, 0) if stored else blocks[0]
                blocks.append(source)
        case SumTaps(source=source):
            step = replace(step, source=replace(source, batch=count), patches=Region(0, count))
            blocks = [_blocks(grid, grid.block, first, apart, region.plane)]
        case Unpack(source=source):
            step = replace(step, source=_of_blocks(source, count))
            blocks = [_blocks(grid, grid.block, first, apart)]
        case _:
            raise ValueError(f"a {type(step).__name__} is none of blocks")
    [launch] = launches(step, at, card)
    if isinstance(step, SumTaps | Unpack):
        channel = step.channel if isinstance(step, Unpack) else 0
        launch.arguments.translated = at(TRANSLATED) + 4 * channel * prod(grid.extents)
    launch = _in_blocks(launch, blocks)
    if isinstance(step, Pointwise):
        launch.arguments.source_around = _around(step.source, step.around)
        launch.arguments.residual_around = _around(step.residual, step.residual_around)
        launch.arguments.source_copy = _to_copy(step.source, at, copy_of)
        launch.arguments.residual_copy = _to_copy(step.residual, at, copy_of)
    if isinstance(step, ConvolveToPatches) and step.wgmma:
        launch.arguments.source_around = _around(step.source, step.around)
    return [launch]


def _to_copy(view: TensorView | None, at: Addresses, copy_of: Addresses | None) -> int:
    """Numbers from a run's blocks of a tensor to where they are read."""
    if view is None or copy_of is None:
        return 0
    tensor = view.tensor
    return (copy_of(tensor.name) - at(tensor.name)) // NUMBER_BYTES[tensor.precision]


def _around(view: TensorView | None, first: Triple | None) -> AroundArguments:
    if view is None or first is None:
        return AroundArguments()
    return AroundArguments(Three(*view.extents), Three(*first))


def _region(step: Step, run: BlockRun) -> Region:
    """Blocks of the run that a step is for."""
    match step:
        case Pack(patches=region) | Pointwise(patches=region) | SumTaps(patches=region):
            return replace(region, count=min(region.count, run.count - region.first))
        case Convolve(region=region):
            return region if region.first < run.count else replace(region, count=0)
        case _:
            return Region(0, run.count)


def _halves(extents: Triple) -> Triple:
    return extents[0] // 2, extents[1] // 2, extents[2] // 2


def _of_blocks(view: TensorView, count: int) -> TensorView:
    tensor: Tensor = replace(view.tensor, batch=count)
    return replace(view, tensor=tensor)


def _blocks(
    grid: BlockGrid, level: Triple, first: int, apart: int = 1, plane: int = 0
) -> BlocksArguments:
    """What a kernel is told of blocks that have the extents `level` at its resolution."""
    shares = [(1 << 31) // extent + 1 for extent in level]
    return BlocksArguments(
        first=first,
        apart=apart,
        plane=plane,
        counts=Two(*grid.counts[1:]),
        extents=Three(*level),
        volume=Three(*grid.volume_at(level)),
        shares=_Shares(*shares),
    )


def _for_blocks(launch: Launch, batch: int, blocks: list[BlocksArguments], count: int) -> Launch:
    """A launch for so many blocks, each done as it is among `batch` of them."""
    across, deep, parts = launch.grid
    launch = replace(launch, grid=(across, deep, parts // batch * count))
    return _in_blocks(launch, blocks)


def _in_blocks(launch: Launch, blocks: list[BlocksArguments]) -> Launch:
    """The launch with what it is told besides."""
    plain: Structure = launch.arguments
    kind = IN_BLOCKS[type(plain)]
    values = kind.from_buffer_copy(bytes(plain).ljust(sizeof(kind), b"\0"))
    for name, told in zip(("blocks", "source_blocks"), blocks, strict=False):
        setattr(values, name, told)
    return replace(launch, arguments=values, in_blocks=True)
