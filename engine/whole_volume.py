"""A volume through the network at once: its extents there, and what it takes on a card."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .errors import PatchShapeError
from .network.graph import Graph
from .network.layer_shapes import times
from .network.layers import Triple

Residence: TypeAlias = Literal["card", "recomputed", "host"]
"""Where maps are kept: all on the card; those of low resolution, and the others are computed again;
or in slabs in pinned memory of the host.
"""


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """What one volume takes on a card.

    padded: its extents (D, H, W) in the network. device_bytes: of the card. host_bytes: of pinned
    memory. residence: of the maps. seconds: None if not known.
    """

    padded: Triple
    device_bytes: int
    host_bytes: int
    residence: Residence
    seconds: float | None


def padded_extents(graph: Graph, extents: Triple) -> Triple:
    """Extents (D, H, W) of a volume that is continued behind its last voxels to the graph's stride.

    Raises PatchShapeError if the graph cannot take such a volume, which the message names.
    """
    d, h, w = (-(-edge // step) * step for edge, step in zip(extents, graph.stride, strict=True))
    try:
        graph.check_patch((d, h, w))
    except PatchShapeError as error:
        raise PatchShapeError(
            f"A volume of {times(extents)} cannot pass through this network at once ({error}); "
            "use setting inference=patches."
        ) from error
    return d, h, w
