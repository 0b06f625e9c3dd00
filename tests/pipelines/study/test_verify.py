"""Error of a part of a result: relative to its size, or to the network's range if it is small."""

from math import inf, sqrt

import numpy as np
import pytest

from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.scaling import Scaling, Stored
from cuda_cyclegan.pipelines.study.patches import Box, cover
from cuda_cyclegan.pipelines.study.verify import chosen_places, deviation

SHAPE = (1, 6, 5, 4)
WHOLE: Box = (slice(None), slice(None), slice(None))
FROM_ZERO = Scaling(-1000.0, 3000.0, lowest=0.0)
AROUND_ZERO = Scaling(0.0, 1500.0)


def filled(value: float) -> FloatArray:
    return np.full(SHAPE, value, np.float32)


def result(network: FloatArray, scaling: Scaling, stored: str = "float32") -> Stored:
    """A result that was made of network intensities."""
    values = np.empty(network.shape, stored)
    scaling.store(network, values)
    return Stored(values, scaling)


@pytest.mark.parametrize("stored", ["float32", "int16"])
@pytest.mark.parametrize("scaling", [FROM_ZERO, AROUND_ZERO], ids=["0..1", "-1..1"])
@pytest.mark.parametrize("value", [0.0, 1e-7, 1e-3])
def test_rounding_beside_nothing_is_no_error(value: float, scaling: Scaling, stored: str) -> None:
    made = result(filled(value + 1e-3), scaling, stored)
    error, steps = deviation(made, filled(value), WHOLE)
    assert error < 5e-3 + steps
    assert steps < 2e-3


@pytest.mark.parametrize("scaling", [FROM_ZERO, AROUND_ZERO], ids=["0..1", "-1..1"])
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_hundredth_of_the_range_is_an_error_beside_anything(
    value: float, scaling: Scaling
) -> None:
    width = 1 - scaling.lowest
    error, _ = deviation(result(filled(value - 0.01 * width), scaling), filled(value), WHOLE)
    assert error > 5e-3


@pytest.mark.parametrize(
    ("scaling", "value", "size"),
    [(FROM_ZERO, 0.0, 0.25), (AROUND_ZERO, 0.0, 0.5), (FROM_ZERO, 0.8, 0.8)],
)
def test_the_error_is_that_of_the_formula(scaling: Scaling, value: float, size: float) -> None:
    off = np.zeros(SHAPE, np.float32)
    off[0, 2, 3, 1] = 0.25
    error, _ = deviation(result(filled(value) + off, scaling), filled(value), WHOLE)
    assert error == pytest.approx(0.25 / sqrt(off.size) / size, rel=1e-4)


def test_one_step_of_whole_numbers_may_come_from_rounding() -> None:
    made = result(filled(0.0), Scaling(0.0, 10.0), "int16")
    made.values[...] += 1
    error, steps = deviation(made, filled(0.0), WHOLE)
    assert error == steps == 0.2


@pytest.mark.parametrize("stored", ["float32", "int16"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_patch_that_the_cpu_cannot_compute_is_infinitely_far(number: float, stored: str) -> None:
    wanted = filled(0.5)
    wanted[0, 0, 0, 0] = number
    assert deviation(result(filled(0.5), AROUND_ZERO, stored), wanted, WHOLE) == (inf, 0.0)


def test_a_result_that_is_no_number_is_infinitely_far() -> None:
    made = filled(0.5)
    made[0, 5, 4, 3] = np.nan
    assert deviation(result(made, AROUND_ZERO), filled(0.5), WHOLE) == (inf, 0.0)


def test_some_patches_are_taken_although_none_shows_much() -> None:
    slope = np.linspace(0, 1, 160, dtype=np.float32)[None, :, None, None]
    given = Stored(np.broadcast_to(slope, (1, 160, 8, 8)).copy())
    layout = cover((160, 8, 8), (8, 8, 8), 0.25)
    assert len(chosen_places(given, layout, 3, "study")) == 3
