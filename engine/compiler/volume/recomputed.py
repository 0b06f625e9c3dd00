"""Passes that recompute their largest operands around each block, in place of maps that are kept.

Of full resolution are what the first convolution makes, and what the last one reads. A voxel is the
same wherever in a launch it is made, so that no byte of the result changes: own kernels say which
rows they take together, and windows begin at such a row; of a plan of cuDNN it has to be found out
on the card.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from ...network.layers import Triple, triple
from ..steps import (
    Convolve,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    Pointwise,
    Statistics,
    Step,
)
from ..tensors import Region, Tensor, TensorView
from .block_convolutions import BlockConvolution, between, reach_of, target_of
from .passes import KeptBlocks, Pass, ReadsBlocks

_TOGETHER = 2 << 20
"""Voxels of blocks that own kernels recompute at once, which fill a card."""


def recomputed(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """The passes without maps of full resolution; as they are where that cannot be."""
    return _numbered(_with_last_recomputed(_with_first_recomputed(passes), grows=True))


def keeping_blocks(passes: Sequence[Pass], count: int) -> tuple[Pass, ...]:
    """Passes that recompute maps, of whose first one so many blocks stay."""
    return tuple(
        replace(one, kept=replace(one.kept, count=count)) if one.kept else one for one in passes
    )


def recomputed_twice(passes: Sequence[Pass], block: Triple) -> tuple[Pass, ...]:
    """Those without maps of full resolution, and without maps whose blocks hold what is around.

    block: extents of those of the volume's grid.
    """
    wide = list(_maps_that_hold_more(passes))
    if not wide:
        return recomputed(passes)
    found: Sequence[Pass] = _numbered(
        _with_last_recomputed(_with_first_recomputed(passes), grows=False)
    )
    for tensor in wide:
        found = _without_map(found, tensor, block)
    return _numbered(found)


def _maps_that_hold_more(passes: Sequence[Pass]) -> Iterator[Tensor]:
    """Maps whose blocks hold what their readers see around them."""
    for one in passes:
        for step in one.steps:
            if not isinstance(step, Pointwise) or step.around is None:
                continue
            if step.source.tensor.name not in one.made:  # else no map, and gone after a run
                yield step.source.tensor


def _numbered(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    found: list[Pass] = []
    for one in passes:
        found.append(replace(one, first=found[-1].last + 1 if found else 0))
    return tuple(found)


def recomputed_convolutions(passes: Sequence[Pass]) -> Iterator[Convolve]:
    """Convolutions whose blocks lie elsewhere than where they were measured."""
    for one in passes:
        if one.is_recomputed:
            yield from (step for step in one.steps if isinstance(step, Convolve))


def _with_first_recomputed(passes: Sequence[Pass]) -> Sequence[Pass]:
    """The first layer's result is made with the voxels around a block that its reader sees."""
    maker, *others = passes
    conv, *beside = maker.steps
    if not isinstance(conv, ConvolvePatches) or conv.stride != 1:
        return passes
    found = _only_reader(passes, maker, conv.target)
    if found is None:
        return passes
    reader, step = found
    rows = conv.rows_per_product
    if reader.block is not None or conv.target.extents[1] % rows:
        return passes
    origin, extents = _seen(step)
    more = 0, origin[1] % rows, 0
    start = _difference(origin, more)
    around = _recomputed(conv.target, _sum(extents, more))
    again = replace(conv, target=around, origin=_sum(conv.origin, start), statistics=None)
    reading = _reading_around(step, around, start)
    steps = again, *(reading if one is step else one for one in reader.steps)
    sees_later = any(
        first + seen > extent
        for first, seen, extent in zip(origin, extents, conv.target.extents, strict=True)
    )
    measuring = _measuring(maker)  # else nothing is made of which blocks could stay
    if not measuring and any(conv.target.name in step.flow.touched_names for step in beside):
        return passes
    kept = KeptBlocks(conv.target, 0, reader.steps) if measuring and not sees_later else None
    recomputing = replace(reader, steps=steps, kept=kept)
    replaced = [recomputing if one is reader else one for one in others]
    without = [replace(maker, steps=tuple(beside))] if beside else []
    return [*(measuring or without), *replaced]


