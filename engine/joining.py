"""Joins statistics with what comes before or after: fewer launches, and fewer bytes read."""

from collections.abc import Sequence
from dataclasses import replace

from .steps import ConvolvePatches, Normalise, Pointwise, Statistics, Step, Unpack

BARRIER = "barrier"
"""Name of the constant by which the blocks of a joined launch wait for each other."""

_MOST_BYTES = 48 << 20
"""Of a tensor, about what the cache of an H200 holds: a larger one would come from memory twice."""


def joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with each normalisation that may be one launch as one step.

    That of the first layer, where it may not, is measured by its convolution.
    """
    return tuple(_measured_at_once(_normalised_at_once(steps)))


def _normalised_at_once(steps: Sequence[Step]) -> list[Step]:
    result: list[Step] = []
    for step in steps:
        before = result[-1] if result else None
        if (
            isinstance(before, Statistics)
            and isinstance(step, Pointwise)
            and _is_only_use(before, step, steps)
            and _fits(before, step)
        ):
            result[-1] = Normalise(before, step, BARRIER)
        else:
            result.append(step)
    return result


def _measured_at_once(steps: Sequence[Step]) -> list[Step]:
    result: list[Step] = []
    for step in steps:
        before = result[-1] if result else None
        if (
            isinstance(before, ConvolvePatches)
            and isinstance(step, Statistics)
            and step.source.is_whole
            and step.source.tensor == before.target
        ):
            result[-1] = replace(before, statistics=step)
        else:
            result.append(step)
    return result


def _is_only_use(statistics: Statistics, step: Pointwise, steps: Sequence[Step]) -> bool:
    users = (s for s in steps if isinstance(s, Pointwise | Unpack))
    uses = [user for user in users if user.table == statistics.target]
    return step.table == statistics.target and step.source == statistics.source and len(uses) == 1


def _fits(statistics: Statistics, step: Pointwise) -> bool:
    view = statistics.source
    return (
        view.is_whole
        and view.tensor.bytes <= _MOST_BYTES
        and step.sampling is None
        and step.patches.count == view.tensor.batch
    )
