"""Plan of whole-volume inference on the CPU before any allocation: heights of slabs, and the memory
of maps.

The height of slabs depends on shapes only; the limit decides only which maps are stored in files.
So no limit changes a byte of the result.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ..errors import DeviceMemoryError
from ..network.graph import Graph, TensorShape, times
from ..network.graph_analysis import layer_flops
from ..network.layers import Conv3d, ConvTranspose3d, Triple, kind_of
from ..patch_grid import Rows
from ..whole_volume import padded_extents
from .slab_pieces import CutGraph, Piece, cut, slab_piece, takes_slabs

_SLAB_BYTES = 16 << 20
"""Bytes of a slab of a map and of its sources, unless one row already exceeds them."""

_FLOAT = 4
_COPIES = 3
"""Factor of a piece's tensors that ONNX Runtime needs while it computes a slab; measured."""


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """Plan for a volume. padded: its extents (D, H, W) in the network. host_bytes: peak memory, of
    maps and slabs. file_bytes: of maps in temporary files. in_files: which maps. slab_rows: of each
    map, how many are computed at a time. long: maps for which OpenVINO is worth compiling.
    kept_bytes: part of host_bytes, of compiled slabs that are kept; 0 if they do not fit.
    """

    padded: Triple
    host_bytes: int
    file_bytes: int
    in_files: frozenset[str]
    slab_rows: dict[str, int]
    long: frozenset[str]
    kept_bytes: int

    def slabs(self, output: str, extent: int) -> Iterator[Rows]:
        """Yield the rows of a map, slab after slab."""
        step = self.slab_rows[output]
        for start in range(0, extent, step):
            yield Rows(start, min(start + step, extent))


def plan_slabs(graph: Graph, extents: Triple, limit: int) -> SlabPlan:
    """Return how to compute a volume of extents (D, H, W) within so many bytes of memory.

    Raises PatchShapeError, and DeviceMemoryError if memory or the folder for temporary files does
    not suffice.
    """
    padded = padded_extents(graph, extents)
    pieces = cut(graph)
    shapes = all_shapes(graph, pieces, padded)
    rows = {piece.output: _slab_rows(piece, pieces, shapes) for piece in pieces.pieces}
    working = max(_working_bytes(piece, shapes, rows[piece.output]) for piece in pieces.pieces)
    if working > limit:
        raise DeviceMemoryError(
            f"Whole-volume inference on {times(extents)} needs {_gib(working)} GiB of memory, but "
            f"only {_gib(limit)} GiB may be used; use setting inference=patches.",
            working,
            limit,
        )
    in_memory, in_files, names = _placed(pieces, shapes, limit - working)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if in_files > free:
        raise DeviceMemoryError(
            f"Whole-volume inference on {times(extents)} needs {_gib(in_files)} GiB for temporary "
            f"files, but {tempfile.gettempdir()} has {_gib(free)} GiB free; set TMPDIR to a "
            "larger folder, or use setting inference=patches.",
            in_files,
            free,
        )
    long = _long_maps(graph, pieces, shapes, padded)
    kept = sum(
        _compiled_bytes(piece, shapes, rows[piece.output])
        for piece in pieces.pieces
        if piece in long
    )
    host = in_memory + working
    kept = kept if host + kept <= limit else 0
    outputs = frozenset(map_ for maps in long.values() for map_ in maps)
    return SlabPlan(padded, host + kept, in_files, names, rows, outputs, kept)


def all_shapes(graph: Graph, pieces: CutGraph, padded: Triple) -> dict[str, TensorShape]:
    """Return shapes of all tensors of a volume, including those of maps that repeat a norm."""
    shapes = graph.shapes(padded)
    repeated = {
        piece.output: shapes[piece.nodes[-1].inputs[0]]
        for piece in pieces.pieces
        if piece.output not in shapes
    }
    return {**shapes, **repeated}


def map_bytes(shape: TensorShape) -> int:
    """Return the bytes of a whole map."""
    return _FLOAT * shape.channels * prod(shape.extents)


