"""Intensity maps: fitted as numpy would, and undone by their inverse."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.numerics_models import volume

from cuda_cyclegan.engine.model.intensity_maps import (
    Identity,
    IntensityMap,
    MinMax,
    Percentiles,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.scaling import Scaling
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.study.intensities import fit
from cuda_cyclegan.pipelines.study.prepare import (
    check_distinguishable,
    notes_of_rounding,
    notes_of_window,
)
from cuda_cyclegan.pipelines.study.statistics import study_range

TYPES = ["uint8", "int8", "int16", "uint16", ">i2", "int32", "float32", ">f4", "float64"]
MAPS = [Window(-100, 300), Percentiles(2, 97.5), MinMax(), ZScore(3), Identity()]


def fitted(intensity: IntensityMap, study: Volume) -> Scaling:
    return fit(intensity, study, study_range(study))


def study_of(dtype: str, seed: int = 0, slope: float = 1.0, intercept: float = 0.0) -> Volume:
    values = np.random.default_rng(seed).normal(60, 20, (9, 10, 11)).clip(0, 120)
    return volume(np.asfortranarray(values.astype(dtype)), slope=slope, intercept=intercept)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.25, -7.0), (-2.0, 5.0)])
def test_maps_are_fitted_to_the_scaled_values(dtype: str, slope: float, intercept: float) -> None:
    study = study_of(dtype, slope=slope, intercept=intercept)
    values = study.voxels.astype(np.float64) * slope + intercept
    low, high = np.percentile(values, [2, 97.5])
    np.testing.assert_allclose(ends(fitted(Percentiles(2, 97.5), study)), (low, high), rtol=1e-6)
    np.testing.assert_allclose(ends(fitted(MinMax(), study)), (values.min(), values.max()))
    zscore = fitted(ZScore(3), study)
    np.testing.assert_allclose(zscore.centre, values.mean())
    np.testing.assert_allclose(zscore.radius, values.std() * 3)
    assert ends(fitted(Window(-100, 300), study)) == (-100, 300)


def ends(scaling: Scaling) -> tuple[float, float]:
    return scaling.ends


@given(
    st.sampled_from([np.int16, np.uint8, np.int32]).flatmap(
        lambda dtype: arrays(dtype, st.tuples(*[st.integers(1, 6)] * 3))
    ),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_percentiles_of_integers_are_numpys_in_float64(
    voxels: np.ndarray[Any, Any], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    if voxels.min() == voxels.max() or low == high:
        return
    study = volume(voxels)
    expected = np.percentile(voxels.astype(np.float64), [low, high])
    if expected[0] == expected[1]:
        with pytest.raises(PreparationError, match="both"):
            fitted(Percentiles(low, high), study)
        return
    np.testing.assert_allclose(
        ends(fitted(Percentiles(low, high), study)), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("intensity", MAPS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.25, -7.0), (-2.0, 5.0)])
def test_the_inverse_undoes_the_map(
    intensity: IntensityMap, slope: float, intercept: float
) -> None:
    study = study_of("int16", slope=slope, intercept=intercept)
    scaling = fitted(intensity, study)
    stored = scaling.of_stored(slope, intercept)
    network = stored.forward(study.voxels)
    values = np.clip(
        study.voxels * slope + intercept, *(ends(scaling) if scaling.clips else (-1e9, 1e9))
    )
    np.testing.assert_allclose(
        scaling.inverse(network, study.voxels.dtype), values, rtol=0, atol=1e-4
    )
    back = stored.inverse(network, study.voxels.dtype) * slope + intercept
    np.testing.assert_allclose(back, values, rtol=0, atol=1e-4)


def test_ends_of_the_range_become_minus_one_and_one() -> None:
    scaling = fitted(Window(-100, 300), study_of("int16"))
    network = scaling.forward(np.array([-500, -100, 100, 300, 900], np.int16))
    np.testing.assert_array_equal(network, [-1, -1, 0, 1, 1])
    assert network.dtype == np.float32
    unclipped = fitted(MinMax(), volume(np.array([[[0, 10]]], np.int16)))
    np.testing.assert_array_equal(unclipped.forward(np.array([-10, 20])), [-3, 3])


def test_large_offsets_lose_nothing() -> None:
    study = volume(np.arange(1000, dtype=np.int32).reshape(10, 10, 10) + 2_000_000_000)
    scaling = fitted(MinMax(), study)
    back = np.rint(scaling.inverse(scaling.forward(study.voxels), study.voxels.dtype))
    np.testing.assert_array_equal(back.astype(np.int32), study.voxels)


@pytest.mark.parametrize(
    ("voxels", "reason"),
    [
        (np.full((3, 3, 3), 7, np.int16), "Every voxel has the value 7"),
        (np.full((3, 3, 3), np.nan, np.float32), "27 of 27 voxels are NaN; setting nan-to"),
        (np.array([[[0.0, 1.0, np.inf]]]), "1 of 3 voxels are infinite; "),
        (
            np.array([[[0.0, 1.0, np.nan, -np.inf]]], np.float32),
            "1 of 4 voxels are infinite, and 1 NaN",
        ),
        (np.array([[[0.0, 1e300]]]), "from 0 to 1e\\+300, which 32-bit floats cannot represent"),
        (np.array([[[-1.7e308, 1.7e308]]]), "32-bit floats cannot represent"),
    ],
)
def test_a_study_that_holds_nothing_is_refused(voxels: Any, reason: str) -> None:
    with pytest.raises(PreparationError, match=reason):
        study_range(volume(voxels))


def test_values_that_no_map_brings_near_zero_must_be_told_apart_by_the_network() -> None:
    values = np.arange(1000, dtype=np.uint32).reshape(10, 10, 10)
    check_distinguishable(Identity(), study_range(volume(values + np.uint32(30_000_000))))
    far = study_range(volume(values + np.uint32(3_000_000_000)))
    check_distinguishable(MinMax(), far)
    with pytest.raises(PreparationError, match="from 3000000000 to 3000000999, which the 32-bit"):
        check_distinguishable(Identity(), far)


def test_equal_percentiles_are_refused() -> None:
    voxels = np.zeros((10, 10, 10), np.int16)
    voxels[0, 0, 0] = 1
    with pytest.raises(PreparationError, match="1 and 99 of this study are both 0"):
        fitted(Percentiles(1, 99), volume(voxels))


def ct(scale: float = 1.0, offset: float = 0.0, slope: float = 1.0) -> Volume:
    """Air around soft tissue with some metal in it, of HU times a scale plus an offset."""
    values = np.full((20, 20, 20), -1024.0)
    values[5:15, 5:15, 5:15] = np.random.default_rng(0).normal(40, 30, (10, 10, 10))
    values[10, 10, 10] = 20000
    return volume((values * scale + offset) / slope, slope=slope)


HU = Window(-1024, 3071)


@pytest.mark.parametrize(
    ("intensity", "study"),
    [
        (HU, ct()),
        (HU, ct(slope=0.5)),
        (Window(-160, 240), ct()),
        (HU, ct(offset=1024)),
        (Window(0, 1), volume(np.eye(8, dtype=np.uint8)[None])),
        (Percentiles(0, 100), ct(1e-6)),
    ],
)
def test_a_scan_in_the_models_unit_is_mapped_without_a_word(
    intensity: IntensityMap, study: Volume
) -> None:
    assert notes_of_window(intensity, study, study_range(study)) == ()


@pytest.mark.parametrize(
    ("intensity", "study", "words"),
    [
        (HU, ct(1 / 4096), "-0.25 to 4.88281, 0.13% of the model's window from -1024 to 3071"),
        (Window(0, 1), ct(), "only 0.03% of its voxels lie within the model's window from 0 to 1"),
        (Window(0, 1), ct(slope=-2), "of its voxels lie within"),
    ],
)
def test_a_scan_in_another_unit_than_the_window_is_reported(
    intensity: IntensityMap, study: Volume, words: str
) -> None:
    [note] = notes_of_window(intensity, study, study_range(study))
    assert words in note
    assert note.endswith("; check its unit")
    assert notes_of_window(intensity, study, study_range(study), "open") == ()


def test_a_scan_outside_its_window_is_refused() -> None:
    study = ct(offset=10000)
    with pytest.raises(PreparationError, match="from 8976 to 30000, all outside"):
        notes_of_window(HU, study, study_range(study))


@pytest.mark.parametrize(
    ("low", "high", "slope", "step"),
    [
        (0, (1 << 24) + 2, 1.0, "2"),
        (-(1 << 27), 5, 0.5, "8"),
        (0, (1 << 31) - 1, 1.0, "256"),
    ],
)
def test_whole_numbers_that_32_bit_floats_round_have_a_note(
    low: int, high: int, slope: float, step: str
) -> None:
    study = volume(np.linspace(low, high, 24).astype(np.int32).reshape(2, 3, 4), slope=slope)
    [note] = notes_of_rounding(study, study_range(study))
    assert f"up to {max(-low, high)}, but" in note
    assert note.endswith(f"steps of {step}")


@pytest.mark.parametrize("kind", ["int32", "float64"])
def test_values_that_32_bit_floats_have_are_taken_without_a_word(kind: str) -> None:
    most = 1 << 24 if kind == "int32" else 1 << 30
    study = volume(np.linspace(-most, most, 24).astype(kind).reshape(2, 3, 4))
    assert notes_of_rounding(study, study_range(study)) == ()
