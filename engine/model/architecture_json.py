"""A network's architecture as JSON, in a model card."""

from msgspec.structs import fields

from ..decoding import FieldError, Json, encode_record
from ..network.architectures import Architecture, End, ResNetSpec, Spec, UNetSpec
from ..network.graph import Graph
from ..network.layers import Layer

_COMMON = frozenset(["up_activation", "norm_epsilon", "stride", "adds_input"])
_LATER: dict[type[Spec], frozenset[str]] = {
    ResNetSpec: _COMMON
    | {"block_padding", "up_padding", "activation", "block_activation", "residual"}
    | {"block_dilation", "blur"},
    UNetSpec: _COMMON | {"padding", "down_activation"},
}
"""Fields written only if they differ from their defaults, which files without them mean."""

_ENDS: dict[bool, End] = {True: "tanh", False: "none"}
"""Ends of a network by the field `tanh`, which states these two."""


def architecture_to_json(spec: Architecture) -> dict[str, Json]:
    """Return an architecture as a card's JSON, without fields of `_LATER` at their defaults."""
    if isinstance(spec, Graph):
        return _graph_to_json(spec)
    plain = encode_record(spec)
    later = [field for field in fields(spec) if field.name in _LATER[type(spec)]]
    silent = {field.name for field in later if getattr(spec, field.name) == field.default}
    written: dict[str, Json] = {}
    for name, value in plain.items():
        if name == "end" and value in _ENDS.values():
            written["tanh"] = value == "tanh"
        elif name not in silent:
            written[name] = value
    return written


def _graph_to_json(graph: Graph) -> dict[str, Json]:
    """Return a graph without fields at their defaults, as fields of later versions will be."""
    nodes: list[Json] = [
        {"name": node.name, "layer": _stated(node.layer), "inputs": node.inputs}
        for node in graph.nodes
    ]
    return {**_stated(graph), "nodes": nodes}


def _stated(record: Layer | Graph) -> dict[str, Json]:
    plain = encode_record(record)
    usual = {field.name for field in fields(record) if getattr(record, field.name) == field.default}
    return {name: value for name, value in plain.items() if name not in usual}


def architecture_from_json(value: Json) -> Json:
    """Convert a card's architecture to today's field names; raises FieldError."""
    if not isinstance(value, dict) or "tanh" not in value:
        return value
    if not isinstance(tanh := value["tanh"], bool):
        raise FieldError("architecture.tanh", "must be true or false")
    if "end" in value:
        raise FieldError("architecture.end", "must not be combined with 'tanh'")
    return {name: item for name, item in value.items() if name != "tanh"} | {"end": _ENDS[tanh]}
