"""Convolutions that make, with each block, the few voxels around it that their reader sees.

A map of half the volume's resolution is then read block by block, and may as well be recomputed by
the very launches that measured it: the same plan at the same place, so the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ...network.layers import Triple, triple
from ..blocks import BlockGrid
from ..lowered import Lowered
from ..steps import ConvTransposeToCells, Pointwise, Statistics, Step
from ..tensors import Region, Tensor, TensorView
from .block_convolutions import BlockConvolution, between, reach_of, target_of
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
        if isinstance(conv, BlockConvolution) and is_worth_widening(target_of(conv), grid, worth):
            steps = _with_one_widened(steps, conv, lowered.layout.batch, most)
    return replace(lowered, steps=steps)


def is_worth_widening(tensor: Tensor, grid: BlockGrid, worth: int = WORTH_WIDENING) -> bool:
    """Whether a map is large. worth: bytes of a large one."""
    return tensor.bytes // tensor.batch * grid.blocks >= worth


@dataclass(frozen=True, slots=True)
class _Uses:
    """The steps around a convolution: writes makes its operand, reads sees neighbours."""

    writes: Pointwise
    reads: Pointwise


def _with_one_widened(
    steps: Sequence[Step], conv: BlockConvolution, batch: int, most: float
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
    narrow, reach = target_of(conv), reach_of(conv)
    if prod(extents) > most * prod(narrow.extents):
        return tuple(steps)
    operand = replace(conv.source, extents=reach.read_for(extents))
    target = replace(narrow, extents=extents)
    around = triple(cell * begin for begin in first)
    moved = zip(writes.origin, first, reach.stride, strict=True)
    origin = triple(own + begin * step for own, begin, step in moved)
    seen = triple(cell * size for size in extents)
    shuffled = reads.source.shuffled
    view = TensorView(target, seen, shuffled=shuffled)
    inner = triple(-begin for begin in around)

    def replaced(step: Step) -> Step:
        if step is writes:
            return replace(writes, target=operand, origin=origin)
        if step is conv:
            return between(conv, operand, target)
        if step is reads:
            return replace(reads, source=view, around=around)
        if isinstance(step, Statistics) and step.source.tensor == narrow:
            return replace(step, source=replace(step.source, tensor=target, origin=inner))
        return step

    return tuple(replaced(step) for step in steps)


def _is_whole(conv: BlockConvolution, batch: int) -> bool:
    """Whether a convolution makes all of its target from an operand that holds all it sees."""
    if isinstance(conv, ConvTransposeToCells):
        return True
    shape = conv.shape
    return not shape.transposed and conv.region == Region(0, batch) and not any(shape.before)


def _uses(steps: Sequence[Step], conv: BlockConvolution, batch: int) -> _Uses | None:
    """Where one pass over voxels writes a convolution's operand, and one alone reads its result."""
    if not _is_whole(conv, batch):
        return None
    target = target_of(conv)
    makers = [
        step for step in steps if step is not conv and conv.source.name in step.flow.touched_names
    ]
    others = [step for step in steps if step is not conv and target.name in step.flow.touched_names]
    readers = [step for step in others if not isinstance(step, Statistics)]
    if len(makers) != 1 or len(readers) != 1:
        return None
    [writes], [reads] = makers, readers
    if not isinstance(writes, Pointwise) or not isinstance(reads, Pointwise):
        return None
    is_plain = writes.target == conv.source and not writes.shuffles
    return _Uses(writes, reads) if is_plain and _can_read_around(reads, target) else None


def _can_read_around(reads: Pointwise, tensor: Tensor) -> bool:
    is_plain = reads.residual is None and reads.sampling is None and not reads.shuffles
    is_whole = reads.source.origin == (0, 0, 0)
    return is_plain and is_whole and reads.source.tensor == tensor and sees_neighbours(reads)


def _needed(steps: Sequence[Step], reads: Pointwise) -> Triple | None:
    """Voxels of its target that a convolution reads, which may be less than all."""
    convs = [
        step for step in steps if isinstance(step, BlockConvolution) and step.source == reads.target
    ]
    if len(convs) != 1:
        return None
    return reach_of(convs[0]).read_for(target_of(convs[0]).extents)
