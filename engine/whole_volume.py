"""Whole-volume inference: which networks support it, and what it needs on a GPU."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from .errors import PatchShapeError
from .network.graph import Graph, Node, TensorShape, times
from .network.layers import TWOS, Conv3d, Pad, Triple, divided_up, kind_of, multiplied, triple

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


_EDGES = 24, 48
"""Strides along each axis of two trial volumes, of which one is twice the other."""


def volume_refusal(graph: Graph) -> str | None:
    """Return why a network has no form for a volume in blocks; None if it has one.

    Each feature map must have the volume's grid, made coarser by whole factors, so that its blocks
    are adjacent; a padding may grow it for the convolution that follows.
    """
    if graph.patch is not None:
        return f"it was exported for patches of {times(graph.patch)} only"
    try:
        small, large = (_shapes(graph, edge) for edge in _EDGES)
    except PatchShapeError as error:
        return str(error)
    for node in graph.nodes:
        if not _has_form(graph, node, small, large):
            before, after = (times(small[name].extents) for name in (node.inputs[0], node.name))
            kind = f"layer {node.name} ({kind_of(node.layer)})"
            return f"{kind} makes {after} voxels of {before}, which blocks do not divide evenly"
    return None


def _shapes(graph: Graph, edge: int) -> dict[str, TensorShape]:
    extents = triple(edge * step for step in graph.stride)
    graph.check_patch(extents)
    return graph.shapes(extents)


def _has_form(
    graph: Graph,
    node: Node,
    small: Mapping[str, TensorShape],
    large: Mapping[str, TensorShape],
) -> bool:
    def is_on_grid(name: str) -> bool:
        return multiplied(TWOS, small[name].extents) == large[name].extents

    match node.layer:
        case Pad():
            readers = [other.layer for other in graph.nodes if node.name in other.inputs]
            ends = node.name != graph.output and is_on_grid(node.inputs[0])
            return ends and all(isinstance(r, Conv3d) and not any(r.padding) for r in readers)
        case _:
            return is_on_grid(node.name)
