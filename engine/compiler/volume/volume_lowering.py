"""Lower a network to steps for the blocks of a volume; low resolutions of a small one undivided."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...network.graph import Network
from ...network.layers import ONES, TWOS, added, multiplied, subtracted
from ...options import Precision
from ..blocks import BlockGrid
from ..gpu_properties import GpuProperties
from ..kernels.table import kernel_of
from ..lowered import LayerForm, Lowered, UndividedSteps
from ..program.fitting import ProgramRequest
from ..program.forms import compared
from ..program.fusion import with_fused_normalisations, with_fused_statistics
from ..program.lowering import lower
from ..steps import Conv, Pointwise, Statistics, Step
from ..tensors import Tensor, TensorView
from .passes import Pass, finds_blocks, passes_of

MOST_UNDIVIDED = 256 << 20
"""Most bytes of a tensor of such steps: a few of them take less than maps of full resolution do
before and after.
"""

_FEWEST = 3
"""Fewest passes; fewer are not worth plans for convolutions of an extent that few volumes share."""


def with_low_resolutions_undivided(
    lowered: Lowered, whole: Lowered, *, is_filled: bool, most: int = MOST_UNDIVIDED
) -> Lowered:
    """Return the steps for blocks, with those between small tensors undivided, for all blocks as
    one.

    At low resolution a large part of a block's input is its halo, runs of a few blocks leave a GPU
    idle, and a normalisation of a tensor that fits in the cache is one launch for all of it.

    whole: the same network for one block that contains all of them. is_filled: whether the volume
    fills it, so that kernels for patches can be used, too. most: bytes of a tensor at most.
    """
    if len(whole.steps) != len(lowered.steps):
        return lowered
    found = _longest(lowered, whole, most)
    if found is None:
        return lowered
    first, stop = found
    of_blocks = {item.name: item for step in lowered.steps[:first] for item in _tensors(step)}
    of_all = {item.name: item for step in whole.steps[first:stop] for item in _tensors(step)}
    own = tuple(_reading(step, of_blocks) for step in whole.steps[first:stop])
    written_later = {name: item for name, item in of_all.items() if name not in of_blocks}
    later = tuple(_reading(step, written_later) for step in lowered.steps[stop:])
    if is_filled:
        own = with_fused_normalisations(own, lowered.gpu, later)
    steps = *lowered.steps[:first], *own, *later
    undivided = UndividedSteps(first, first + len(own), whole.layout.patch)
    return replace(lowered, steps=steps, undivided=undivided)


def _longest(lowered: Lowered, whole: Lowered, most: int) -> tuple[int, int] | None:
    """Return the first step of the longest row of passes that may be undivided, and its end."""
    rows: list[list[Pass]] = [[]]
    for one in passes_of(lowered)[1:-1]:
        pairs = zip(one.steps, whole.steps[one.first : one.last + 1], strict=True)
        if all(_may_be_undivided(here, there, most) for here, there in pairs):
            rows[-1].append(one)
        else:
            rows.append([])
    parts = sorted((part for row in rows for part in _parts(row)), key=len, reverse=True)
    bounds = ((part[0].first, part[-1].last + 1) for part in parts)
    return next((each for each in bounds if _can_be_parted(lowered.steps, *each)), None)


def _parts(row: Sequence[Pass]) -> Iterator[Sequence[Pass]]:
    """Yield all consecutive parts of a row with enough passes to pay off."""
    for first in range(len(row)):
        for stop in range(first + _FEWEST, len(row) + 1):
            yield row[first:stop]


def _may_be_undivided(here: Step, there: Step, most: int) -> bool:
    """Return whether a step is the same for blocks and for all of them, with small tensors."""
    if any(item.bytes > most for item in _tensors(there)):
        return False
    match here, there:
        case Conv(kernel=None, shape=shape), Conv(kernel=None, shape=other):
            return (shape.kernel, shape.stride, shape.dilation, shape.weights, here.weight) == (
                other.kernel,
                other.stride,
                other.dilation,
                other.weights,
                there.weight,
            )
        case (Pointwise(), Pointwise()) | (Statistics(), Statistics()):
            return _names(here) == _names(there)
        case Conv(kernel=own), Conv(kernel=other_own):
            is_between = bool(here.views) and not here.translated and not finds_blocks(here)
            return is_between and own == other_own and _names(here) == _names(there)
        case _:
            return False


def _can_be_parted(steps: Sequence[Step], first: int, stop: int) -> bool:
    """Return whether steps [first, stop) and the others exchange tensors only through passes over
    voxels.

    Only those may read by another grid than their own.
    """
    before, inside = _made_before_and_inside(steps, first, stop)
    outside = *steps[:first], *steps[stop:]
    for readers, others in ((steps[first:stop], before), (outside, inside)):
        for step in readers:
            shared = {item.name for item in _tensors(step)} & others
            if shared and not (isinstance(step, Pointwise) and _reads_anywhere(step, shared)):
                return False
    return True


def _made_before_and_inside(
    steps: Sequence[Step], first: int, stop: int
) -> tuple[set[str], set[str]]:
    """Return names of tensors of steps before [first, stop), and of those new in these steps."""
    before = {item.name for step in steps[:first] for item in _tensors(step)}
    return before, {item.name for step in steps[first:stop] for item in _tensors(step)} - before


def _reads_anywhere(step: Pointwise, names: set[str]) -> bool:
    """Return whether a pass reads exactly the tensors of these names, and not block by block."""
    views = step.source, step.residual
    return names == {view.tensor.name for view in views if view is not None}


def _reading(step: Step, tensors: Mapping[str, Tensor]) -> Step:
    """Return the step, reading tensors of these names instead of those of its own grid."""
    if not isinstance(step, Pointwise) or step.source.tensor.name not in tensors:
        return step
    residual = None if step.residual is None else _view_of(tensors, step.residual)
    return replace(step, source=_view_of(tensors, step.source), residual=residual)


def _view_of(tensors: Mapping[str, Tensor], view: TensorView) -> TensorView:
    """Return the same view of the tensor of that name, within the same margins."""
    tensor, voxels = tensors[view.tensor.name], TWOS if view.shuffled else ONES
    grown = subtracted(tensor.extents, view.tensor.extents)
    extents = added(view.extents, multiplied(voxels, grown))
    return replace(view, tensor=tensor, extents=extents)


def _tensors(step: Step) -> Iterator[Tensor]:
    return (item for item in step.flow.touches if isinstance(item, Tensor))


def _names(step: Step) -> list[str]:
    return [item.name for item in step.flow.touches]


def lowered_blocks(
    network: Network,
    grid: BlockGrid,
    precision: Precision,
    gpu: GpuProperties,
    without: frozenset[str],
) -> Lowered:
    """Return the steps for the blocks of a grid, which no memory limit affects.

    without: custom kernels, by their .cu files, that are wrong on the GPU.
    """
    request = ProgramRequest(grid.block, grid.batch, precision, gpu, without)
    layout = replace(request.fastest, in_blocks=True)
    lowered = lower(network, layout, gpu)
    if forms := _other_forms(lowered):
        layout = replace(layout, forms=forms)
        lowered = lower(network, layout, gpu)
    lowered = _measured(lowered)
    if (one := grid.undivided) is None:
        return lowered
    whole = _measured(lower(network, replace(layout, patch=one.block, batch=1), gpu))
    return with_low_resolutions_undivided(lowered, whole, is_filled=one.block == one.extents)


def _measured(lowered: Lowered) -> Lowered:
    return replace(lowered, steps=with_fused_statistics(lowered.steps))


def _other_forms(lowered: Lowered) -> dict[str, LayerForm]:
    """Return layers whose custom kernel wastes too much work, with cuDNN's tactic."""
    return {
        step.layer: kernel_of(step).forms[-1]
        for step in compared(lowered)
        if not kernel_of(step).pays(step)
    }
