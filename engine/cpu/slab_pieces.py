"""Pieces of a graph for whole-volume inference on the CPU, and the rows that slabs of them read.

A map is stored if its neighbours' values, its statistics or two readers are needed. So a piece has
at most one layer that reads beyond a voxel, and slabs of a map need no more than its border. Rows
are along D. Padding at the volume's ends is applied there only; elsewhere the rows beyond a slab
exist.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace

from ..network.graph import INPUT, Graph, Node, TensorShape
from ..network.layers import (
    Clip,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    GroupNorm,
    InstanceNorm,
    Layer,
    Pad,
    PadMode,
    Pool,
    Upsample,
    VoxelwiseLayer,
)
from ..patch_grid import Rows

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
    def output(self) -> str:
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
    nodes = _with_maps(graph)
    norms = {node.name: node for node in nodes if isinstance(node.layer, GlobalNorm)}
    kept = _kept(nodes, norms)
    by_name = {node.name: node for node in nodes}
    leaves = {INPUT, *kept, *norms}
    return CutGraph(
        tuple(_piece(node, by_name, leaves) for node in nodes if node.name in kept), norms
    )


def _with_maps(graph: Graph) -> tuple[Node, ...]:
    """Return the graph's nodes, with an identity node after a norm that another norm reads, and
    after one that is the output: statistics are those of maps, and a map is no norm.
    """
    norms = {node.name for node in graph.nodes if isinstance(node.layer, GlobalNorm)}
    nodes = list[Node]()
    for node in graph.nodes:
        if node.name in norms and node.inputs[0] in norms:
            source = Node(f"{node.name}.source", Clip(None, None), node.inputs)
            nodes += [source, Node(node.name, node.layer, (source.name,))]
        else:
            nodes.append(node)
    if graph.output in norms:
        nodes.append(Node(f"{graph.output}.made", Clip(None, None), (graph.output,)))
    return tuple(nodes)


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


@dataclass(frozen=True, slots=True)
class SlabPiece:
    """A piece for some rows of its map.

    nodes: layers fitted to the slab; equal for all slabs in the same relative position. output: the
    tensor of exactly those rows. reads: of each source the rows that go in.
    """

    nodes: tuple[Node, ...]
    output: str
    reads: dict[str, Rows]


def takes_slabs(piece: Piece) -> bool:
    """Return whether slabs of its map can be computed separately; else it needs whole maps."""
    return not any(_needs_all(node.layer) for node in piece.nodes)


def _needs_all(layer: Layer) -> bool:
    match layer:
        case Upsample(mode="trilinear", factor=factor, align_corners=True):
            return factor[0] > 1
        case Pool(mode="mean", padding=padding, counts_padding=False):
            return padding[0] > 0
        case _:
            return False


def filter_name(node: Node) -> str:
    """Return the name of a filter's weight, which is not one of the network's."""
    return f"{node.name}.filter"


def slab_piece(piece: Piece, shapes: dict[str, TensorShape], rows: Rows) -> SlabPiece:
    """Return the piece for these rows; shapes: of all tensors of the volume, by name."""
    fitting = _Fitting(piece, shapes)
    output = fitting.tensor(piece.output, rows)
    return fitting.finished(output)


class _Fitting:
    """Builder of a slab from the map back to the sources; a tensor in a piece has one reader."""

    def __init__(self, piece: Piece, shapes: dict[str, TensorShape]) -> None:
        self._by_name = {node.name: node for node in piece.nodes}
        self._shapes = shapes
        self._nodes = list[Node]()
        self._reads = list[tuple[str, str, Rows]]()

    def finished(self, output: str) -> SlabPiece:
        """Return the piece, reading the rows of all readers of a source; each crops its own."""
        reads = dict[str, Rows]()
        for _, source, rows in self._reads:
            known = reads.get(source, rows)
            reads[source] = Rows(min(known.start, rows.start), max(known.stop, rows.stop))
        cuts = list[Node]()
        names = dict[str, str]()
        for name, source, rows in self._reads:
            names[name] = source
            read = reads[source]
            if rows != read:
                cuts.append(Node(name, _crop(read, rows), (source,)))
                names[name] = name
        nodes = (
            Node(node.name, node.layer, tuple(names.get(one, one) for one in node.inputs))
            for node in self._nodes
        )
        return SlabPiece((*cuts, *nodes), names.get(output, output), reads)

    def tensor(self, name: str, rows: Rows) -> str:
        """Return the name of a tensor with these rows of another."""
        node = self._by_name.get(name)
        if node is None:
            alias = f"{name}#{len(self._reads)}"
            self._reads.append((alias, name, rows))
            return alias
        return self._fitted(node, rows)

    def _fitted(self, node: Node, rows: Rows) -> str:
        layer = node.layer
        if _needs_all(layer):
            return self._add(node.name, layer, [self._all(name) for name in node.inputs])
        if isinstance(layer, VoxelwiseLayer):
            return self._add(node.name, layer, [self.tensor(name, rows) for name in node.inputs])
        match layer:
            case Conv3d():
                return self._convolution(node, layer, rows)
            case Pool():
                return self._pool(node, layer, rows)
            case Downsample():
                return self._filter(node, layer, rows)
            case ConvTranspose3d():
                return self._transposed(node, layer, rows)
            case Upsample():
                return self._sampled(node, layer, rows)
            case Pad():
                return self._padded(node, node.inputs[0], layer, rows)
            case Crop():
                return self._cut_off(node, layer, rows)

    def _cut_off(self, node: Node, crop: Crop, rows: Rows) -> str:
        before = crop.before[0]
        inner = self.tensor(node.inputs[0], Rows(rows.start + before, rows.stop + before))
        sides = Crop((0, *crop.before[1:]), (0, *crop.after[1:]))
        has_sides = any((*sides.before, *sides.after))
        return self._add(node.name, sides, [inner]) if has_sides else inner

    def _add(self, name: str, layer: Layer, inputs: Iterable[str]) -> str:
        self._nodes.append(Node(name, layer, tuple(inputs)))
        return name

    def _extent(self, name: str) -> int:
        return self._shapes[name].extents[0]

    def _all(self, name: str) -> str:
        return self.tensor(name, Rows(0, self._extent(name)))

    def _convolution(self, node: Node, conv: Conv3d, rows: Rows) -> str:
        wide = _window(rows, conv.stride[0], conv.reach[0])
        pad = _along_d("zero", conv.padding[0])
        inner = self._padded(node, node.inputs[0], pad, wide)
        return self._add(node.name, replace(conv, padding=(0, *conv.padding[1:])), [inner])

    def _pool(self, node: Node, pool: Pool, rows: Rows) -> str:
        wide = _window(rows, pool.stride[0], pool.kernel[0])
        outside: PadMode = Constant(-inf) if pool.mode == "largest" else "zero"
        inner = self._padded(node, node.inputs[0], _along_d(outside, pool.padding[0]), wide)
        return self._add(node.name, replace(pool, padding=(0, *pool.padding[1:])), [inner])

    def _filter(self, node: Node, layer: Downsample, rows: Rows) -> str:
        """Add a filter as a depthwise convolution."""
        wide = _window(rows, layer.factor[0], layer.taps)
        pad = Pad(layer.mode, layer.before, layer.after)
        inner = self._padded(node, node.inputs[0], pad, wide)
        channels, taps = self._shapes[node.inputs[0]].channels, layer.taps
        conv = Conv3d(
            channels,
            channels,
            (taps, taps, taps),
            filter_name(node),
            stride=layer.factor,
            groups=channels,
        )
        return self._add(node.name, conv, [inner])

    def _transposed(self, node: Node, conv: ConvTranspose3d, rows: Rows) -> str:
        step, reach, padding = conv.stride[0], conv.reach[0], conv.padding[0]
        start, stop = rows.start + padding, rows.stop + padding  # among all that it spreads to
        extent = self._extent(node.inputs[0])
        if reach - 2 * padding + conv.output_padding[0] == step:  # unchanged, for any rows
            first = max(0, min(-((reach - 1 - start) // step), rows.start // step))
            last = min(extent, max((stop - 1) // step, (rows.stop - 1) // step) + 1)
            inner = self.tensor(node.inputs[0], Rows(first, last))
            output = self._add(node.name, conv, [inner])
            return self._cropped(output, Rows(first * step, last * step), rows)
        first = min(max(0, -((reach - 1 - start) // step)), start // step, extent - 1)
        last = max(min(extent, (stop - 1) // step + 1), first + 1)
        inner = self.tensor(node.inputs[0], Rows(first, last))
        spread = Rows(first * step, (last - 1) * step + reach)
        more = max(0, stop - spread.stop)
        fitted = replace(
            conv,
            padding=(0, *conv.padding[1:]),
            output_padding=(more, *conv.output_padding[1:]),
        )
        output = self._add(node.name, fitted, [inner])
        return self._cropped(output, Rows(spread.start, spread.stop + more), Rows(start, stop))

    def _sampled(self, node: Node, layer: Upsample, rows: Rows) -> str:
        factor = layer.factor[0]
        first, last = rows.start // factor, (rows.stop - 1) // factor + 1
        if layer.mode == "trilinear" and factor > 1:
            first, last = max(0, first - 1), min(self._extent(node.inputs[0]), last + 1)
        inner = self.tensor(node.inputs[0], Rows(first, last))
        output = self._add(node.name, layer, [inner])
        return self._cropped(output, Rows(first * factor, last * factor), rows)

    def _padded(self, node: Node, name: str, pad: Pad, rows: Rows) -> str:
        """Return rows of a tensor padded past its ends, counted from the first of these."""
        extent, before = self._extent(name), pad.before[0]
        inside = Rows(rows.start - before, rows.stop - before)
        # Padding is computed from rows inside, so those must be read.
        deepest = 1 if pad.mode == "reflect" else 0
        last = extent - 1 - deepest * max(0, inside.stop - extent)
        first = deepest * max(0, -inside.start)
        wide = Rows(min(inside.start, last), max(inside.stop, first + 1))
        there = Rows(max(0, wide.start), min(extent, wide.stop))
        inner = self.tensor(name, there)
        fitted = Pad(
            pad.mode,
            (there.start - wide.start, *pad.before[1:]),
            (wide.stop - there.stop, *pad.after[1:]),
        )
        if not any((*fitted.before, *fitted.after)):
            return self._cropped(inner, wide, inside)
        output = self._add(f"{node.name}.padded", fitted, [inner])
        return self._cropped(output, wide, inside)

    def _cropped(self, name: str, there: Rows, wanted: Rows) -> str:
        if there == wanted:
            return name
        return self._add(f"{name}.cropped", _crop(there, wanted), [name])


def _window(rows: Rows, stride: int, reach: int) -> Rows:
    return Rows(rows.start * stride, (rows.stop - 1) * stride + reach)


def _along_d(mode: PadMode, voxels: int) -> Pad:
    return Pad(mode, (voxels, 0, 0), (voxels, 0, 0))


def _crop(there: Rows, wanted: Rows) -> Crop:
    before, after = wanted.start - there.start, there.stop - wanted.stop
    return Crop((before, 0, 0), (after, 0, 0))
