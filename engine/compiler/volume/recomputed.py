"""Passes that recompute their largest operands around each block, instead of storing maps.

The output of the first convolution and the input of the last one have full resolution. A voxel is
the same wherever in a launch it is computed, so that no byte of the result changes: custom kernels
state which rows they compute together, and windows begin at such a row; for a cuDNN plan this has
to be checked on the GPU.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TypeGuard

from ...network.layers import (
    TWOS,
    Triple,
    added,
    divided_up,
    multiplied,
    negative,
    subtracted,
    triple,
)
from ..kernels.table import kernel_of
from ..steps import ActivatedView, Conv, Pointwise, Statistics, Step, planned
from ..tensors import Region, Tensor, TensorView
from .passes import KeptBlocks, Pass, finds_blocks, source_of

_TOGETHER = 2 << 20
"""Voxels of blocks that custom kernels recompute in one run, which fill a GPU."""


def recomputed(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return the passes without maps of full resolution; unchanged if that is impossible."""
    return _numbered(_with_last_recomputed(_with_first_recomputed(passes)))


def keeping_blocks(passes: Sequence[Pass], count: int) -> tuple[Pass, ...]:
    """Return recompute passes that keep the first `count` blocks of the first map."""
    return tuple(
        replace(one, kept=replace(one.kept, count=count)) if one.kept else one for one in passes
    )


