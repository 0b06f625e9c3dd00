"""Convolutions that make, with each block, the few voxels around it that their reader sees.

A map of half the volume's resolution is then read block by block, and may as well be made anew by
the very launches that measured it: the same plan at the same place, so the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...network.layers import Triple, triple
from ..blocks import BlockGrid
from ..memory.plan import touched
from ..steps import (
    Convolution,
    Convolve,
    Lowered,
    Pointwise,
    Region,
    Statistics,
    Step,
    Tensor,
    TensorView,
)
from .passes import sees_neighbours

WORTH_WIDENING = 1 << 30
"""Bytes of a map for which it pays to compute a few percent of it twice: it would not leave much
room for others on most cards.
"""

_MOST = 1.15
"""Voxels made for each of the map, at most."""


def widened(
    lowered: Lowered, grid: BlockGrid, worth: int = WORTH_WIDENING, most: float = _MOST
) -> Lowered:
    """The steps with all large maps made so that a block holds what is around it.

    worth: bytes of a large map. most: voxels that are made for each of it.
    """
    steps = lowered.steps
    for number in reversed(range(len(steps))):
        conv = steps[number]
        if isinstance(conv, Convolve) and _bytes(conv.target, grid) >= worth:
            steps = _with_one_widened(steps, conv, lowered.layout.batch, most)
    return replace(lowered, steps=steps)


def _bytes(tensor: Tensor, grid: BlockGrid) -> int:
    return tensor.bytes // tensor.batch * grid.blocks


@dataclass(frozen=True, slots=True)
class _Uses:
    """The steps around a convolution: writes makes its operand, reads sees neighbours."""

    writes: Pointwise
    reads: Pointwise


def _with_one_widened(
    steps: Sequence[Step], conv: Convolve, batch: int, most: float
) -> tuple[Step, ...]:
    uses = _uses(steps, conv, batch)
    if uses is None:
        return tuple(steps)
    reads, writes = uses.reads, uses.writes
    cell = 2 if reads.source.shuffled else 1
    needed = _needed(steps, reads)
    if needed is None:
        return tuple(steps)
    first = triple(origin // cell for origin in reads.origin)
    last = (-(-(o + size) // cell) for o, size in zip(reads.origin, needed, strict=True))
    extents = triple(end - begin for begin, end in zip(first, last, strict=True))
    if prod(extents) > most * prod(conv.target.extents):
        return tuple(steps)
    stride = conv.shape.stride
    given = _read_for(extents, conv.shape)
    operand = replace(conv.source, extents=given)
    target = replace(conv.target, extents=extents)
    around = triple(cell * begin for begin in first)
    moved = zip(writes.origin, first, stride, strict=True)
    origin = triple(own + begin * step for own, begin, step in moved)
    shape = replace(conv.shape, source_extents=given, target_extents=extents)
    seen = triple(cell * size for size in extents)
    shuffled = reads.source.shuffled
    view = TensorView(target, seen, shuffled=shuffled)
    inner = triple(-begin for begin in around)

    def replaced(step: Step) -> Step:
        if step is writes:
            return replace(writes, target=operand, origin=origin)
        if step is conv:
            return replace(conv, source=operand, target=target, shape=shape)
        if step is reads:
            return replace(reads, source=view, around=around)
        if isinstance(step, Statistics) and step.source.tensor == conv.target:
            return replace(step, source=replace(step.source, tensor=target, origin=inner))
        return step

    return tuple(replaced(step) for step in steps)


def _uses(steps: Sequence[Step], conv: Convolve, batch: int) -> _Uses | None:
    """Where one pass over voxels writes a convolution's operand, and one alone reads its result."""
    if conv.shape.transposed or conv.region != Region(0, batch) or any(conv.shape.before):
        return None
    makers = [step for step in steps if step is not conv and _touches(step, conv.source)]
    others = [step for step in steps if step is not conv and _touches(step, conv.target)]
    readers = [step for step in others if not isinstance(step, Statistics)]
    if len(makers) != 1 or len(readers) != 1:
        return None
    [writes], [reads] = makers, readers
    if not isinstance(writes, Pointwise) or not isinstance(reads, Pointwise):
        return None
    is_plain = writes.target == conv.source and not writes.shuffles
    return _Uses(writes, reads) if is_plain and _can_read_around(reads, conv.target) else None


def _can_read_around(reads: Pointwise, tensor: Tensor) -> bool:
    is_plain = reads.residual is None and reads.sampling is None and not reads.shuffles
    is_whole = reads.source.origin == (0, 0, 0)
    return is_plain and is_whole and reads.source.tensor == tensor and sees_neighbours(reads)


def _needed(steps: Sequence[Step], reads: Pointwise) -> Triple | None:
    """Voxels of its target that a convolution reads, which may be less than all."""
    convs = [step for step in steps if isinstance(step, Convolve) and step.source == reads.target]
    if len(convs) != 1:
        return None
    return _read_for(convs[0].shape.target_extents, convs[0].shape)


def _read_for(extents: Triple, shape: Convolution) -> Triple:
    """Voxels that a convolution without padding reads for a target of these extents."""
    sizes = zip(extents, shape.stride, shape.kernel, shape.dilation, strict=True)
    return triple((size - 1) * step + (taps - 1) * apart + 1 for size, step, taps, apart in sizes)


def _touches(step: Step, tensor: Tensor) -> bool:
    return any(item.name == tensor.name for item in touched(step))
