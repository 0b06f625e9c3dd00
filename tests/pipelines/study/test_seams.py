"""The seam score against generators whose seams are known."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator, translated
from support.tiers import examples

from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.pipelines.study.figures import SeamScore
from cuda_cyclegan.pipelines.study.patches import PatchLayout, cover, seam_score

SCAN = np.random.default_rng(0).normal(0, 0.1, (1, 40, 44, 48)).astype(np.float32)


def scored(
    function: Callable[[FloatArray], FloatArray],
    layout: PatchLayout,
    blend: Blend,
    scan: FloatArray,
) -> SeamScore:
    made = translated(scan, FunctionGenerator(function), layout, blend)
    return seam_score(scan, made, layout, blend)


def at_odds() -> Callable[[FloatArray], FloatArray]:
    """Every second patch comes out brighter, as a network may with each patch's own statistics."""
    calls = count()
    return lambda patches: patches + np.float32(next(calls) % 2)


@pytest.mark.parametrize("blend", ["gaussian", "linear", "constant"])
def test_a_generator_that_changes_nothing_has_no_seam(blend: Blend) -> None:
    score = scored(lambda patches: patches, cover(SCAN.shape[1:], (16, 16, 16), 0.25), blend, SCAN)
    assert score.axes == (1.0, 1.0, 1.0)
    assert score.worst == 1.0


def test_patches_at_odds_show_and_the_softer_blend_shows_less() -> None:
    layout = cover(SCAN.shape[1:], (16, 16, 16), 0.25)
    worst = {b: scored(at_odds(), layout, b, SCAN).worst or 0 for b in ("constant", "gaussian")}
    assert worst["constant"] > 3
    assert 1.2 < worst["gaussian"] < 0.8 * worst["constant"]


def test_only_the_axis_with_the_seam_is_blamed() -> None:
    layout = cover(SCAN.shape[1:], (16, 44, 48), 0.0)
    score = scored(at_odds(), layout, "constant", SCAN)
    assert score.axes[0] is not None
    assert score.axes[0] > 3
    assert score.axes[1:] == (None, None)


def test_the_score_is_the_quotient_of_mean_steps() -> None:
    """A ramp of steps of 1; patches 9 apart step by 1 + 4.5 where the mean begins and ends.

    Half of the mix changes there, so half of each of these two steps counts as elsewhere.
    """
    ramp = np.broadcast_to(np.arange(28, dtype=np.float32)[:, None, None], (1, 28, 4, 4)).copy()
    calls = count()
    layout = cover((28, 4, 4), (16, 4, 4), 0.25)
    score = scored(lambda p: p + np.float32(9 * next(calls)), layout, "constant", ramp)
    elsewhere = (25 * 1 + 2 * 0.5 * 5.5) / (25 + 2 * 0.5)
    assert score.axes[0] == pytest.approx(5.5 / elsewhere, rel=1e-5)
    assert score.axes[1:] == (None, None)


def test_one_patch_has_no_score() -> None:
    score = scored(
        lambda patches: patches,
        cover((8, 8, 8), (16, 16, 16), 0.25),
        "gaussian",
        SCAN[:, :8, :8, :8],
    )
    assert score.worst is None


def test_anatomy_that_happens_to_lie_at_a_border_is_no_seam() -> None:
    scan = SCAN.copy()
    scan[:, 16:] += 5
    layout = cover(scan.shape[1:], (16, 16, 16), 0.0)
    score = scored(lambda patches: np.tanh(patches), layout, "constant", scan)
    assert score.worst is not None
    assert 0.9 < score.worst < 1.1


@settings(max_examples=examples(30), deadline=None)
@given(
    shape=st.tuples(*[st.integers(2, 20)] * 3),
    patch=st.tuples(*[st.integers(2, 9)] * 3),
    overlap=st.floats(0, 0.7),
    blend=st.sampled_from(["gaussian", "linear", "constant"]),
    scale=st.floats(0.1, 10),
)
def test_a_change_of_scale_is_no_seam(
    shape: tuple[int, int, int],
    patch: tuple[int, int, int],
    overlap: float,
    blend: Blend,
    scale: float,
) -> None:
    scan = np.random.default_rng(1).normal(0, 1, (1, *shape)).astype(np.float32)
    factor = np.float32(scale)
    score = scored(lambda p: p * factor, cover(shape, patch, overlap), blend, scan)
    assert all(axis is None or axis == pytest.approx(1, abs=1e-4) for axis in score.axes)
