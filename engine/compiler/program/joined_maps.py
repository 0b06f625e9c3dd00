"""Joined maps: steps write their channels to their place instead of a tensor that is copied there.

The list of maps of a dense block is one tensor, which grows by channels: each layer reads those so
far, as a view.
"""

from collections.abc import Container, Sequence
from dataclasses import replace

from ...network.layers import ZEROS
from ..kernels.table import kernel_of
from ..steps import Conv, Interleave, Pointwise, Step
from ..tensors import Tensor, TensorView
from .memory import most_live_bytes

_MORE_BYTES = 9 / 8
"""Most bytes that live at a time without copies, compared with those of the steps with them."""


def without_copies(steps: Sequence[Step], constants: Container[str]) -> Sequence[Step]:
    """Return the steps without copies of maps that can be written to a joined map directly.

    constants: as of `most_live_bytes`. A copy remains if more than `_MORE_BYTES` would live at a
    time, as the joined map lives from the first of its channels on. The order of the steps stays.
    """
    most, index = 0.0, 0
    while index < len(steps):
        direct = _without_copy(steps, index)
        if direct is None:
            index += 1
            continue
        most = most or _MORE_BYTES * most_live_bytes(steps, constants)
        if most_live_bytes(direct, constants) <= most:
            steps = direct
        else:
            index += 1
    return steps


def _without_copy(steps: Sequence[Step], index: int) -> list[Step] | None:
    """Return the steps with the channels that one copies in the joined map from the start; None if
    it is no copy, or if a step needs them as a tensor.
    """
    copy = steps[index]
    if not isinstance(copy, Pointwise) or not _is_copy(copy):
        return None
    source = copy.source.tensor
    direct: list[Step] = []
    for number, step in enumerate(steps):
        if number == index:
            continue
        if source.name in step.flow.touched_names:
            moved = _moved(step, source, copy.output)
            if moved is None:
                return None
            step = moved
        direct.append(step)
    return direct


def _is_copy(step: Pointwise) -> bool:
    """Return whether a pass copies a whole tensor to some channels of another one.

    A V-Net's skip is not copied in this sense: its strided convolution reads cells, which the pass
    moves to voxels of the joined map.
    """
    source, target = step.source.tensor, step.target
    bare = Pointwise(step.source, step.output, step.patches, step.extents, ZEROS, step.mode)
    return (
        step == bare
        and step.source.is_whole
        and (source.batch, source.extents, source.excess)
        == (target.batch, target.extents, target.excess)
        and step.patches.count == target.batch
        and source.scale is None
        and target.scale is None
        and step.output.lanes is not None
    )


def _moved(step: Step, source: Tensor, joined: TensorView) -> Step | None:
    """Return a step with a tensor as the channels `joined` of a map; None if it needs the tensor.

    cuDNN reads and writes whole tensors, as plans are tried and checked with, and so do nearly all
    custom kernels of convolutions. So what another convolution writes is copied, once.
    """
    match step:
        case Interleave() if step.target == source:
            return replace(step, output=_within(step.output, source, joined))
        case Conv(output=TensorView() as output) if _may_join(step, source):
            return replace(step, output=_within(output, source, joined))
        case Pointwise() if step.target != source or not step.output.shuffled:
            return replace(
                step,
                source=_within(step.source, source, joined),
                output=_within(step.output, source, joined),
                residual=step.residual and _within(step.residual, source, joined),
            )
        case _:
            return None


def _may_join(step: Conv, source: Tensor) -> bool:
    """Return whether a convolution only writes a tensor, and may write a joined map instead."""
    is_read = any(view.source.tensor == source for view in step.views)
    return step.kernel is not None and kernel_of(step).joins and not is_read


def _within(view: TensorView, source: Tensor, joined: TensorView) -> TensorView:
    """Return a view of a tensor as one of the channels `joined`; other views as they are."""
    if view.tensor != source:
        return view
    (begin, end), (first, _) = view.lanes or (0, source.channels), joined.lanes or (0, 0)
    return replace(view, tensor=joined.tensor, lanes=(first + begin, first + end))
