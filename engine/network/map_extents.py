"""Extents of a graph's maps in volumes of any size: a grid that grows with the volume, and a rest.

Convolutions, transposed ones and pools may make more or fewer voxels than their stride states, such
as 2 N + 1 of N. The rest is the same in a volume of any size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from .graph import Graph
from .layers import Triple, multiplied, subtracted, triple

_STRIDES = 1024
"""Strides along each axis of a trial volume; another one has twice as many."""


@dataclass(frozen=True, slots=True)
class MapExtents:
    """Extents of a map along D, H and W: each * n + excess in a volume of n strides of the graph.

    excess: voxels past the map's grid; below 0 if the map ends before its grid does.
    """

    each: Triple
    excess: Triple

    def on_grid(self, strides: Triple) -> Triple:
        """Return the extents of the grid in a part of the volume of so many strides."""
        return multiplied(self.each, strides)


@lru_cache
def map_extents(graph: Graph) -> Mapping[str, MapExtents]:
    """Return the extents of each node's map, and of the input.

    Raises PatchShapeError if the graph does not keep a volume's extents, or a layer has no output.
    """
    small, large = (_extents(graph, strides) for strides in (_STRIDES, 2 * _STRIDES))
    found: dict[str, MapExtents] = {}
    for name, extents in small.items():
        each = triple(size // _STRIDES for size in subtracted(large[name], extents))
        grid = multiplied(each, (_STRIDES, _STRIDES, _STRIDES))
        found[name] = MapExtents(each, subtracted(extents, grid))
    return found


def _extents(graph: Graph, strides: int) -> dict[str, Triple]:
    volume = triple(strides * step for step in graph.stride)
    graph.check_patch(volume)
    return {name: shape.extents for name, shape in graph.shapes(volume).items()}
