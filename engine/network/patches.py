"""Which smaller patch a network takes when one is too large for some memory."""

from bisect import bisect_left
from collections.abc import Callable

from ..errors import PatchShapeError
from .graph import Graph
from .layers import Triple, triple

_STEPS = 64
"""Sizes that are looked at between nothing and the whole patch."""


def largest_patch(graph: Graph, patch: Triple, fits: Callable[[Triple], bool]) -> Triple | None:
    """The largest patch (D, H, W) below `patch`, of about its proportions, that fits; None if none.

    fits: whether a patch does; what is smaller than one that does must fit too. Edges are multiples
    of 16 where that is possible, for the network's strides and for people.
    """
    candidates = dict.fromkeys(_scaled(patch, step) for step in range(1, _STEPS))
    taken = [one for one in candidates if one != patch and _is_taken(graph, one)]
    fitting = bisect_left(taken, True, key=lambda one: not fits(one))
    return taken[fitting - 1] if fitting else None


def _scaled(patch: Triple, step: int) -> Triple:
    return triple(_rounded(max(1, edge * step // _STEPS)) for edge in patch)


def _rounded(edge: int) -> int:
    return edge // 16 * 16 or 1 << edge.bit_length() - 1


def _is_taken(graph: Graph, patch: Triple) -> bool:
    try:
        graph.check_patch(patch)
    except PatchShapeError:
        return False
    return True
