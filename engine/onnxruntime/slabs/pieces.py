"""A graph cut into pieces, each of which computes one map from earlier maps.

A map is stored if its neighbours' values, its statistics or two readers are needed. So a piece has
at most one layer that reads beyond a voxel, and slabs of a map need no more than its border.
"""

from collections import Counter
from dataclasses import dataclass

from ...network.graph import INPUT, Graph, Node
from ...network.layers import (
    Clip,
    Conv3d,
    ConvTranspose3d,
    Downsample,
    GroupNorm,
    InstanceNorm,
    Pool,
    Upsample,
)

GlobalNorm = InstanceNorm | GroupNorm
_LOOKS_AROUND = Conv3d | ConvTranspose3d | Downsample | Pool | Upsample


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes that run together; the output of the last of them is the map.

    nodes: in an order in which they can run. sources: what they read from outside, each a map, the
    input, or one of these normalised by its statistics, by the name of the norm.
    """

    nodes: tuple[Node, ...]
    sources: tuple[str, ...]

    @property
    def made(self) -> str:
        """Name of the map."""
        return self.nodes[-1].name


@dataclass(frozen=True, slots=True)
class CutGraph:
    """A graph in pieces.

    norms: by statistics of a map, by their names; each reads a map or the input. measured: maps
    whose statistics are computed.
    """

    pieces: tuple[Piece, ...]
    norms: dict[str, Node]

    @property
    def measured(self) -> set[str]:
        return {node.inputs[0] for node in self.norms.values()}

    def map_of(self, source: str) -> str:
        """Return the map of a source, or the input."""
        norm = self.norms.get(source)
        return norm.inputs[0] if norm else source

    def last_readers(self) -> dict[str, int]:
        """Return the number of the last piece that reads each map."""
        return {
            self.map_of(source): number
            for number, piece in enumerate(self.pieces)
            for source in piece.sources
        }


def cut(graph: Graph) -> CutGraph:
    """Return the pieces of a graph, in an order in which they can run."""
    nodes = _ending_in_a_map(graph)
    norms = {node.name: node for node in nodes if isinstance(node.layer, GlobalNorm)}
    kept = _kept(nodes, norms)
    by_name = {node.name: node for node in nodes}
    leaves = {INPUT, *kept, *norms}
    return CutGraph(
        tuple(_piece(node, by_name, leaves) for node in nodes if node.name in kept), norms
    )


def _ending_in_a_map(graph: Graph) -> tuple[Node, ...]:
    """Return the graph's nodes, with an identity node added if the last one is a norm."""
    if isinstance(graph.nodes[-1].layer, GlobalNorm):
        return *graph.nodes, Node(f"{graph.output}.made", Clip(None, None), (graph.output,))
    return graph.nodes


def _kept(nodes: tuple[Node, ...], norms: dict[str, Node]) -> set[str]:
    readers = Counter(name for node in nodes for name in node.inputs)
    measured = {node.inputs[0] for node in norms.values()}
    return {
        node.name
        for node in nodes
        if node.name not in norms
        and (
            isinstance(node.layer, _LOOKS_AROUND)
            or readers[node.name] != 1  # 0 readers: the output
            or node.name in measured
        )
    }


def _piece(last: Node, by_name: dict[str, Node], leaves: set[str]) -> Piece:
    nodes, sources = [last], dict[str, None]()
    for node in nodes:  # grows in the loop
        for name in node.inputs:
            if name in leaves:
                sources[name] = None
            else:
                nodes.append(by_name[name])
    return Piece(tuple(reversed(nodes)), tuple(sources))
