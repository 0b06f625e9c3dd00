"""The architecture in a card's JSON: as version 0.1 wrote it, wherever that says all there is."""

from msgspec.structs import fields

from ..decoding import FieldError, Json, encode
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
"""Fields that version 0.1 lacked; stated only where they say something else than it computed."""

_ENDS: dict[bool, End] = {True: "tanh", False: "none"}
"""What version 0.1 wrote as `tanh`."""


def architecture_to_json(spec: Architecture) -> dict[str, Json]:
    """The fields that a card states."""
    if isinstance(spec, Graph):
        return _graph_to_json(spec)
    plain = encode(spec)
    assert isinstance(plain, dict)
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
    """A graph without fields at their defaults, as what later versions add will be."""
    nodes: list[Json] = [
        {"name": node.name, "layer": _stated(node.layer), "inputs": node.inputs}
        for node in graph.nodes
    ]
    return {**_stated(graph), "nodes": nodes}


def _stated(record: Layer | Graph) -> dict[str, Json]:
    plain = encode(record)
    assert isinstance(plain, dict)
    usual = {field.name for field in fields(record) if getattr(record, field.name) == field.default}
    return {name: value for name, value in plain.items() if name not in usual}


def architecture_from_json(value: Json) -> Json:
    """A card's architecture with the field names of today; raises FieldError."""
    if not isinstance(value, dict) or "tanh" not in value:
        return value
    if not isinstance(tanh := value["tanh"], bool):
        raise FieldError("architecture.tanh", "must be true or false")
    if "end" in value:
        raise FieldError("architecture.end", "must not stand beside 'tanh'")
    return {name: item for name, item in value.items() if name != "tanh"} | {"end": _ENDS[tanh]}
