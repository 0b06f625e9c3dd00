"""Scans cropped and padded on the model's grid, and results back on the scan's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from support.numerics_models import OPTIONS, card, volume
from support.tiers import examples

from cuda_cyclegan.engine.model.grid_window import GridWindow, WindowStep
from cuda_cyclegan.engine.model.intensity_maps import Logarithm, Standard, Steps, ZScore
from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.engine.network.layers import triple
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.study.finish import canvas, finish
from cuda_cyclegan.pipelines.study.foreground import measured_window
from cuda_cyclegan.pipelines.study.grid_windows import placed
from cuda_cyclegan.pipelines.study.plan import model_extents, plan_study
from cuda_cyclegan.pipelines.study.prepare import Prepared, prepare

SHAPE = (9, 8, 11)


def scan(low: float = -50.0) -> Volume:
    values = np.random.default_rng(3).uniform(low, 90, SHAPE).astype(np.float32)
    return volume(np.asfortranarray(values))


def window(*steps: tuple[Any, Any], **more: Any) -> GridWindow:
    return GridWindow(tuple(WindowStep(rule, voxels) for rule, voxels in steps), **more)


def prepared(study: Volume, model: ModelCard) -> Prepared:
    def plan(found: Any = None) -> Any:
        options = replace(OPTIONS, patch=(8, 8, 8))
        return plan_study([study], model, options, (1, 1, 1), window=found)

    return prepare([study], plan(measured_window([study], plan(), model)), model)


def returned(study: Prepared) -> Volume:
    made = canvas(study)
    made.target.values[...] = study.network_input.values
    return finish(study, made)[0]


@pytest.mark.parametrize(
    ("rule", "voxels", "inside", "before", "after"),
    [
        ("extents", (6, 12, 0), ((1, 7), (0, 8), (0, 11)), (0, 2, 0), (0, 2, 0)),
        ("extents", (12, 11, 5), ((0, 9), (0, 8), (3, 8)), (1, 1, 0), (2, 2, 0)),
        ("at-least", (6, 11, 0), ((0, 9), (0, 8), (0, 11)), (0, 1, 0), (0, 2, 0)),
        ("at-most", (6, 11, 0), ((1, 7), (0, 8), (0, 11)), (0, 0, 0), (0, 0, 0)),
        ("at-most", (0, 5, 0), ((0, 9), (2, 7), (0, 11)), (0, 0, 0), (0, 0, 0)),
        ("multiple", (4, 8, 0), ((0, 9), (0, 8), (0, 11)), (1, 0, 0), (2, 0, 0)),
        ("before", (1, 0, 2), ((0, 9), (0, 8), (0, 11)), (1, 0, 2), (0, 0, 0)),
        ("after", (1, 0, 2), ((0, 9), (0, 8), (0, 11)), (0, 0, 0), (1, 0, 2)),
    ],
)
def test_each_rule_is_monais(rule: Any, voxels: Any, inside: Any, before: Any, after: Any) -> None:
    made = placed(window((rule, voxels)), SHAPE)
    assert (made.inside, made.before, made.after) == (inside, before, after)


_RULES = st.sampled_from(["extents", "at-least", "at-most", "multiple", "before", "after"])
_VOXELS = st.tuples(*3 * [st.integers(0, 14)])


@given(st.lists(st.tuples(_RULES, _VOXELS), min_size=1, max_size=3), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_steps_do_what_they_do_one_after_another(steps: Any, is_edge: bool) -> None:
    values = scan().voxels
    rule = window(*steps, padding="edge" if is_edge else -3.0)
    try:
        made = placed(rule, SHAPE)
    except PreparationError:  # nothing but padding would be left
        reject()
    wanted = values
    for step in steps:
        one = placed(window(step, padding=rule.padding), triple(wanted.shape))
        out = np.empty(one.extents, np.float32)
        one.cut(wanted, out)
        wanted = out
    found = np.empty(made.extents, np.float32)
    made.cut(values, found)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axes", ["RAS", "IPR"])
@pytest.mark.parametrize("spacing", [None, (0.5, 1.0, 1.0)])
def test_results_are_filled_where_the_grid_was_cropped_off(spacing: Any, axes: str) -> None:
    rule = window(("extents", (6, 12, 0)), padding=0.5, fill=-7.0)
    maps = Standard(20.0, 4.0)
    model = card(
        grid_window=rule, axes=axes, spacing=spacing, intensity_in=maps, intensity_out=maps
    )
    study = scan()
    in_window = prepared(study, model)
    placing = in_window.plan.window
    assert placing is not None
    made = in_window.network_input.values
    assert made.shape[1:] == placing.extents == model_extents(study.shape, study.affine, model)
    assert (made[0, :, : placing.before[1]] == 0.5).all()
    result = in_window.plan.orientation.oriented(returned(in_window).voxels)
    given = in_window.plan.orientation.oriented(study.voxels)
    if spacing is None:
        expected = np.full(given.shape, -7.0, np.float32)
        expected[placing.box] = given[placing.box]
        np.testing.assert_allclose(result, expected, atol=1e-4)
    else:
        np.testing.assert_allclose(result[0], -7.0, atol=1e-4)


def test_statistics_are_those_of_the_window_if_the_card_says_so() -> None:
    rule = window(("at-least", (12, 12, 12)), padding=-50.0)
    for maps_on in ("grid", "window"):
        model = card(
            grid_window=rule, maps_on=maps_on, intensity_in=ZScore(), intensity_out=ZScore()
        )
        study = scan()
        made = prepared(study, model)
        values = study.voxels.astype(np.float64)
        if maps_on == "window":
            before = [(12 - extent) // 2 for extent in SHAPE]
            sides = [(b, 12 - e - b) for b, e in zip(before, SHAPE, strict=True)]
            values = np.pad(values, sides, constant_values=-50.0)
        outside = -50.0 if maps_on == "grid" else (-50.0 - values.mean()) / values.std()
        assert made.network_input.values[0, 0, 0, 0] == pytest.approx(outside, abs=1e-5)
        np.testing.assert_allclose(returned(made).voxels, study.voxels, atol=1e-3)


def test_the_box_of_values_above_0_follows_the_steps_before_it() -> None:
    voxels = np.full(SHAPE, -1.0, np.float32)
    voxels[4:6, 2:5, 7:8] = 5.0
    voxels[0, 0, 0] = 9.0
    study = volume(np.asfortranarray(voxels))
    rule = window(("at-most", (5, 6, 9)), ("positive-padded", (1, 2, 3)), ("multiple", (4, 4, 4)))
    model = card(grid_window=rule, maps_on="window")
    placing = prepared(study, model).plan.window
    assert placing is not None
    assert placing.inside == ((3, 7), (1, 7), (4, 10))
    assert (placing.before, placing.after) == ((0, 1, 0), (0, 1, 2))
    with pytest.raises(PreparationError, match="values above 0"):
        prepared(volume(np.asfortranarray(voxels - 10)), model)


@pytest.mark.parametrize(("low", "is_unsure"), [(-1.0, False), (0.0, True)])
def test_zeros_next_to_the_box_are_noticed(low: float, is_unsure: bool) -> None:
    voxels = np.full(SHAPE, low, np.float32)
    voxels[2:7, 2:6, 3:9] = 5.0
    study = volume(np.asfortranarray(voxels))
    model = card(
        grid_window=window(("positive", (0, 0, 0))), maps_on="window", spacing=(0.5, 1.0, 1.0)
    )
    placing = prepared(study, model).plan.window
    assert placing is not None
    assert placing.depends_on_rounding == is_unsure


def test_a_fill_without_a_network_value_is_rejected() -> None:
    rule = window(("at-most", (4, 4, 4)), fill=-3.0)
    maps = Steps((Logarithm(0.0), Standard(1.0, 1.0)), "all", "mapped")
    model = card(grid_window=rule, intensity_out=maps)
    with pytest.raises(PreparationError, match="grid-window"):
        returned(prepared(scan(low=1.0), model))
