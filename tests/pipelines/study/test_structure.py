"""Measures on a lattice: planted faults stand out, each by the measure for it."""

from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.product_source import ROOT

from cuda_cyclegan.pipelines.study.structure import Structure, structure

nibabel: Any = _nibabel
SAMPLE = ROOT / "sample_data" / "scans" / "icbm152_2009_t1_2mm.nii.gz"
SPACING = (2.0, 2.0, 2.0)


@pytest.fixture(scope="module")
def scan() -> Any:
    return np.asarray(nibabel.load(SAMPLE).dataobj).astype(np.float32).T


@pytest.fixture(scope="module")
def good(scan: Any) -> Any:
    noise = np.random.default_rng(0).normal(0, 5, scan.shape)
    return np.where(scan > 100, 1100 - scan + noise, 0).astype(np.float32)


def measured(scan: Any, made: Any) -> Structure:
    found = structure(scan, made, SPACING)
    assert found
    return found


def test_a_good_result_matches_and_has_no_fault(scan: Any, good: Any) -> None:
    found = measured(scan, good)
    assert found.match > 0.9
    assert found.mirrored < -0.05
    assert found.shift < 0.3
    assert found.empty < 0.01
    assert found.values > 100


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_mirrored_result_matches_better_if_mirrored(scan: Any, good: Any, axis: int) -> None:
    assert measured(scan, np.flip(good, axis)).mirrored > 0.05


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_shift_is_measured_in_millimetres(scan: Any, good: Any, axis: int) -> None:
    assert 1.0 < measured(scan, np.roll(good, 1, axis)).shift < 3.5
    assert measured(scan, np.roll(good, 5, axis)).shift > 4


def test_a_body_that_fits_worse_where_the_field_of_view_ends_is_not_moved(
    scan: Any, good: Any
) -> None:
    cut, made = scan[30:], good[30:].copy()
    made[:3] = np.where(cut[:3] > 100, 1500, 0)
    assert measured(cut, made).shift < 2


def test_missing_slices_are_empty_and_break_the_series(scan: Any, good: Any) -> None:
    missing = good.copy()
    missing[38:41] = 0
    found, whole = measured(scan, missing), measured(scan, good)
    assert found.empty == pytest.approx(3 / 60, abs=0.03)
    assert found.breaks > whole.breaks + 0.15
    missing[40:] = 0
    assert measured(scan, missing).empty > 0.3


def test_a_lesion_of_the_result_alone_deviates_locally(scan: Any, good: Any) -> None:
    added = good.copy()
    added[35:45, 55:65, 25:35] = good.max()
    assert measured(scan, added).local > measured(scan, good).local + 0.1


def test_levels_are_those_of_air_tissue_and_the_highest(scan: Any, good: Any) -> None:
    air, tissue, top = measured(scan, good).levels
    inside = good[scan > 300]
    assert air == 0
    assert tissue == pytest.approx(np.median(inside), rel=0.1)
    assert tissue < top < good.max()
    moved = measured(scan, good * np.float32(0.1) - 1024).levels
    assert moved == pytest.approx([0.1 * level - 1024 for level in (air, tissue, top)], abs=1)


def test_a_result_of_few_values_fills_few_steps(scan: Any, good: Any) -> None:
    assert measured(scan, np.round(good / 140) * 140).values <= 9


def test_patterns_of_a_repeated_image_are_equal_whatever_its_unit(scan: Any, good: Any) -> None:
    patterns = measured(scan, good).patterns
    assert measured(good, scan * 3).patterns == patterns[::-1]
    apart = int(patterns[1], 16) ^ int(measured(scan, good[::-1]).patterns[1], 16)
    assert apart.bit_count() > 14


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 5), (3, 3, 3), (1, 40, 40), (2, 2, 2)])
def test_the_smallest_images_are_measured_or_not(shape: tuple[int, int, int]) -> None:
    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    found = structure(values, values, SPACING)
    assert found is None or found.match == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_an_image_of_one_value_or_of_no_number_has_no_structure(scan: Any, value: float) -> None:
    assert structure(scan, np.full_like(scan, value), SPACING) is None
    assert structure(np.full_like(scan, value), scan, SPACING) is None