def _slab_rows(piece: Piece, pieces: CutGraph, shapes: dict[str, TensorShape]) -> int:
    output = shapes[piece.output]
    if not takes_slabs(piece):
        return output.extents[0]
    sources = sum(map_bytes(shapes[pieces.map_of(name)]) for name in piece.sources)
    row = (map_bytes(output) + sources) / output.extents[0]
    rows = max(1, int(_SLAB_BYTES / row))
    return min(rows // 4 * 4 or rows, output.extents[0])  # equal slabs, after layers that enlarge


def _working_bytes(piece: Piece, shapes: dict[str, TensorShape], rows: int) -> int:
    """Return the working bytes while a slab from the middle of the map is computed."""
    output = shapes[piece.output].extents[0]
    start = max(0, min((output - rows) // 2, output - rows))
    slab = slab_piece(piece, shapes, Rows(start, start + rows))
    read = sum(len(taken) * _row_bytes(shapes[name]) for name, taken in slab.reads.items())
    inside = sum(rows * _row_bytes(shapes[node.name]) for node in piece.nodes)
    return int(_COPIES * (2 * read + inside))


_LONG = 1 << 33
"""FLOP of equal maps from which OpenVINO computes them: compiling up to three slabs takes 0.1 s, as
much as it gains on so many.
"""
_POSITIONS = 3
"""Slabs that differ: at the start, in the middle, and at the end of a map."""
_COMPILED_BYTES, _WEIGHTS = 1 << 20, 3
"""Bytes of a compiled slab, and copies of its weights there; measured."""


def _long_maps(
    graph: Graph, pieces: CutGraph, shapes: dict[str, TensorShape], padded: Triple
) -> dict[Piece, frozenset[str]]:
    """Return the maps for which OpenVINO is worth compiling, by one of several equal pieces."""
    work = layer_flops(graph, padded)
    equal = dict[tuple[object, ...], list[Piece]]()
    for piece in pieces.pieces:
        layers = tuple(kind_of(node.layer) for node in piece.nodes)
        reads = tuple(shapes[name] for name in piece.sources)
        equal.setdefault((layers, reads, shapes[piece.output]), []).append(piece)
    return {
        alike[0]: frozenset(piece.output for piece in alike)
        for alike in equal.values()
        if sum(work.get(piece.output, 0) for piece in alike) >= _LONG
    }


def _compiled_bytes(piece: Piece, shapes: dict[str, TensorShape], rows: int) -> int:
    """Return the bytes of the compiled slabs of a piece."""
    slabs = -(-shapes[piece.output].extents[0] // rows)
    weights = sum(
        prod(node.layer.kernel) * node.layer.in_channels * node.layer.out_channels
        for node in piece.nodes
        if isinstance(node.layer, Conv3d | ConvTranspose3d)
    )
    return min(slabs, _POSITIONS) * (_COMPILED_BYTES + _WEIGHTS * _FLOAT * weights)


def _row_bytes(shape: TensorShape) -> int:
    return map_bytes(shape) // shape.extents[0]


def _placed(
    pieces: CutGraph, shapes: dict[str, TensorShape], room: int
) -> tuple[int, int, frozenset[str]]:
    """Return the peak bytes of maps in memory and in files, and which maps are in files."""
    last = pieces.last_readers()
    held, in_files = dict[str, int](), set[str]()
    most = most_in_files = 0
    for number, piece in enumerate(pieces.pieces[:-1]):
        size = map_bytes(shapes[piece.output])
        in_memory = sum(bytes_ for name, bytes_ in held.items() if name not in in_files)
        if in_memory + size > room:
            in_files.add(piece.output)
        held[piece.output] = size
        kept = sum(bytes_ for name, bytes_ in held.items() if name not in in_files)
        most, most_in_files = max(most, kept), max(most_in_files, sum(held.values()) - kept)
        for name in [one for one in held if last[one] <= number]:
            del held[name]
    return most, most_in_files, frozenset(in_files)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
