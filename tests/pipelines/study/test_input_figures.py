"""Figures of a scan: those of its anatomy, however it is stored; and what of them is unusual."""

from dataclasses import replace

import numpy as np
import pytest
from support.calibration_scans import head, inverted

from cuda_cyclegan.engine.model.calibration import DEVIATIONS
from cuda_cyclegan.engine.scaling import Scaling, Stored
from cuda_cyclegan.pipelines.study.input_figures import (
    InputFigures,
    deviations,
    differences,
    expectations,
    input_figures,
    scan_profiles,
)

EDGES = (1.0, 1.0, 1.0)


def figures(voxels: np.ndarray[tuple[int, ...], np.dtype[np.int16]]) -> InputFigures:
    low, high = np.percentile(voxels, [0.5, 99.5])
    scaling = Scaling((low + high) / 2, (high - low) / 2, clips=True)
    return input_figures(Stored(voxels[None], scaling), EDGES, EDGES)


REFERENCE = [figures(head(seed)) for seed in range(8)]
EXPECTED = expectations(REFERENCE)


def test_stored_voxels_and_network_intensities_have_the_same_figures() -> None:
    voxels = head(3)
    scaling = Scaling(400.0, 300.0, clips=True)
    mapped = Stored(scaling.forward(voxels[None]))
    assert input_figures(mapped, EDGES, EDGES) == input_figures(
        Stored(voxels[None], scaling), EDGES, EDGES
    )


def test_large_scans_are_sampled_to_the_same_figures() -> None:
    fine = np.repeat(np.repeat(head(1), 6, axis=0), 5, axis=1)
    found = input_figures(
        Stored(fine[None], Scaling(400.0, 400.0)), (1 / 6, 1 / 5, 1.0), (1 / 6, 1 / 5, 1.0)
    )
    coarse = input_figures(Stored(head(1)[None], Scaling(400.0, 400.0)), EDGES, EDGES)
    assert found.extent == pytest.approx(coarse.extent, rel=0.1)
    assert found.intensity == pytest.approx(coarse.intensity, abs=0.02)


def test_a_scan_of_the_same_kind_is_as_expected() -> None:
    assert differences(deviations(figures(head(20)), EXPECTED)) == ()


def test_a_deviation_is_that_of_the_figure_that_lies_furthest() -> None:
    usual = EXPECTED.spacing[2].mean
    found = replace(figures(head(20)), spacing=(usual, 1.1 * usual, 1.3 * usual))
    intensity, extent, spacing = deviations(found, EXPECTED)
    assert max(intensity.far, extent.far) < DEVIATIONS
    assert spacing.far == pytest.approx(0.3 / 0.05)
    assert differences(deviations(found, EXPECTED)) == (spacing.words,)


def test_an_inverted_scan_is_not() -> None:
    [first, *_] = differences(deviations(figures(inverted(head(20))), EXPECTED))
    assert first.startswith("percentile")
    assert "of its intensity in the foreground" in first


def test_another_body_part_is_not() -> None:
    reported = differences(deviations(figures(head(20, (24, 44, 20))), EXPECTED))
    assert any(words.startswith("its foreground extends over") for words in reported)


def test_another_spacing_is_not_and_a_rounded_one_is() -> None:
    found = figures(head(20))
    assert differences(deviations(replace(found, spacing=(1.0, 1.0, 1.1)), EXPECTED)) == ()
    [reported] = differences(deviations(replace(found, spacing=(1.0, 1.0, 1.3)), EXPECTED))
    assert reported == "its spacing is 1.3 mm along W, where 1 is usual (sd 0)"


def pear(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
    """A head that is narrower towards high k, and has a nose at high j."""
    random = np.random.default_rng(seed)
    i, j, k = np.meshgrid(*(np.linspace(-1, 1, count) for count in (32, 36, 30)), indexing="ij")
    size = random.uniform(0.75, 0.85) * (1 - 0.35 * k)
    inside = (i**2 + j**2 < size**2) & (np.abs(k) < 0.9)
    inside |= (np.abs(i) < 0.15) & (np.abs(k) < 0.4) & (j > 0) & (j < size + 0.12)
    return np.where(inside, 600 + random.normal(0, 30, i.shape), 20).astype(np.int16)


PEARS = [figures(pear(seed)) for seed in range(20)]
USUAL, PROFILES = expectations(PEARS), scan_profiles(PEARS)


def of_pears(voxels: np.ndarray[tuple[int, ...], np.dtype[np.int16]]) -> tuple[str, ...]:
    return differences(deviations(figures(voxels), USUAL, PROFILES))


def test_the_distribution_of_the_foreground_is_that_of_its_eighths() -> None:
    for axis, profile in enumerate(PEARS[0].profiles):
        assert len(profile) == 8
        assert np.mean(profile) == pytest.approx(1.0)
        turned = figures(np.flip(pear(0), axis)).profiles[axis]
        assert turned == pytest.approx(profile[::-1], abs=0.15)


@pytest.mark.parametrize("seed", range(20, 26))
def test_other_scans_of_the_kind_are_as_expected(seed: int) -> None:
    assert of_pears(pear(seed)) == ()


def test_a_scan_that_is_upside_down_is_found_and_called_mirrored() -> None:
    [found] = of_pears(np.flip(pear(20), 2))
    assert found == "its foreground lies along W as in a mirrored scan"


def test_a_slab_and_a_face_that_are_missing_are_found() -> None:
    voxels = pear(20)
    voxels[:, :, 14:18] = 20
    assert any("along W, where" in words for words in of_pears(voxels))
    voxels = pear(20)
    voxels[:, 27:] = 20
    assert any("of its foreground lies in eighth" in words for words in of_pears(voxels))


def test_a_calibration_of_an_earlier_version_has_no_profiles() -> None:
    assert differences(deviations(figures(np.flip(pear(20), 2)), USUAL)) == ()
