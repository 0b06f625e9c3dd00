"""Reverse models of a model: its counterpart of the same training, and no other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.model_pair import random_model

from cuda_cyclegan.engine.errors import ModelFileError
from cuda_cyclegan.engine.model.calibration import CycleReference, Typical
from cuda_cyclegan.engine.model.intensity_maps import Percentiles, Window
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.pipelines.cycle import check_counterpart, cycle_rule, load_reverse_model
from cuda_cyclegan.pipelines.errors import SettingsError
from cuda_cyclegan.pipelines.settings import CycleCheck, TranslateOptions

LIMIT = 4.0


@pytest.fixture
def pair(tmp_path: Path) -> tuple[ModelCard, ModelCard]:
    forth = load_model(random_model(tmp_path / "a.safetensors"))
    back = load_model(random_model(tmp_path / "b.safetensors", "T2", "T1", 1))
    return forth.card, back.card


def test_a_counterpart_is_taken(pair: tuple[ModelCard, ModelCard]) -> None:
    forth, back = pair
    check_counterpart(forth, back)
    check_counterpart(forth, replace(back, source=" t2", axes="SPL"))
    spaced = replace(forth, spacing=(1.0, 2.0, 3.0))
    check_counterpart(spaced, replace(back, spacing=(3.0, 2.0, 1.0), axes="SPL"))


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"source": "T1", "target": "T2"}, "it translates T1 to T2, and the other T1 to T2"),
        ({"target": "CT"}, "it translates T2 to CT"),
        ({"spacing": (1.0, 1.0, 1.0)}, "it was trained at 1 x 1 x 1 mm, and the other at each"),
        (
            {"intensity_out": Window(0.0, 900.0)},
            "its output intensities are not the other's input intensities",
        ),
        (
            {"intensity_in": Percentiles(1.0, 99.0)},
            "its input intensities are not the other's output intensities",
        ),
        ({"output_range": "0..1"}, "its output intensities are not the other's input intensities"),
        ({"input_channels": ("a", "b")}, "one of them has several channels"),
    ],
)
def test_another_model_is_refused_with_the_difference(
    pair: tuple[ModelCard, ModelCard], changed: dict[str, Any], reported: str
) -> None:
    forth, back = pair
    with pytest.raises(SettingsError, match=reported) as refused:
        check_counterpart(forth, replace(back, **changed))
    assert "setting cycle-check" in str(refused.value)


def test_a_model_of_several_channels_has_no_way_back(pair: tuple[ModelCard, ModelCard]) -> None:
    forth, back = pair
    with pytest.raises(SettingsError, match="one of them has several channels"):
        check_counterpart(replace(forth, input_channels=("a", "b")), back)


def test_spacing_is_compared_by_anatomical_axis(pair: tuple[ModelCard, ModelCard]) -> None:
    forth, back = (replace(card, spacing=(1.0, 2.0, 3.0)) for card in pair)
    check_counterpart(forth, back)
    with pytest.raises(SettingsError, match="trained at"):
        check_counterpart(forth, replace(back, axes="SPL"))


def test_a_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    forth = load_model(random_model(tmp_path / "a.safetensors"))
    path = random_model(tmp_path / "b.safetensors", "T2", "T1", 1)
    back = load_model(path)
    asked = TranslateOptions(cycle_check=CycleCheck(str(path), back.sha256))
    assert load_reverse_model(forth, asked) is not None
    assert load_reverse_model(forth, TranslateOptions()) is None
    random_model(path, "T2", "T1", 2)
    with pytest.raises(ModelFileError, match="has changed since the job was submitted"):
        load_reverse_model(forth, asked)


def test_errors_are_judged_by_a_calibration_with_the_same_counterpart(
    pair: tuple[ModelCard, ModelCard],
) -> None:
    card = replace(pair[0], cycle=CycleReference("1" * 64, 9, Typical(0.1, 0.02), LIMIT))
    rule = cycle_rule(card, "1" * 64)
    assert rule.limit == pytest.approx(0.1 + LIMIT * 0.02)
    found = rule.judged(91.0, 500.0)
    assert found.limit == pytest.approx(90)
    assert found.is_marked
    assert "cycle error of 91 is beyond 90" in found.note
    assert not rule.judged(89.0, 500.0).is_marked
    of_no_limit = replace(pair[0], cycle=CycleReference("1" * 64, 9, Typical(0.1, 0.02)))
    for unmarked in (cycle_rule(card, "2" * 64), cycle_rule(of_no_limit, "1" * 64)):
        other = unmarked.judged(91.0, 500.0)
        assert (other.limit, other.is_marked, other.note, other.warning) == (None, False, "", "")
    assert rule.judged_again(replace(found, limit=None)) == found
