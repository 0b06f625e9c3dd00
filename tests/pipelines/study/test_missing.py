"""NaN in a scan: replaced by a value in the scan's own unit, and by nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.io.volume import AnyArray, Volume
from cuda_cyclegan.pipelines.study.prepare import without_nan


def volume(voxels: AnyArray, slope: float = 1.0, intercept: float = 0.0) -> Volume:
    return Volume(voxels, np.eye(4), None, "nifti", slope, intercept)


@given(
    places=st.sets(st.integers(0, 59)),
    value=st.floats(-1e4, 1e4),
    slope=st.sampled_from([1.0, -0.5, 3.0]),
    intercept=st.sampled_from([0.0, -1024.0]),
    is_read_only=st.booleans(),
)
def test_every_nan_and_nothing_else_takes_the_value(
    places: set[int], value: float, slope: float, intercept: float, is_read_only: bool
) -> None:
    voxels = np.arange(60, dtype=np.float64).reshape(3, 4, 5, order="F")
    missing = np.isin(voxels, sorted(places))
    voxels[missing] = np.nan
    before = voxels * slope + intercept
    voxels.flags.writeable = not is_read_only
    made = without_nan(volume(voxels, slope, intercept), value)
    values = made.voxels * slope + intercept
    assert np.allclose(values[missing], value, atol=1e-6)
    assert np.array_equal(values[~missing], before[~missing])
    assert [note.split()[0] for note in made.notes] == ([str(len(places))] if places else [])


@pytest.mark.parametrize("value", [0.0, None])
def test_infinite_values_stay(value: float | None) -> None:
    voxels = np.float32([[[np.inf, -np.inf, 1.0]]])
    assert np.array_equal(without_nan(volume(voxels), value).voxels, voxels)


def test_whole_numbers_have_no_nan_and_are_not_looked_at() -> None:
    given_ = volume(np.zeros((2, 2, 2), np.int16))
    assert without_nan(given_, 1.0) is given_