def _seen(step: ReadsBlocks) -> tuple[Triple, Triple]:
    """First voxel that a step sees for a block, from the block's, and how many it sees."""
    match step:
        case Pointwise(origin=origin, target=target):
            return origin, target.extents
        case ConvolveToPatches(origin=origin, extents=extents, kernel=kernel):
            sizes = zip(extents, kernel, strict=True)
            return origin, triple(extent + taps - 1 for extent, taps in sizes)
        case ConvolveByPlanes(stride=stride, target=target):
            return (-1, -1, -1), triple(stride * (each - 1) + 3 for each in target.extents)


def _reading_around(step: ReadsBlocks, tensor: Tensor, start: Triple) -> ReadsBlocks:
    """The step, which reads a tensor that holds for each block what it sees, from `start` on."""
    view = TensorView(tensor, tensor.extents)
    match step:
        case Pointwise():
            return replace(step, source=view, around=start)
        case ConvolveToPatches(part=part):
            return replace(step, part=replace(part, source=view), around=start)
        case ConvolveByPlanes(parts=parts):
            only = (replace(part, source=view) for part in parts)
            return replace(step, parts=tuple(only), around=start)


def _with_last_recomputed(passes: Sequence[Pass], *, grows: bool) -> Sequence[Pass]:
    """What the last layer reads is made in blocks that share their borders.

    grows: see `_recomputing_blocks`.
    """
    reader = next((one for one in passes if isinstance(one.steps[-1], ConvolveToPatches)), None)
    if reader is None or len(reader.steps) not in (1, 2):
        return passes
    read, *_ = reader.steps
    *_, last = reader.steps
    assert isinstance(last, ConvolveToPatches)
    if not isinstance(read, Pointwise | ConvolveToPatches):
        return passes
    maker = next((one for one in passes if _makes(one, read.source.tensor)), None)
    if maker is None or maker.block is not None:
        return passes
    if _only_reader(passes, maker, read.source.tensor) is None:
        return passes
    recomputing = _recomputing_blocks(maker, read, last, grows=grows)
    if recomputing is None:
        return passes
    kept = [[] if one is reader else _measuring(one) if one is maker else [one] for one in passes]
    kept[list(passes).index(reader)] = [recomputing]
    return [one for some in kept for one in some]


def _without_map(passes: Sequence[Pass], tensor: Tensor, block: Triple) -> list[Pass]:
    """Each pass that reads a map makes it itself; as they are where one cannot.

    Where it is made of two maps, their sum is kept in their place.
    """
    maker = next(one for one in passes if tensor.name in one.made)
    making = [step for step in maker.steps if not isinstance(step, Statistics)]
    of_sum = _of_kept_sum(making)
    found: list[Pass] = []
    for one in passes:
        if one is maker:
            found += _measuring(one)
        elif any(tensor.name in step.flow.touched_names for step in one.steps):
            steps = making if of_sum is None else of_sum if one.block else making[1:]
            with_it = _making_first(steps, one, tensor, block)
            if with_it is None:
                return list(passes)
            found.append(with_it)
        else:
            found.append(one)
    return found


def _of_kept_sum(making: Sequence[Step]) -> Sequence[Step] | None:
    """The steps from the operand that the first one writes, whose blocks hold the sum of two maps.

    None where they do not.
    """
    if len(making) != 2:
        return None
    writes, conv = making
    if not isinstance(writes, Pointwise) or not isinstance(conv, BlockConvolution):
        return None
    inner = TensorView(writes.target, writes.extents, _difference((0, 0, 0), writes.origin))
    held = zip(inner.origin, inner.extents, writes.target.extents, strict=True)
    is_held = all(first >= 0 and first + size <= extent for first, size, extent in held)
    if writes.residual is None or writes.shuffles or not is_held:
        return None
    target = replace(writes.target, name=f"{writes.target.name} elsewhere")
    copies = Pointwise(inner, target, writes.patches, writes.extents, writes.origin, writes.mode)
    return copies, between(conv, target, target_of(conv))


