"""Intensity maps on the command line."""

import pytest
import typer
from hypothesis import given
from support.model_cards import INTENSITY_MAPS

from cuda_cyclegan.cli.options.model import parsed_intensity
from cuda_cyclegan.cli.render.models import spelled
from cuda_cyclegan.engine.model.intensity_maps import (
    IntensityMap,
    MinMax,
    Percentiles,
    Window,
    ZScore,
)


@given(INTENSITY_MAPS)
def test_spelled_value_is_read_back(intensity: IntensityMap) -> None:
    assert parsed_intensity(spelled(intensity), "--intensity-in") == intensity


@pytest.mark.parametrize(
    ("text", "intensity"),
    [
        ("window:-1000,2000", Window(-1000, 2000)),
        ("percentile:0.5,99.5", Percentiles(0.5, 99.5)),
        ("zscore", ZScore()),
        ("zscore:3", ZScore(3)),
        (" MinMax ", MinMax()),
    ],
)
def test_spellings(text: str, intensity: IntensityMap) -> None:
    assert parsed_intensity(text, "--intensity-in") == intensity


@pytest.mark.parametrize(
    "text",
    ["", "window", "window:", "window:1", "window:1,2,3", "window:2,1", "window:a,b", "zscore:"],
)
def test_anything_else_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        parsed_intensity(text, "--intensity-out")
    assert caught.value.param_hint == "'--intensity-out'"


def test_an_option_left_out_stays_open() -> None:
    assert parsed_intensity(None, "--intensity-in") is None
