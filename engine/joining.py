"""Joins the statistics of small tensors with the passes that apply them: one launch for three."""

from collections.abc import Sequence

from .steps import Normalise, Pointwise, Statistics, Step, Unpack

BARRIER = "barrier"
"""Name of the constant by which the blocks of a joined launch wait for each other."""

_MOST_BYTES = 48 << 20
"""Of a tensor, about what the cache of an H200 holds: a larger one would come from memory twice."""


def joined(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with each normalisation that may be one launch as one step."""
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
    return tuple(result)


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
