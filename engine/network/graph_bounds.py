"""What a graph out of a file may hold at most: far beyond any trained generator.

Bounds keep a hostile file from asking for endless layers.
"""

from collections.abc import Iterator
from math import inf
from typing import cast

from msgspec import Struct
from msgspec.structs import asdict

from .graph import Graph, Node
from .layer_shapes import weight_shapes
from .layers import Triple

MOST_NODES = 4096
RESERVED = "reference."
"""With this the names of tensors begin that are no weights."""

_LONGEST_NAME = 80
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("in_channels", "out_channels", "channels", "count", "groups"), (1, 1 << 16)),
    "first": (0, 1 << 16),
    **dict.fromkeys(("kernel", "dilation"), (1, 64)),
    **dict.fromkeys(("stride", "factor"), (1, 16)),
    **dict.fromkeys(("padding", "output_padding"), (0, 64)),
    **dict.fromkeys(("before", "after"), (0, 4096)),
    "taps": (2, 7),
    "epsilon": (1e-20, 1),
    **dict.fromkeys(("slope", "alpha", "value", "low", "high"), (-1e6, 1e6)),
}
_MOST_CHANNELS = 64


def graph_out_of_bounds(graph: Graph) -> Iterator[tuple[str, str]]:
    """Values of a graph that no trained generator has, each by its field, and what it must be."""
    if not 1 <= graph.in_channels <= _MOST_CHANNELS:
        yield "in_channels", f"must lie from 1 to {_MOST_CHANNELS}"
    if len(graph.nodes) > MOST_NODES:
        yield "nodes", f"must be no more than {MOST_NODES}"
    for at, node in enumerate(graph.nodes[:MOST_NODES]):
        for field, reason in _node(node):
            yield f"nodes[{at}].{field}", reason
    if graph.patch is not None and not all(1 <= extent <= 4096 for extent in graph.patch):
        yield "patch", "must have extents from 1 to 4096"


def _node(node: Node) -> Iterator[tuple[str, str]]:
    names = [node.name, *(name for name, _ in weight_shapes(node.layer))]
    if any(not 0 < len(name) <= _LONGEST_NAME or name.startswith(RESERVED) for name in names):
        yield "name", f"must name nodes and weights in {_LONGEST_NAME} letters, not {RESERVED}..."
    for field, value in numbers(node.layer):
        low, high = _BOUNDS.get(field.rpartition(".")[2], (-inf, inf))
        if not low <= value <= high:
            yield f"layer.{field}", f"must lie from {low:g} to {high:g}, not at {value:g}"
    groups = getattr(node.layer, "groups", 1)
    ends = (getattr(node.layer, name, groups) for name in ("in_channels", "out_channels"))
    if groups < 1 or any(channels % groups for channels in ends):
        yield "layer.groups", "must divide the channels"


def numbers(record: Struct, place: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a record, by the path of its field."""
    for name, value in asdict(record).items():
        match value:
            case Struct():
                yield from numbers(value, f"{place}{name}.")
            case tuple():
                yield from ((f"{place}{name}", item) for item in cast("Triple", value))
            case int() | float():
                yield f"{place}{name}", value
            case _:
                pass
