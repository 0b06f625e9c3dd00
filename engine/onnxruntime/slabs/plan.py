"""Plan of a volume on the CPU and of its memory, made before any allocation.

The height of slabs depends on shapes only; the limit decides only which maps are stored in files.
So no limit changes a byte of the result.
"""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ...errors import DeviceMemoryError
from ...network.graph import Graph, TensorShape, times
from ...network.layers import Triple
from ...patch_grid import Rows
from ...whole_volume import padded_extents
from .pieces import CutGraph, Piece, cut
from .rows import slab_piece, takes_slabs

_SLAB_BYTES = 16 << 20
"""Bytes of a slab of a map and of its sources, unless one row already exceeds them."""

_FLOAT = 4
_COPIES = 3
"""Factor of a piece's tensors that ONNX Runtime needs while it computes a slab; measured."""


@dataclass(frozen=True, slots=True)
class SlabPlan:
    """How a volume is computed.

    padded: its extents (D, H, W) in the network. host_bytes: peak memory, of maps and slabs.
    file_bytes: of maps in temporary files. in_files: which maps. slab_rows: of each map, how many
    are computed at a time.
    """

    padded: Triple
    host_bytes: int
    file_bytes: int
    in_files: frozenset[str]
    slab_rows: dict[str, int]

    def slabs(self, made: str, extent: int) -> Iterator[Rows]:
        """Yield the rows of a map, slab after slab."""
        step = self.slab_rows[made]
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
    rows = {piece.made: _slab_rows(piece, pieces, shapes) for piece in pieces.pieces}
    working = max(_working_bytes(piece, shapes, rows[piece.made]) for piece in pieces.pieces)
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
    return SlabPlan(padded, in_memory + working, in_files, names, rows)


def all_shapes(graph: Graph, pieces: CutGraph, padded: Triple) -> dict[str, TensorShape]:
    """Return shapes of all tensors of a volume, including that of the last map."""
    shapes = graph.shapes(padded)
    return {**shapes, pieces.pieces[-1].made: shapes[graph.output]}


def map_bytes(shape: TensorShape) -> int:
    """Return the bytes of a whole map."""
    return _FLOAT * shape.channels * prod(shape.extents)


def _slab_rows(piece: Piece, pieces: CutGraph, shapes: dict[str, TensorShape]) -> int:
    made = shapes[piece.made]
    if not takes_slabs(piece):
        return made.extents[0]
    sources = sum(map_bytes(shapes[pieces.map_of(name)]) for name in piece.sources)
    row = (map_bytes(made) + sources) / made.extents[0]
    rows = max(1, int(_SLAB_BYTES / row))
    return min(rows // 4 * 4 or rows, made.extents[0])  # equal slabs, after layers that enlarge


def _working_bytes(piece: Piece, shapes: dict[str, TensorShape], rows: int) -> int:
    """Return the working bytes while a slab from the middle of the map is computed."""
    made = shapes[piece.made].extents[0]
    start = max(0, min((made - rows) // 2, made - rows))
    slab = slab_piece(piece, shapes, Rows(start, start + rows))
    read = sum(len(taken) * _row_bytes(shapes[name]) for name, taken in slab.reads.items())
    inside = sum(rows * _row_bytes(shapes[node.name]) for node in piece.nodes)
    return int(_COPIES * (2 * read + inside))


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
        size = map_bytes(shapes[piece.made])
        in_memory = sum(bytes_ for name, bytes_ in held.items() if name not in in_files)
        if in_memory + size > room:
            in_files.add(piece.made)
        held[piece.made] = size
        kept = sum(bytes_ for name, bytes_ in held.items() if name not in in_files)
        most, most_in_files = max(most, kept), max(most_in_files, sum(held.values()) - kept)
        for name in [one for one in held if last[one] <= number]:
            del held[name]
    return most, most_in_files, frozenset(in_files)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
