"""The model card as JSON: nothing is lost, and nothing strange gets through."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.model_cards import CARD, SPEC, cards
from support.tiers import examples

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model.card import (
    MinMax,
    ModelCard,
    Percentiles,
    Window,
    card_from_json,
    card_to_json,
)
from cuda_cyclegan.engine.network.architectures import Groups
from cuda_cyclegan.engine.network.layers import Elu

Json = Any


@given(cards())
@settings(max_examples=examples(60))
def test_a_card_comes_back_from_its_json(card: ModelCard) -> None:
    text = card_to_json(card)
    assert card_from_json(text) == card
    assert card_to_json(card_from_json(text)) == text


def changed(path: str, value: Json) -> str:
    """The sound card's JSON with one value replaced, added, or taken out (...)."""
    card = json.loads(card_to_json(CARD))
    *parents, last = path.split(".")
    node = card
    for parent in parents:
        node = node[parent]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return json.dumps(card)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("nonsense", 1),
        ("provenance.nonsense", 1),
        ("architecture.nonsense", 1),
        ("intensity_in.nonsense", 1),
        ("name", ...),
        ("architecture.width", ...),
        ("reference.made_by", ...),
        ("name", 3),
        ("name", " "),
        ("name", "two\nlines"),
        ("source", None),
        ("architecture", "resnet"),
        ("architecture.kind", "vnet"),
        ("architecture.kind", ...),
        ("architecture.width", "64"),
        ("architecture.width", 64.0),
        ("architecture.width", True),
        ("architecture.width", 0),
        ("architecture.width", 10**30),
        ("architecture.blocks", 10**9),
        ("architecture.downsamplings", 60),
        ("architecture.first_kernel", 4001),
        ("architecture.tanh", 1),
        ("architecture.tanh", ...),
        ("architecture.end", "sigmoid"),
        ("architecture.activation", "relu"),
        ("architecture.activation", {"kind": "leaky_relu"}),
        ("architecture.activation", {"kind": "leaky_relu", "slope": 1e9}),
        ("architecture.block_padding", {"kind": "constant", "value": 1e9}),
        ("architecture.blur", {"taps": 3, "nonsense": 1}),
        ("architecture.blur", {"taps": 9, "padding": "reflect"}),
        ("architecture.stride", [2, 2]),
        ("architecture.stride", [2, 2, 10**9]),
        ("architecture.norm_epsilon", 0),
        ("architecture.norm", {"kind": "group", "groups": 3, "affine": True}),
        ("architecture.norm", {"kind": "group", "groups": 10**9, "affine": True}),
        ("architecture.norm", {"kind": "group", "groups": 2}),
        ("architecture.padding", "mirror"),
        ("architecture.norm", ["instance"]),
        ("input_channels", "T1"),
        ("input_channels", ["T1", "T2"]),
        ("input_channels", []),
        ("output_channels", [7]),
        ("axes", "RAR"),
        ("axes", "XYZ"),
        ("spacing", [1, 1]),
        ("spacing", [1, 1, 0]),
        ("spacing", [1, 1, -2]),
        ("spacing", [1, 1, 10**400]),
        ("spacing", "native"),
        ("patch", [16, 16]),
        ("patch", [16, 16, 17]),
        ("patch", [16, 16, 2**40]),
        ("patch", [16, 16, 16.0]),
        ("intensity_in.low", 99.9),
        ("intensity_in.high", 101),
        ("intensity_in.kind", "histogram"),
        ("intensity_out.high", "1000"),
        ("intensity_in", [{"kind": "minmax"}]),
        ("intensity_in", [{"kind": "minmax"}, {"kind": "minmax"}]),
        ("intensity_in", []),
        ("intensity_in", "minmax"),
        ("small_volume_padding", "wrap"),
        ("provenance.sha256", "abc"),
        ("reference.input_sha256", "Z" * 64),
        ("reference.made_by", "nobody"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Json) -> None:
    with pytest.raises(ModelFileError) as caught:
        card_from_json(changed(path, value))
    message = str(caught.value)
    assert path.rpartition(".")[0] in message
    assert path.split(".")[0] in message
    assert "\n" not in message
    assert len(message) < 250


def test_each_of_several_channels_may_have_a_map_of_its_own() -> None:
    two = replace(
        CARD,
        architecture=structs.replace(SPEC, in_channels=2),
        input_channels=("T1", "T2"),
        intensity_in=(Percentiles(1, 99), Window(0, 300)),
    )
    assert card_from_json(card_to_json(two)) == two
    assert two.maps_in == (Percentiles(1, 99), Window(0, 300))
    assert two.maps_out == (CARD.intensity_out,)
    one_for_both = replace(two, intensity_in=MinMax())
    assert card_from_json(card_to_json(one_for_both)).maps_in == (MinMax(), MinMax())
    wrong = replace(two, intensity_in=(Percentiles(1, 99), Window(300, 0)))
    with pytest.raises(ModelFileError, match=r"'intensity_in\[1\].low' must lie below"):
        card_to_json(wrong)


def test_what_version_0_1_could_say_is_said_in_its_words() -> None:
    """So that a file of a plain network stays the same bytes, and older programs read it."""
    stated = json.loads(card_to_json(CARD))["architecture"]
    assert " ".join(stated) == (
        "kind in_channels out_channels width blocks downsamplings padding down_padding norm "
        "upsampling norm_bias up_bias last_bias first_kernel last_kernel tanh"
    )
    assert card_from_json(changed("architecture.tanh", False)).architecture.end == "none"


def test_what_it_could_not_say_is_said_beside_them() -> None:
    spec = structs.replace(SPEC, activation=Elu(0.5), norm=Groups(2), end="sigmoid")
    stated = json.loads(card_to_json(replace(CARD, architecture=spec)))["architecture"]
    assert stated["norm"] == {"kind": "group", "groups": 2, "affine": True}
    assert stated["activation"] == {"kind": "elu", "alpha": 0.5}
    assert stated["end"] == "sigmoid"
    assert "tanh" not in stated
    assert "block_padding" not in stated


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(word: str) -> None:
    text = changed("spacing", [1, 1, 0]).replace("[1, 1, 0]", f"[1, 1, {word}]")
    with pytest.raises(ModelFileError, match=r"'spacing\[2\]' must be a finite number"):
        card_from_json(text)


def test_a_key_that_stands_twice_is_refused() -> None:
    text = card_to_json(CARD)
    with pytest.raises(ModelFileError, match="a key appears twice"):
        card_from_json(text.replace("{", '{"name":"other",', 1))


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "null", "[" * 100_000, '{"a":' * 100_000, "1" * 10_000],
    ids=range(7),
)
def test_text_that_is_no_card_is_refused(text: str) -> None:
    with pytest.raises(ModelFileError):
        card_from_json(text)


def everywhere(node: Json, replaced: Callable[[Json], Json]) -> list[Json]:
    """Copies of a JSON value, each with one value in it replaced."""
    copies = [replaced(node)]
    if isinstance(node, dict | list):
        for key, item in node.items() if isinstance(node, dict) else enumerate(node):
            for changed_item in everywhere(item, replaced):
                copy = node.copy()
                copy[key] = changed_item
                copies.append(copy)
    return copies


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    )
)
@settings(max_examples=examples(30))
def test_any_value_in_any_place_is_taken_or_refused_by_name(value: Json) -> None:
    for card in everywhere(json.loads(card_to_json(CARD)), lambda _: value):
        try:
            read = card_from_json(json.dumps(card))
        except ModelFileError:
            continue
        assert card_from_json(card_to_json(read)) == read