def _numbered(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    found: list[Pass] = []
    for one in passes:
        found.append(replace(one, first=found[-1].last + 1 if found else 0))
    return tuple(found)


def recomputed_convolutions(passes: Sequence[Pass]) -> Iterator[Conv]:
    """Yield cuDNN convolutions whose blocks differ from those used for statistics."""
    for one in passes:
        if one.is_recomputed:
            yield from planned(one.steps)


def _with_first_recomputed(passes: Sequence[Pass]) -> Sequence[Pass]:
    """Recompute the first layer's result, with the halo around a block that its reader needs."""
    maker, *others = passes
    conv, *others_of_maker = maker.steps
    if not isinstance(conv, Conv) or not conv.patches or conv.geometry.stride != (1, 1, 1):
        return passes
    found = _only_reader(passes, maker, conv.target)
    if found is None:
        return passes
    reader, step = found
    rows = kernel_of(conv).rows(conv)
    if reader.block is not None or conv.target.extents[1] % rows:
        return passes
    origin, extents = step.reach.origin, step.reach.extents
    more = 0, origin[1] % rows, 0
    start = subtracted(origin, more)
    around = _recomputed(conv.target, added(extents, more))
    before = subtracted(conv.geometry.before, start)
    geometry = replace(conv.geometry, before=before)
    again = replace(conv, output=around.whole, geometry=geometry, statistics=None)
    reading = _reading_around(step, around, start)
    steps = again, *(reading if one is step else one for one in reader.steps)
    sees_later = any(
        first + size > extent
        for first, size, extent in zip(origin, extents, conv.target.extents, strict=True)
    )
    measuring = _measuring(maker)  # else there is no output of which blocks could be kept
    if not measuring and any(
        conv.target.name in step.flow.touched_names for step in others_of_maker
    ):
        return passes
    kept = KeptBlocks(conv.target, 0, reader.steps) if measuring and not sees_later else None
    recomputing = replace(reader, steps=steps, kept=kept)
    replaced = [recomputing if one is reader else one for one in others]
    without = [replace(maker, steps=tuple(others_of_maker))] if others_of_maker else []
    return [*(measuring or without), *replaced]


def _reading_around(step: Pointwise | Conv, tensor: Tensor, start: Triple) -> Pointwise | Conv:
    """Return the step, reading a tensor with each block's receptive window, from `start` on."""
    if isinstance(step, Pointwise):
        return replace(step, source=tensor.whole, around=start)
    return replace(step, inputs=_reading(step, tensor.whole), around=start)


def _reading(conv: Conv, source: TensorView) -> tuple[ActivatedView, ...]:
    """Return the inputs of a convolution, read from other memory."""
    return tuple(replace(part, source=source) for part in conv.views)


def _with_last_recomputed(passes: Sequence[Pass]) -> Sequence[Pass]:
    """Recompute the input of the last layer in blocks that overlap at their borders."""
    reader = next((one for one in passes if _is_last_layer(one.steps[-1])), None)
    if reader is None or len(reader.steps) not in (1, 2):
        return passes
    read, *_ = reader.steps
    *_, last = reader.steps
    assert isinstance(last, Conv)
    if not isinstance(read, Pointwise | Conv) or (isinstance(read, Conv) and read is not last):
        return passes
    map_read = source_of(read).tensor
    maker = next((one for one in passes if _makes(one, map_read)), None)
    if maker is None or maker.block is not None:
        return passes
    if _only_reader(passes, maker, map_read) is None:
        return passes
    recomputing = _recomputing_blocks(maker, read, last)
    if recomputing is None:
        return passes
    kept = [[] if one is reader else _measuring(one) if one is maker else [one] for one in passes]
    kept[list(passes).index(reader)] = [recomputing]
    return [one for some in kept for one in some]


def _is_last_layer(step: Step) -> bool:
    """Return whether a step is a convolution that writes the translated patches."""
    return isinstance(step, Conv) and step.translated is not None


def _makes(one: Pass, tensor: Tensor) -> bool:
    """Return whether a pass writes operands, and a tensor by one convolution of them."""
    *before, conv = (step for step in one.steps if not isinstance(step, Statistics))
    if not _is_block_convolution(conv) or conv.target != tensor:
        return False
    if conv.kernel is None and conv.geometry.stride != (1, 1, 1):
        return False
    is_plain = all(isinstance(step, Pointwise) and step.target == conv.source for step in before)
    return is_plain and len({step.extents for step in before if isinstance(step, Pointwise)}) == 1


def _is_block_convolution(step: Step) -> TypeGuard[Conv]:
    """Return whether a step is a convolution between tensors whose operand includes the halo."""
    is_between = isinstance(step, Conv) and bool(step.views) and not step.translated
    return is_between and not finds_blocks(step)


def _recomputing_blocks(maker: Pass, read: Pointwise | Conv, last: Conv) -> Pass | None:
    """Return the pass that computes all that the last layer needs, for blocks with shared borders.

    read: reader of the recomputed map, the last layer itself if nothing else reads it. A custom
    kernel computes a block with its halo. A cuDNN plan is for one size, so that blocks are smaller
    by the halo, and many more.
    """
    writing = [step for step in maker.steps if isinstance(step, Pointwise)]
    level = writing[0].extents
    extents = _extents(read)
    scale = triple(extent // own for extent, own in zip(extents, level, strict=True))
    reach = (
        max(-first, size + first - extent)
        for first, size, extent in zip(read.reach.origin, read.reach.extents, extents, strict=True)
    )
    coarse = divided_up(triple(reach), scale)
    fine = multiplied(coarse, scale)
    conv = next(step for step in maker.steps if _is_block_convolution(step))
    is_own = conv.kernel is not None
    together = max(1, _TOGETHER // prod(extents))
    batch = min(together, conv.source.batch) if is_own else conv.source.batch
    less, more = ((0, 0, 0), coarse) if is_own else (coarse, (0, 0, 0))
    smaller = multiplied(less, scale)
    block = subtracted(extents, smaller, smaller)
    if min(block) <= 0:
        return None
    operand, output = (
        replace(_recomputed(one, added(one.extents, more, more)), batch=batch)
        for one in (conv.source, conv.target)
    )
    patches = Region(0, batch)
    steps = (
        *(
            replace(
                step,
                output=replace(step.output, tensor=operand, extents=operand.extents),
                patches=patches,
                extents=subtracted(level, less, less),
                origin=subtracted(step.origin, coarse),
            )
            for step in writing
        ),
        _between(conv, operand, output),
        *_last_of_blocks(read, last, output, block, negative(fine)),
    )
    return Pass(0, steps, block, batch, is_recomputed=True)


def _extents(read: Pointwise | Conv) -> Triple:
    """Return the extents of the block that a step writes."""
    return read.extents if isinstance(read, Pointwise) else read.output.extents


def _last_of_blocks(
    read: Pointwise | Conv, last: Conv, source: Tensor, block: Triple, around: Triple
) -> Iterator[Step]:
    """Yield the last layer for blocks of extents `block`, from a map computed with their halo."""
    view = source_of(read)
    cell = 2 if view.shuffled else 1
    seen = replace(view, tensor=source, extents=multiplied(source.extents, (cell, cell, cell)))
    result = replace(last.output, extents=block)
    if isinstance(read, Conv):
        yield replace(last, inputs=_reading(last, seen), output=result, around=around)
        return
    less = subtracted(read.extents, block)
    bordered = _recomputed(read.target, subtracted(read.target.extents, less))
    bordered = replace(bordered, batch=source.batch)
    yield replace(
        read,
        source=seen,
        output=replace(read.output, tensor=bordered, extents=bordered.extents),
        patches=Region(0, source.batch),
        extents=block,
        around=around,
    )
    yield replace(last, inputs=_reading(last, bordered.whole), output=result)


def _between(conv: Conv, source: Tensor, target: Tensor) -> Conv:
    """Return the same convolution from one tensor to another, without statistics."""
    output = target.whole
    if isinstance(conv.output, TensorView) and conv.output.shuffled:
        output = TensorView(target, multiplied(target.extents, TWOS), shuffled=True)
    inputs = _reading(conv, source.whole)
    return replace(conv, inputs=inputs, output=output, statistics=None)


def _only_reader(
    passes: Sequence[Pass], maker: Pass, tensor: Tensor
) -> tuple[Pass, Pointwise | Conv] | None:
    """Return the only reader of a map, if it can read the map around its own block."""
    readers = [(one, step) for one in passes for step in one.steps if one is not maker]
    found = [(one, step) for one, step in readers if tensor.name in step.flow.touched_names]
    if len(found) != 1:
        return None
    [(one, step)] = found
    if not finds_blocks(step):
        return None
    if isinstance(step, Conv):
        return one, step
    if step.source.tensor != tensor:
        return None
    is_plain = step.residual is None and step.sampling is None and not step.output.shuffled
    return (one, step) if is_plain else None


def _measuring(one: Pass) -> list[Pass]:
    """Return a pass whose map is recomputed elsewhere, if it computes statistics; else nothing."""
    return [one] if any(step.flow.measures is not None for step in one.steps) else []


def _recomputed(tensor: Tensor, extents: Triple) -> Tensor:
    return replace(tensor, name=f"{tensor.name} recomputed", extents=extents)
