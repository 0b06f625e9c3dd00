"""Cheap measures: planted bad results stand out from good ones, each by the measure for it."""

from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from scipy import ndimage
from support.product_source import ROOT

from cuda_cyclegan.pipelines.study.figures import Measures
from cuda_cyclegan.pipelines.study.measures import measure

nibabel: Any = _nibabel
SAMPLE = ROOT / "sample_data" / "scans" / "icbm152_2009_t1_2mm.nii.gz"


@pytest.fixture(scope="module")
def scan() -> Any:
    return np.asarray(nibabel.load(SAMPLE).dataobj).astype(np.float32)


@pytest.fixture(scope="module")
def good(scan: Any) -> Any:
    """Another contrast of the same anatomy: tissue in reverse order, and a little noise."""
    inside = scan > 100
    noise = np.random.default_rng(0).normal(0, 5, scan.shape)
    return np.where(inside, 1100 - scan + noise, 0).astype(np.float32)


def measured(scan: Any, made: Any) -> Measures:
    found = measure(scan, made)
    assert found
    return found


def test_a_good_result_has_the_edges_and_the_detail_of_its_scan(scan: Any, good: Any) -> None:
    found = measured(scan, good)
    assert found.edges > 0.5
    assert 0.5 < found.detail < 3
    assert found.cut_off < 0.01


def test_values_that_are_cut_off_are_counted(scan: Any, good: Any) -> None:
    high = np.percentile(good[scan > 100], 70)
    assert measured(scan, np.minimum(good, high)).cut_off == pytest.approx(0.3, abs=0.1)


def test_other_anatomy_and_displaced_anatomy_have_other_edges(scan: Any, good: Any) -> None:
    whole = measured(scan, good).edges
    assert measured(scan, good[::-1, ::-1, ::-1]).edges < 0.6 * whole
    assert measured(scan, np.roll(good, 6, axis=1)).edges < 0.6 * whole
    noise = np.random.default_rng(1).normal(0, 100, scan.shape).astype(np.float32)
    assert measured(scan, noise).edges < 0.1


def test_a_blurred_result_lacks_detail_and_a_pattern_adds_it(scan: Any, good: Any) -> None:
    whole = measured(scan, good).detail
    blurred = ndimage.gaussian_filter(good, 4)
    assert measured(scan, blurred).detail < 0.6 * whole
    pattern = 200 * (np.indices(scan.shape).sum(axis=0) % 2)
    assert measured(scan, good + pattern).detail > 2 * whole


@pytest.mark.parametrize(("slope", "intercept"), [(3.0, -1024.0), (0.001, 0.0), (-1.0, 5.0)])
def test_the_unit_does_not_count(scan: Any, good: Any, slope: float, intercept: float) -> None:
    found, scaled = measured(scan, good), measured(scan, good * np.float32(slope) + intercept)
    for one in ("cut_off", "edges", "detail"):
        assert getattr(scaled, one) == pytest.approx(getattr(found, one), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_values_that_descend_as_stored_are_measured_as_values(
    scan: Any, good: Any, signs: tuple[int, int]
) -> None:
    own, made = signs
    plain = measure(scan, good)
    turned = measure(own * scan, made * good, unit=lambda stored: made * stored, signs=signs)
    assert plain
    assert turned == plain


def test_memory_order_does_not_count(scan: Any, good: Any) -> None:
    turned = measured(np.asfortranarray(scan), np.asfortranarray(good))
    assert turned.edges == pytest.approx(measured(scan, good).edges, rel=0.1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_image_of_no_number_has_no_measures(scan: Any, value: float) -> None:
    assert measure(scan, np.full_like(scan, value)) is None
    assert measure(np.full_like(scan, value), scan) is None


def test_a_result_of_one_value_has_the_worst_measures_and_a_scan_of_one_has_none(scan: Any) -> None:
    constant = np.full_like(scan, 500)
    found = measured(scan, constant)
    assert (found.cut_off, found.edges, found.detail, found.values) == (1, 0, 0, 1)
    assert measure(constant, scan) is None


def test_a_ramp_and_numbers_without_end_have_none_either(scan: Any) -> None:
    """The edges are equal everywhere, or the differences exceed all numbers."""
    ramp = np.indices((8, 8, 8)).sum(axis=0).astype(np.float32)
    assert measure(ramp, ramp) is None
    huge = np.where(scan > 100, np.float32(3e38), np.float32(-3e38))
    assert measure(scan, huge) is None


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 5), (3, 3, 3), (1, 40, 40)])
def test_the_smallest_images_are_measured_or_not(shape: tuple[int, int, int]) -> None:
    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    found = measure(values, values)
    assert found is None or (found.edges, found.detail) == pytest.approx((1, 1))
