"""Model cards: what they state, in which JSON, and what is rejected."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support.gpu_networks import ODD_GRAPHS, random_network
from support.model_cards import CARD, SPEC, cards
from support.tiers import examples

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model.calibration import (
    CycleReference,
    Expectations,
    ScanProfiles,
    Typical,
)
from cuda_cyclegan.engine.model.grid_window import GridWindow, WindowStep
from cuda_cyclegan.engine.model.intensity_maps import Logarithm, MinMax, Percentiles, Steps, Window
from cuda_cyclegan.engine.model.model_card import (
    ModelCard,
    ScanCrop,
    card_from_json,
    card_to_json,
    stated_grids,
)
from cuda_cyclegan.engine.model.model_file import Model, decode_model, encode_model, load_model
from cuda_cyclegan.engine.model.reference import make_reference
from cuda_cyclegan.engine.model.tiling import EARLIER_NNUNET, OWN
from cuda_cyclegan.engine.network.architectures import Groups
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import Elu

Json = Any


@given(cards())
@settings(max_examples=examples(60))
def test_a_card_comes_back_from_its_json(card: ModelCard) -> None:
    text = card_to_json(card)
    assert card_from_json(text) == card
    assert card_to_json(card_from_json(text)) == text


def test_a_card_that_names_nnunets_scheme_keeps_its_bytes() -> None:
    """Files were written so before model cards had a tiling and a grid rule."""
    plain = json.loads(card_to_json(CARD))
    assert not plain.keys() & {"scheme", "tiling", "grid_rule", "maps_on", "grid_window"}
    text = json.dumps({**plain, "scheme": "nnunet"}, ensure_ascii=False, separators=(",", ":"))
    card = card_from_json(text)
    assert (card.tiling, card.grid_rule, card.padding) == (EARLIER_NNUNET, "nnunet", 0.0)
    assert json.loads(card_to_json(card)) == json.loads(text)
    assert stated_grids(card) == {"scheme": "nnunet"}


WINDOW: Json = {
    "steps": [{"rule": "extents", "voxels": [8, 8, 8]}],
    "padding": 0.0,
    "fill": 0.0,
}


def test_a_window_on_the_grid_comes_back_from_its_json() -> None:
    card = replace(CARD, grid_window=GridWindow((WindowStep("extents", (8, 8, 8)),)))
    text = card_to_json(card)
    assert json.loads(text)["grid_window"] == WINDOW
    assert stated_grids(card).keys() == {"grid_window"}
    assert card_from_json(text) == card


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scheme", "other"),
        ("tiling", {"code": "monai"}),
        ("tiling.overlap", [0.5, 0.5, 1.0]),
        ("tiling.sigma", [0.1, 0.0, 0.1]),
        ("tiling.blend", "cubic"),
        ("grid_rule", "other"),
        ("maps_on", "patch"),
        ("maps_on", "window"),
        ("grid_window", {**WINDOW, "steps": []}),
        ("grid_window", {**WINDOW, "steps": [{"rule": "extents", "voxels": [8, 8, -1]}]}),
        (
            "grid_window",
            {**WINDOW, "padding": "reflect"},
        ),
    ],
)
def test_a_tiling_that_cannot_be_is_refused(path: str, value: Json) -> None:
    card = json.loads(card_to_json(replace(CARD, tiling=OWN["monai"])))
    *parents, last = path.split(".")
    node = card
    for parent in parents:
        node = node[parent]
    node[last] = value
    with pytest.raises(ModelFileError, match=last if parents else path):
        card_from_json(json.dumps(card))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disagreement": -1}, "must be 0, or a number of networks from 2 on"),
        ({"disagreement": 1}, "must be 0, or a number of networks from 2 on"),
        ({"disagreement": 2.5}, "disagreement"),
        ({"disagreement": 0}, "'output_channels' must name 2"),
        ({"output_channels": ("T2", "T3")}, "must be 0 if there are several output channels"),
        (
            {"architecture": structs.replace(CARD.architecture, out_channels=3)},
            "one more output channel",
        ),
        ({"intensity_out": Steps((Logarithm(1.0), MinMax()))}, "a logarithm or a gamma curve"),
    ],
)
def test_a_disagreement_that_cannot_be_is_refused(changes: Json, reason: str) -> None:
    sound = replace(
        CARD,
        architecture=structs.replace(CARD.architecture, out_channels=2),
        output_channels=("T2",),
        disagreement=3,
    )
    assert card_from_json(card_to_json(sound)) == sound
    assert "disagreement" not in card_to_json(CARD)
    with pytest.raises(ModelFileError, match=reason):
        card_to_json(replace(sound, **changes))


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
    with pytest.raises(ModelFileError, match=r"'intensity_in\[1\].low' must be below"):
        card_to_json(wrong)


def test_each_of_several_results_may_have_a_value_around_the_crop() -> None:
    two = replace(
        CARD,
        architecture=structs.replace(SPEC, out_channels=2),
        output_channels=("background", "lesion"),
        crop=ScanCrop("nonzero", 0, (0.0, -30.0)),
    )
    assert card_from_json(card_to_json(two)).fills == (0.0, -30.0)
    assert replace(two, crop=ScanCrop("nonzero", 0, -7.0)).fills == (-7.0, -7.0)
    assert replace(two, crop=None).fills == (0.0, 0.0)
    for fills in ((0.0,), (0.0, 1.0, 2.0), ()):
        with pytest.raises(ModelFileError, match=r"'crop\.fill' must be one value, or one"):
            card_to_json(replace(two, crop=ScanCrop("nonzero", 0, fills)))
    text = card_to_json(two).replace("-30.0]", "1e999]")
    with pytest.raises(ModelFileError, match=r"'crop\.fill\[1\]' must be a finite number"):
        card_from_json(text)


def test_a_plain_network_is_stated_without_fields_at_their_defaults() -> None:
    """The file then keeps its bytes, and older programs read it."""
    stated = json.loads(card_to_json(CARD))["architecture"]
    assert " ".join(stated) == (
        "kind in_channels out_channels width blocks downsamplings padding down_padding norm "
        "upsampling norm_bias up_bias last_bias first_kernel last_kernel tanh"
    )
    assert card_from_json(changed("architecture.tanh", False)).architecture.end == "none"


def test_new_statements_are_stored_beside_them() -> None:
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


def graph_changed(path: tuple[Any, ...], value: Any, name: str = "pooling") -> str:
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
        (("nodes", 0, "layer", "kernel"), [3, 3, 1 << 20], "kernel' must be from 1 to 64"),
        (("nodes", 0, "layer", "kernel"), [3, 3], "kernel"),
        (("nodes", 0, "layer", "taps"), 3, "taps' is not known to this version"),
        (("nodes", 0, "layer", "weight"), "reference.input", "not reference..."),
        (("nodes", 0, "layer", "weight"), "w" * 1000, "with at most 80 characters"),
        (("nodes", 0, "layer", "groups"), 3, "groups' must divide the channels"),
        (("nodes", 1, "inputs"), ["later"], "reads 'later' before it is computed"),
        (("nodes", 1, "inputs"), ["a", "a"], "reads 2 tensors"),
        (("nodes", 1, "layer", "stride"), [0, 1, 1], "stride' must be from 1 to 16"),
        (("nodes", 4, "layer", "factor"), [64, 1, 1], "factor' must be from 1 to 16"),
        (("nodes",), [], "needs at least one node"),
        (("in_channels",), 1 << 40, "in_channels' must be from 1 to 64"),
        (("patch",), [16, 16, 16], "exported for patches of 16x16x16"),
    ],
)
def test_value_of_no_network_is_refused_by_its_field(
    path: tuple[Any, ...], value: Any, message: str
) -> None:
    with pytest.raises(ModelFileError, match=message):
        card_from_json(graph_changed(path, value))


def test_an_output_padding_of_a_stride_is_refused() -> None:
    text = graph_changed(("nodes", 2, "layer", "output_padding"), [0, 0, 2], "strided and back")
    with pytest.raises(ModelFileError, match="output_padding' must be less than the stride"):
        card_from_json(text)


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
    text = graph_changed(("nodes", at, "layer", field), value)
    try:
        read = card_from_json(text)
    except ModelFileError:
        return
    assert card_from_json(card_to_json(read)) == read


ONE = Typical(1.0, 0.5)
EXPECTED = Expectations(7, (ONE, ONE, ONE, ONE, ONE), (ONE, ONE, ONE), (ONE, ONE, ONE))
PROFILES = ScanProfiles((ONE,) * 8, (ONE,) * 8, (ONE,) * 8)
CYCLE = CycleReference("0" * 64, 7, Typical(0.1, 0.02), 3.0)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    from support.batch_world import tiny_model

    return load_model(tiny_model(tmp_path / "m.safetensors"))


def encoded(model: Model, card: ModelCard) -> bytes:
    return encode_model(card, model.network, model.reference_input, model.reference_output)


def test_a_card_keeps_what_it_was_reported(model: Model) -> None:
    card = replace(model.card, expected=EXPECTED, cycle=CYCLE, profiles=PROFILES)
    assert card_from_json(card_to_json(card)) == card


def test_a_card_without_a_reference_set_is_written_as_ever(model: Model) -> None:
    assert not {"expected", "cycle", "profiles"} & json.loads(card_to_json(model.card)).keys()


def test_results_do_not_depend_on_it_and_weights_stay(model: Model) -> None:
    card = replace(model.card, expected=EXPECTED, cycle=CYCLE, profiles=PROFILES)
    reported = decode_model(encoded(model, card))
    assert reported.identity == model.identity
    assert reported.sha256 != model.sha256
    for name, weight in model.network.weights.items():
        assert reported.network.weights[name].tobytes() == weight.tobytes()


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("expected", {"studies": 4}, "expected.studies"),
        ("expected", {"spacing": [{"mean": -1.0, "sd": 0.0}] * 3}, "expected.spacing"),
        ("expected", {"extent": [{"mean": 1.0, "sd": -0.1}] * 3}, "expected.extent"),
        ("expected", {"intensity": [{"mean": 1.0, "sd": 0.1}] * 4}, "expected.intensity"),
        ("profiles", {"along_d": [{"mean": 1.0, "sd": 0.1}] * 7}, "profiles"),
        ("profiles", {"along_w": [{"mean": -1.0, "sd": 0.1}] * 8}, "profiles"),
        ("cycle", {"back": "none"}, "cycle.back"),
        ("cycle", {"error": {"mean": -0.1, "sd": 0.1}}, "cycle.error"),
        ("cycle", {"studies": 0}, "cycle.studies"),
        ("cycle", {"mark_beyond": 0.0}, "cycle.mark_beyond"),
        ("cycle", {"mark_beyond": -1.0}, "cycle.mark_beyond"),
        ("cycle", {"else": 0}, "else"),
    ],
)
def test_impossible_figure_of_a_reference_set_is_refused(
    model: Model, field: str, value: dict[str, Any], complaint: str
) -> None:
    card = replace(model.card, expected=EXPECTED, cycle=CYCLE, profiles=PROFILES)
    reported = json.loads(card_to_json(card))
    reported[field].update(value)
    with pytest.raises(ModelFileError, match=complaint):
        card_from_json(json.dumps(reported))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_mean_and_deviation_are_numpys(values: list[float]) -> None:
    found = Typical.of(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_a_study_is_marked_only_where_the_calibration_says_from_when_on() -> None:
    assert CYCLE.limit == pytest.approx(0.16)
    assert replace(CYCLE, mark_beyond=None).limit is None
