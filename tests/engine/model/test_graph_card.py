"""A card that holds a network as its layers: strict, bounded, and the same when read back."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gpu_networks import ODD_GRAPHS, random_network
from support.model_cards import CARD
from support.tiers import examples

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model.card import ModelCard, card_from_json, card_to_json
from cuda_cyclegan.engine.model.model import decode_model, encode_model
from cuda_cyclegan.engine.model.reference import make_reference
from cuda_cyclegan.engine.network.graph import Graph

GRAPHS = {
    name: graph
    for name, graph in ODD_GRAPHS.items()
    if graph.shapes((32, 32, 32))[graph.output].extents == (32, 32, 32)
}


def card_of(graph: Graph) -> ModelCard:
    entering, leaving = (
        tuple(f"{way}{channel}" for channel in range(count))
        for way, count in (("in", graph.in_channels), ("out", graph.out_channels))
    )
    return replace(
        CARD,
        architecture=graph,
        input_channels=entering,
        output_channels=leaving,
        patch=(32, 32, 32),
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_read_back_as_it_was(name: str) -> None:
    card = card_of(GRAPHS[name])
    again = card_from_json(card_to_json(card))
    assert again == card
    assert card_to_json(again) == card_to_json(card)


def test_a_model_file_holds_a_graph_with_its_weights() -> None:
    graph = ODD_GRAPHS["products, differences and parts"]
    network = random_network(graph, seed=3)
    content = encode_model(card_of(graph), network, *make_reference(network))
    found = decode_model(content)
    assert found.network.graph == graph
    for name, weight in network.weights.items():
        assert np.array_equal(found.network.weights[name], weight)
    other = replace(card_of(graph), architecture=Graph(1, graph.nodes, (32, 32, 32)))
    fixed = random_network(other.architecture, seed=3)  # type: ignore[arg-type]
    again = decode_model(encode_model(other, fixed, *make_reference(fixed)))
    assert again.identity != found.identity


def changed(path: tuple[Any, ...], value: Any, name: str = "pooling") -> str:
    card = json.loads(card_to_json(card_of(ODD_GRAPHS[name])))
    place = card["architecture"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(card)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("nodes", 0, "layer", "kind"), "fourier", r"nodes\[0\].layer.* must be one of add, "),
        (("nodes", 0, "layer", "kernel"), [3, 3, 1 << 20], "kernel' must lie from 1 to 64"),
        (("nodes", 0, "layer", "kernel"), [3, 3], "kernel"),
        (("nodes", 0, "layer", "taps"), 3, "taps' is not known to this version"),
        (("nodes", 0, "layer", "weight"), "reference.input", "not reference..."),
        (("nodes", 0, "layer", "weight"), "w" * 1000, "in 80 letters"),
        (("nodes", 0, "layer", "groups"), 3, "groups' must divide the channels"),
        (("nodes", 1, "inputs"), ["later"], "reads 'later' before it is made"),
        (("nodes", 1, "inputs"), ["a", "a"], "reads 2 tensors"),
        (("nodes", 1, "layer", "stride"), [0, 1, 1], "stride' must lie from 1 to 16"),
        (("nodes", 4, "layer", "factor"), [64, 1, 1], "factor' must lie from 1 to 16"),
        (("nodes",), [], "needs at least one node"),
        (("in_channels",), 1 << 40, "in_channels' must lie from 1 to 64"),
        (("patch",), [16, 16, 16], "takes patches of 16x16x16 alone"),
    ],
)
def test_what_no_network_has_is_refused_by_its_field(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        card_from_json(changed(path, value))


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
PLACES = [
    (at, field)
    for at, node in enumerate(ODD_GRAPHS["pooling"].nodes)
    for field in ("kind", "kernel", "stride", "padding", "mode", "weight", "groups", "factor")
]


@given(place=st.sampled_from(PLACES), value=VALUES | st.lists(VALUES, max_size=4))
@settings(max_examples=examples(100))
def test_any_value_of_a_layer_is_taken_or_refused(place: tuple[int, str], value: Any) -> None:
    at, field = place
    text = changed(("nodes", at, "layer", field), value)
    try:
        read = card_from_json(text)
    except ModelFileError:
        return
    assert card_from_json(card_to_json(read)) == read
