"""Fusion of statistics with the step before or after: fewer launches, and fewer bytes read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from ...network.layers import ZEROS
from ..gpu_properties import GpuProperties
from ..kernels.table import kernel_of
from ..steps import Conv, Normalise, Pointwise, Statistics, Step

_CACHED = 4, 5
"""Largest share of the L2 cache, as a fraction, up to which a tensor is still cached when read
again.
"""


def fused(steps: Sequence[Step], gpu: GpuProperties) -> tuple[Step, ...]:
    """Return the steps, with each normalisation that may be one launch as one step.

    If that is not possible, statistics of a convolution by a custom kernel move into its epilogue.
    """
    return with_fused_statistics(with_fused_normalisations(steps, gpu))


def with_fused_normalisations(
    steps: Sequence[Step], gpu: GpuProperties, others: Iterable[Step] = ()
) -> tuple[Step, ...]:
    """Return the steps, with each normalisation that may be one launch as one step.

    others: steps of the same program that may also read the tables of these.
    """
    readers = *steps, *others
    return tuple(_with_neighbours_fused(steps, partial(_fused_normalisation, readers, gpu)))


def with_fused_statistics(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps, with statistics of custom kernels' whole outputs in their epilogues."""
    return tuple(_with_neighbours_fused(steps, _fused_statistics))


def _with_neighbours_fused(
    steps: Sequence[Step], fuse: Callable[[Step, Step], Step | None]
) -> list[Step]:
    """Return the steps with pairs fused. fuse: returns one step for two, None to keep both."""
    result: list[Step] = []
    for step in steps:
        one = fuse(result[-1], step) if result else None
        if one is None:
            result.append(step)
        else:
            result[-1] = one
    return result


def _fused_normalisation(
    steps: Sequence[Step], gpu: GpuProperties, before: Step, step: Step
) -> Normalise | None:
    if (
        isinstance(before, Statistics)
        and isinstance(step, Pointwise)
        and _is_only_use(before, step, steps)
        and _fits(before, step, gpu)
    ):
        return Normalise(before, step)
    return None


def _fused_statistics(before: Step, step: Step) -> Step | None:
    if not isinstance(step, Statistics) or not isinstance(before, Conv):
        return None
    is_measured = kernel_of(before).measures and step.source == before.output
    return replace(before, statistics=step) if is_measured else None


def _is_only_use(statistics: Statistics, step: Pointwise, steps: Sequence[Step]) -> bool:
    uses = [table for user in steps for table in user.flow.tables if table == statistics.target]
    return step.table == statistics.target and step.source == statistics.source and len(uses) == 1


def _fits(statistics: Statistics, step: Pointwise, gpu: GpuProperties) -> bool:
    view = statistics.source
    share, whole = _CACHED
    return (
        view.is_whole
        and view.tensor.excess == ZEROS
        and statistics.groups is None
        and view.tensor.bytes * whole <= gpu.l2_bytes * share
        and step.sampling is None
        and step.norm is None
        and not step.output.shuffled
        and step.patches.count == view.tensor.batch
    )