def _making_first(
    making: Sequence[Step], reader: Pass, tensor: Tensor, block: Triple
) -> Pass | None:
    """A pass that makes what it reads around each of its blocks."""
    reads = next(step for step in reader.steps if tensor.name in step.flow.touched_names)
    assert isinstance(reads, Pointwise)
    beside = [
        step
        for step in reader.steps
        if isinstance(step, Pointwise) and step.target == reads.target and step is not reads
    ]
    if beside:
        return None  # a part of a concatenation, of which the others stay as they are
    around = reads.around
    if reader.block is not None:
        moved = _elsewhere(making, reads, reader.block, block)
        if moved is None:
            return None
        making, around = moved
    made = {name for step in making for name in step.flow.written_names}
    own = {name: f"{name} again for step {reader.first}" for name in made}
    renamed = [_renamed(step, own) for step in making]
    target = replace(tensor, name=own[tensor.name])
    extents = _times(target.extents, 2 if reads.source.shuffled else 1)
    view = TensorView(target, extents, shuffled=reads.source.shuffled)
    reading = replace(reads, source=view, around=around)
    others = (reading if step is reads else step for step in reader.steps)
    return replace(reader, steps=(*renamed, *others))


def _elsewhere(
    making: Sequence[Step], reads: Pointwise, block: Triple, usual: Triple
) -> tuple[Sequence[Step], Triple] | None:
    """The steps for blocks of other extents, and the first voxel of what they make from a block's.

    What is made has the extents of a block of the usual grid.
    """
    if len(making) != 2:
        return None
    writes, conv = making
    if not isinstance(writes, Pointwise) or not isinstance(conv, BlockConvolution):
        return None
    if writes.around is not None or reach_of(conv).stride != (1, 1, 1):
        return None
    cell = 2 if reads.source.shuffled else 1
    first = triple(origin // cell for origin in reads.origin)
    usual_first = triple(-origin // cell for origin in reads.source.origin)
    last = _sum(_times(first, cell), _times(target_of(conv).extents, cell))
    if any(a > b for a, b in zip(_sum(reads.origin, reads.target.extents), last, strict=True)):
        return None
    sizes = list(zip(writes.extents, block, usual, strict=True))
    if any(own * size % whole for own, size, whole in sizes):
        return None
    extents = triple(own * size // whole for own, size, whole in sizes)
    origin = _sum(writes.origin, _difference(first, usual_first))
    moved = replace(writes, extents=extents, origin=origin)
    return (moved, conv), _times(first, cell)


def _renamed(step: Step, names: Mapping[str, str]) -> Step:
    """The step with other names for some of its tensors."""

    def own(tensor: Tensor) -> Tensor:
        return replace(tensor, name=names.get(tensor.name, tensor.name))

    match step:
        case ConvolvePatches(target=target):
            return replace(step, target=own(target))
        case Convolve() | ConvTransposeToCells():
            return between(step, own(step.source), own(target_of(step)))
        case Pointwise(source=source, target=target):
            view = replace(source, tensor=own(source.tensor))
            return replace(step, source=view, target=own(target))
        case _:
            return step


def _makes(one: Pass, tensor: Tensor) -> bool:
    """Whether a pass writes operands, and by one convolution of them a tensor."""
    *before, conv = (step for step in one.steps if not isinstance(step, Statistics))
    if not isinstance(conv, BlockConvolution) or target_of(conv) != tensor:
        return False
    if reach_of(conv).stride != (1, 1, 1):
        return False
    is_plain = all(isinstance(step, Pointwise) and step.target == conv.source for step in before)
    return is_plain and len({step.extents for step in before if isinstance(step, Pointwise)}) == 1


def _recomputing_blocks(
    maker: Pass, read: Pointwise | ConvolveToPatches, last: ConvolveToPatches, *, grows: bool
) -> Pass | None:
    """All that the last layer needs, for blocks that share their borders.

    read: what reads the map that is recomputed, the last layer itself if nothing else does. grows:
    whether an own kernel makes more than a block, with what lies around it. A plan of cuDNN is for
    one size, so that blocks are smaller by what lies around them, and many more.
    """
    writing = [step for step in maker.steps if isinstance(step, Pointwise)]
    level = writing[0].extents
    scale = tuple(extent // own for extent, own in zip(read.extents, level, strict=True))
    origin, seen = _seen(read)
    reach = (
        max(-first, size + first - extent)
        for first, size, extent in zip(origin, seen, read.extents, strict=True)
    )
    coarse = triple(-(-size // each) for size, each in zip(reach, scale, strict=True))
    fine = triple(size * each for size, each in zip(coarse, scale, strict=True))
    conv = next(step for step in maker.steps if isinstance(step, BlockConvolution))
    is_own = grows and isinstance(conv, ConvTransposeToCells)
    together = max(1, _TOGETHER // prod(read.extents))
    batch = min(together, conv.source.batch) if is_own else conv.source.batch
    less, more = ((0, 0, 0), coarse) if is_own else (coarse, (0, 0, 0))
    smaller = triple(size * each for size, each in zip(less, scale, strict=True))
    block = _without(read.extents, smaller)
    if min(block) <= 0:
        return None
    operand, made = (
        replace(_recomputed(one, _with(one.extents, more)), batch=batch)
        for one in (conv.source, target_of(conv))
    )
    patches = Region(0, batch)
    steps = (
        *(
            replace(
                _among_neighbours(step),
                target=operand,
                patches=patches,
                extents=_without(level, less),
                origin=_difference(step.origin, coarse),
            )
            for step in writing
        ),
        between(conv, operand, made),
        *_last_of_blocks(read, last, made, block, _difference((0, 0, 0), fine)),
    )
    return Pass(0, steps, block, batch, is_recomputed=True)


def _last_of_blocks(
    read: Pointwise | ConvolveToPatches,
    last: ConvolveToPatches,
    made: Tensor,
    block: Triple,
    around: Triple,
) -> Iterator[Step]:
    """The last layer of blocks of so many voxels, from what is made around each of them."""
    cell = 2 if read.source.shuffled else 1
    source = replace(read.source, tensor=made, extents=_times(made.extents, cell))
    if isinstance(read, ConvolveToPatches):
        part = replace(read.part, source=source)
        yield replace(last, part=part, extents=block, around=around)
        return
    less = _difference(read.extents, block)
    bordered = _recomputed(read.target, _difference(read.target.extents, less))
    bordered = replace(bordered, batch=made.batch)
    yield replace(
        read,
        source=source,
        target=bordered,
        patches=Region(0, made.batch),
        extents=block,
        around=around,
    )
    part = replace(last.part, source=TensorView(bordered, bordered.extents))
    yield replace(last, part=part, extents=block)


def _among_neighbours(step: Pointwise) -> Pointwise:
    """The same step where blocks lie elsewhere, so that its source's are not around its own."""
    if step.around is None:
        return step
    inner = _difference((0, 0, 0), step.around)
    source = replace(step.source, extents=step.extents, origin=inner)
    return replace(step, source=source, around=None)


def _only_reader(
    passes: Sequence[Pass], maker: Pass, tensor: Tensor
) -> tuple[Pass, ReadsBlocks] | None:
    """The one step that reads a map, where it can read it around its own block."""
    readers = [(one, step) for one in passes for step in one.steps if one is not maker]
    found = [(one, step) for one, step in readers if tensor.name in step.flow.touched_names]
    if len(found) != 1:
        return None
    [(one, step)] = found
    if isinstance(step, ConvolveByPlanes) or (isinstance(step, ConvolveToPatches) and step.wgmma):
        return one, step
    if not isinstance(step, Pointwise) or step.source.tensor != tensor:
        return None
    is_plain = step.residual is None and step.sampling is None and not step.shuffles
    return (one, step) if is_plain else None


def _measuring(one: Pass) -> list[Pass]:
    """A pass whose map is recomputed elsewhere, if it measures that."""
    return [one] if any(step.flow.measures is not None for step in one.steps) else []


def _recomputed(tensor: Tensor, extents: Triple) -> Tensor:
    return replace(tensor, name=f"{tensor.name} recomputed", extents=extents)


def _sum(one: Triple, other: Triple) -> Triple:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _difference(one: Triple, other: Triple) -> Triple:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def _without(extents: Triple, border: Triple) -> Triple:
    """What is left of extents between two borders."""
    return _difference(_difference(extents, border), border)


def _with(extents: Triple, border: Triple) -> Triple:
    """Extents with a border around them."""
    return _sum(_sum(extents, border), border)


def _times(extents: Triple, factor: int) -> Triple:
    return factor * extents[0], factor * extents[1], factor * extents[2]
