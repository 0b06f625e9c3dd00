"""Stored voxels to network intensities and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.errors import PrecisionOverflowError
from cuda_cyclegan.engine.scaling import Scaling


@given(st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]), st.floats(-1e30, 1e30))
def test_nothing_wraps_around(dtype: str, value: float) -> None:
    out = np.empty(1, dtype)
    Scaling().store(np.array([value]), out)
    limits = np.iinfo(out.dtype)
    exact = min(max(round(value), limits.min), limits.max)
    assert abs(int(out[0]) - exact) <= np.spacing(float(limits.max))


def test_a_value_that_a_float_type_cannot_hold_is_refused() -> None:
    out = np.zeros(1, np.float32)
    with pytest.raises(PrecisionOverflowError, match="too large for its voxel type, float32"):
        Scaling(0, 3e38).store(np.array([2.0], np.float32), out)


def test_halves_are_rounded_to_even() -> None:
    out = np.empty(4, np.int16)
    Scaling().store(np.array([0.5, 1.5, 2.5, -0.5]), out)
    assert out.tolist() == [0, 2, 2, 0]


@given(
    st.sampled_from(["u1", "i1", "u2", "i2", "u4", "i4"]),
    st.lists(st.floats(-1e10, 1e10, width=32), max_size=9),
)
def test_values_beyond_a_type_are_counted(dtype: str, values: list[float]) -> None:
    """Values are counted after rounding; those at an end do not count."""
    limits = np.iinfo(dtype)
    given_values = np.array([*values, limits.min, limits.max])
    found = Scaling().store(given_values, np.empty(len(given_values), dtype))
    rounded = [round(value) for value in values]
    below = [value for value in rounded if value < limits.min]
    above = [value for value in rounded if value > limits.max]
    assert (found.below, found.above) == (len(below), len(above))
    if found:
        assert found.lowest == min([limits.min, *below])
        assert found.highest == max([limits.max, *above])
