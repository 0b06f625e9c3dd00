"""What a card says of a reference set: kept as it is, checked, and of no account for results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model.calibration import (
    CycleReference,
    Expectations,
    Typical,
)
from cuda_cyclegan.engine.model.card import ModelCard, card_from_json, card_to_json
from cuda_cyclegan.engine.model.model import Model, decode_model, encode_model, load_model

ONE = Typical(1.0, 0.5)
EXPECTED = Expectations(7, (ONE, ONE, ONE, ONE, ONE), (ONE, ONE, ONE), (ONE, ONE, ONE))
CYCLE = CycleReference("0" * 64, 7, Typical(0.1, 0.02), 3.0)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    from support.batch_world import tiny_model

    return load_model(tiny_model(tmp_path / "m.safetensors"))


def encoded(model: Model, card: ModelCard) -> bytes:
    return encode_model(card, model.network, model.reference_input, model.reference_output)


def test_a_card_keeps_what_it_was_told(model: Model) -> None:
    card = replace(model.card, expected=EXPECTED, cycle=CYCLE)
    assert card_from_json(card_to_json(card)) == card


def test_a_card_without_a_reference_set_is_written_as_ever(model: Model) -> None:
    assert not {"expected", "cycle"} & json.loads(card_to_json(model.card)).keys()


def test_results_do_not_depend_on_it_and_weights_stay(model: Model) -> None:
    told = decode_model(encoded(model, replace(model.card, expected=EXPECTED, cycle=CYCLE)))
    assert told.identity == model.identity
    assert told.sha256 != model.sha256
    for name, weight in model.network.weights.items():
        assert told.network.weights[name].tobytes() == weight.tobytes()


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("expected", {"studies": 4}, "expected.studies"),
        ("expected", {"spacing": [{"mean": -1.0, "sd": 0.0}] * 3}, "expected.spacing"),
        ("expected", {"extent": [{"mean": 1.0, "sd": -0.1}] * 3}, "expected.extent"),
        ("expected", {"intensity": [{"mean": 1.0, "sd": 0.1}] * 4}, "expected.intensity"),
        ("cycle", {"back": "none"}, "cycle.back"),
        ("cycle", {"error": {"mean": -0.1, "sd": 0.1}}, "cycle.error"),
        ("cycle", {"studies": 0}, "cycle.studies"),
        ("cycle", {"mark_beyond": 0.0}, "cycle.mark_beyond"),
        ("cycle", {"mark_beyond": -1.0}, "cycle.mark_beyond"),
        ("cycle", {"else": 0}, "else"),
    ],
)
def test_what_no_reference_set_can_say_is_refused(
    model: Model, field: str, value: dict[str, Any], complaint: str
) -> None:
    told = json.loads(card_to_json(replace(model.card, expected=EXPECTED, cycle=CYCLE)))
    told[field].update(value)
    with pytest.raises(ModelFileError, match=complaint):
        card_from_json(json.dumps(told))


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_mean_and_deviation_are_numpys(values: list[float]) -> None:
    found = Typical.of(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.sd == pytest.approx(np.std(values, ddof=1), abs=1e-6)


def test_a_study_is_marked_only_where_the_calibration_says_from_when_on() -> None:
    assert CYCLE.limit == pytest.approx(0.16)
    assert replace(CYCLE, mark_beyond=None).limit is None
