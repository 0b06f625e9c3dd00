"""Maps of a network for one block of a volume: halos, and the ends of maps that are off the grid.

Blocks lie on a grid: each map has as many voxels in a block as the network's strides make of the
block's. A map of a volume may have more or fewer than its grid, such as 2 N + 1 after a transposed
convolution of N. It is stored by the same blocks, the last of which reach past it, and each step
that continues, samples or measures the map does so at the map's own end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec import structs

from ...network.graph import INPUT, Graph, Network, Node, TensorShape
from ...network.layers import (
    ZEROS,
    Conv3d,
    Crop,
    Layer,
    Pad,
    Triple,
    added,
    divided_up,
    negative,
    triple,
)
from ...network.map_extents import map_extents
from ..blocks import Margins


@dataclass(frozen=True, slots=True)
class BlockMaps:
    """A network for one block of a volume, and its maps by node.

    network: the same function, in which no convolution pads by itself. shapes: of a block's maps,
    with their halos. excess: voxels of the volume's map past the grid of its blocks. original: the
    graph before.
    """

    network: Network
    shapes: dict[str, TensorShape]
    excess: dict[str, Triple]
    original: Graph


def block_maps(network: Network, block: Triple) -> BlockMaps:
    """Return a network for blocks of these extents, a multiple of the network's stride.

    Blocks are continued by their neighbours, and the volume by the padding, when the operand of a
    convolution is written: halos are layers. A padding or a cut that ends off the grid only moves
    the map by the voxels at its start.
    """
    return _Writer(network.graph, block).maps(network)


@lru_cache
def margins(graph: Graph) -> Margins:
    """Return the margins of the maps that are stored in blocks: a padding that is the halo of its
    readers is none of them. Raises PatchShapeError as `map_extents` does.
    """
    writer, found = _Writer(graph, graph.stride), map_extents(graph)
    writer.write()

    def farthest(sign: int) -> Triple:
        ends = (
            triple(
                -(-sign * excess * step // each)
                for excess, each, step in zip(
                    writer.excess[name], found[name].each, graph.stride, strict=True
                )
            )
            for name in found
        )
        return triple(max(0, *along) for along in zip(*ends, strict=True))

    return Margins(beyond=farthest(1), short=farthest(-1))


@dataclass(slots=True)
class _Writer:
    """Graph of a block that grows layer by layer. extents: of its maps, with their halos."""

    graph: Graph
    block: Triple
    nodes: list[Node] = field(default_factory=list[Node])
    extents: dict[str, Triple] = field(default_factory=dict[str, Triple])
    excess: dict[str, Triple] = field(default_factory=dict[str, Triple])

    def maps(self, network: Network) -> BlockMaps:
        self.write()
        graph = Graph(self.graph.in_channels, tuple(self.nodes))
        shapes = {
            name: TensorShape(channels, self.extents[name])
            for name, channels in graph.channels().items()
        }
        return BlockMaps(Network(graph, network.weights), shapes, self.excess, self.graph)

    def write(self) -> None:
        """Add all layers of the graph, with their extents in the block."""
        self.extents[INPUT], self.excess[INPUT] = self.block, ZEROS
        for node in self.graph.nodes:
            self._add(node)

    def _add(self, node: Node) -> None:
        source = node.inputs[0]
        match node.layer:
            case Conv3d() as conv:
                padded = added(self.extents[source], conv.padding)
                after = _after(conv, padded, self._grid(node.name), conv.padding)
                if any((*conv.padding, *after)):
                    halo = Node(f"{node.name}.halo", Pad("zero", conv.padding, after), (source,))
                    self._add_halo(halo, conv.padding, after)
                    conv = structs.replace(conv, padding=ZEROS)
                    node = Node(node.name, conv, (halo.name,))
                self._add_on_grid(node, conv)
            case Pad() as pad:
                after, *others = {*self._afters(node, pad)} or {None}
                if after is None or others or _continues_only_the_volume(pad, after):
                    self._add_on_grid(node, structs.replace(pad, after=negative(pad.before)))
                else:
                    halo = Node(node.name, structs.replace(pad, after=after), node.inputs)
                    self._add_halo(halo, pad.before, after)
            case Crop() as crop:
                self._add_on_grid(node, structs.replace(crop, after=negative(crop.before)))
            case layer:
                self._add_on_grid(node, layer)

    def _add_on_grid(self, node: Node, layer: Layer) -> None:
        self.nodes.append(Node(node.name, layer, node.inputs))
        self.extents[node.name] = self._grid(node.name)
        self.excess[node.name] = map_extents(self.graph)[node.name].excess

    def _add_halo(self, node: Node, before: Triple, after: Triple) -> None:
        [source] = node.inputs
        self.nodes.append(node)
        self.extents[node.name] = added(self.extents[source], before, after)
        self.excess[node.name] = self.excess[source]

    def _grid(self, name: str) -> Triple:
        return map_extents(self.graph)[name].on_grid(divided_up(self.block, self.graph.stride))

    def _afters(self, node: Node, pad: Pad) -> Iterator[Triple | None]:
        """Yield the voxels after a padded block that each reader needs; None for one that is no
        convolution, or pads by itself.
        """
        padded = added(self.extents[node.inputs[0]], pad.before)
        if node.name == self.graph.output:
            yield None
        for reader in self.graph.readers()[node.name]:
            match reader.layer:
                case Conv3d(padding=(0, 0, 0)) as conv:
                    yield _after(conv, padded, self._grid(reader.name), pad.after)
                case _:
                    yield None


def _continues_only_the_volume(pad: Pad, after: Triple) -> bool:
    """Return whether a padding adds voxels at the volume's end, but none around a block."""
    return any(pad.after) and not any((*pad.before, *after))


def _after(conv: Conv3d, source: Triple, target: Triple, after: Triple) -> Triple:
    """Return the voxels after a block that a convolution reads to make its block of the target.

    source: extents of what is read, with the padding before it. after: its padding, which is kept
    if it makes these extents.
    """
    found: list[int] = []
    for axis in range(3):
        size, step, reach = source[axis], conv.stride[axis], conv.reach[axis]
        makes = (size + after[axis] - reach) // step + 1
        needed = (target[axis] - 1) * step + reach - size
        found.append(after[axis] if makes == target[axis] else needed)
    return triple(found)
