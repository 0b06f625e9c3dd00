"""Whole-volume inference: which networks support it, and what it needs on a GPU."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from .errors import PatchShapeError
from .network.graph import Graph, times
from .network.layers import Triple, divided_up, multiplied
from .network.map_extents import map_extents

VOLUMES_AT_A_TIME = 3
"""Whole volumes on a GPU at a time: one is copied in, one computed, one copied out."""

Residence: TypeAlias = Literal["card", "recomputed", "host"]
"""Memory of maps: all on the GPU; those of low resolution on the GPU, with the others recomputed;
or in slabs in pinned memory of the host.
"""


HostBudget: TypeAlias = Callable[[], int]
"""Return how many bytes of host memory the maps of a volume may use now."""


def no_host_limit() -> int:
    """Return a memory budget without a limit."""
    return sys.maxsize


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """Requirements of one volume on a GPU.

    padded: its extents (D, H, W) in the network. device_bytes: of the GPU. host_bytes: of pinned
    memory. residence: of the maps. seconds: None if not known.
    """

    padded: Triple
    device_bytes: int
    host_bytes: int
    residence: Residence
    seconds: float | None


@lru_cache
def padded_extents(graph: Graph, extents: Triple) -> Triple:
    """Return the extents (D, H, W) of a volume padded at its end to the graph's stride.

    Most volumes of a batch have the same extents, and walking the graph takes the interpreter 2 ms.

    Raises PatchShapeError if the graph cannot process such a volume, which the message names.
    """
    padded = multiplied(divided_up(extents, graph.stride), graph.stride)
    try:
        graph.check_patch(padded)
    except PatchShapeError as error:
        raise PatchShapeError(
            f"This network does not support whole-volume inference on {times(extents)} ({error}); "
            "use setting inference=patches."
        ) from error
    return padded


def volume_refusal(graph: Graph) -> str | None:
    """Return why a network has no form for a volume in blocks; None if it has one."""
    if graph.patch is not None:
        return f"it was exported for patches of {times(graph.patch)} only"
    try:
        map_extents(graph)
    except PatchShapeError as error:
        return str(error)
    return None
