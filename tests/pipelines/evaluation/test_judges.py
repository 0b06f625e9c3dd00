"""Figures against the code of others; benchmarks/evaluation_parity.py does so 50 times over."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support import evaluation_judges as judges
from support.evaluation_images import hounsfield_images, random_images, whole_images
from support.similarity_by_definition import ms_ssim, prepared, ssim

from cuda_cyclegan.pipelines.evaluation.images import Images, StoredImage
from cuda_cyclegan.pipelines.evaluation.protocols import SYNTHRAD2025, general, measure


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow, id="large"),
        2,
        3,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 4, 5)),
    ],
)
def test_synthrad2025_on_random_images_masks_and_ranges(seed: int) -> None:
    pytest.importorskip("skimage")
    images = hounsfield_images(seed)
    reported, found = judges.synthrad2025(images), measure(images, SYNTHRAD2025).figures
    assert found.mae == pytest.approx(reported["mae"], rel=1e-9)
    assert found.psnr == pytest.approx(reported["psnr"], rel=1e-9)
    ms_ssim = math.nan if found.ms_ssim is None else found.ms_ssim
    assert ms_ssim == pytest.approx(reported["ms_ssim"], abs=1e-9, nan_ok=True)


def test_synthrad2025_on_what_scanners_store() -> None:
    """Whole numbers, voxels beyond the data range, and a mask up to the border."""
    pytest.importorskip("skimage")
    random = np.random.default_rng(0)
    truth = random.integers(-2000, 5000, (40, 50, 60)).astype(np.int16)
    result = truth + random.normal(0, 300, truth.shape).astype(np.float32)
    images = Images(StoredImage(truth), StoredImage(result), np.ones(truth.shape, np.bool_))
    reported, found = judges.synthrad2025(images), measure(images, SYNTHRAD2025).figures
    assert found.mae == pytest.approx(reported["mae"], rel=1e-9)
    assert found.psnr == pytest.approx(reported["psnr"], rel=1e-9)
    assert found.ms_ssim == pytest.approx(reported["ms_ssim"], abs=1e-9)


@pytest.mark.slow
def test_ms_ssim_of_two_other_libraries() -> None:
    pytest.importorskip("pytorch_msssim")
    pytest.importorskip("monai")
    images, peak = whole_images(3, (112, 112, 112))
    found = measure(images, general((0.0, peak), "none")).figures.ms_ssim
    assert found == pytest.approx(judges.ms_ssim_of_pytorch_msssim(images, peak), abs=1e-9)
    assert found == pytest.approx(judges.rounded_ms_ssim_of_monai(images, peak), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_psnr_and_ssim_of_scikit_image(seed: int) -> None:
    judge = pytest.importorskip("skimage.metrics")
    images, peak = whole_images(seed, (30, 41, 22))
    truth, result = images.truth.voxels, images.result.voxels
    found = measure(images, general((0.0, peak), "none")).figures
    psnr = judge.peak_signal_noise_ratio(truth, result, data_range=peak)
    box = {"win_size": 7, "use_sample_covariance": False}
    assert found.psnr == pytest.approx(psnr, rel=1e-12)
    similar = judge.structural_similarity(truth, result, data_range=peak, **box)
    assert found.ssim == pytest.approx(similar, abs=1e-9)
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    similar = judge.structural_similarity(truth, result, data_range=peak, **window)
    assert found.gaussian_ssim == pytest.approx(similar, abs=1e-9)
    assert found.nmi == pytest.approx(judge.normalized_mutual_information(truth, result))


def test_mutual_information_of_whole_numbers_within_a_mask() -> None:
    """Whole numbers lie on edges of bins, where rounding decides the bin."""
    judge = pytest.importorskip("skimage.metrics")
    random = np.random.default_rng(3)
    truth = random.integers(-1000, 1000, (20, 30, 40)).astype(np.int16)
    result = (truth + random.integers(-40, 40, truth.shape)).astype(np.int16)
    inside = random.random(truth.shape) > 0.4
    images = Images(StoredImage(truth), StoredImage(result), inside)
    reported = judge.normalized_mutual_information(truth[inside], result[inside])
    assert measure(images, general(None)).figures.nmi == pytest.approx(reported, rel=1e-12)


@pytest.mark.slow
def test_similarity_by_its_definition_within_a_mask() -> None:
    """Extents are odd and above 112, values start from a low end that is not 0."""
    images = random_images(np.random.default_rng(5), (113, 118, 127), -300.0, 900.0)
    found = measure(images, general((-300.0, 900.0), "none")).figures
    assert found.ssim == pytest.approx(ssim(images, -300.0, 900.0), abs=1e-9)
    judge = pytest.importorskip("skimage.metrics")
    x, y, inside = prepared(images, -300.0)
    window = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    _, scores = judge.structural_similarity(x, y, data_range=1200.0, full=True, **window)
    inner = (slice(5, -5),) * 3
    expected = scores[inner][inside[inner]].mean()
    assert found.gaussian_ssim == pytest.approx(expected, abs=1e-9)
    assert found.ms_ssim == pytest.approx(ms_ssim(images, -300.0, 900.0), abs=1e-9)


def test_a_short_volume_is_extended_by_its_outermost_values() -> None:
    random = np.random.default_rng(6)
    images = replace(random_images(random, (112, 112, 9), 0.0, 100.0), inside=None)
    margins = ((0, 0), (0, 0), (51, 52))
    long = [np.pad(stored.voxels, margins, "edge") for stored in (images.truth, images.result)]
    extended = Images(StoredImage(long[0]), StoredImage(long[1]))
    found = measure(images, general((0.0, 100.0))).figures
    assert found.ms_ssim == pytest.approx(ms_ssim(extended, 0.0, 100.0), abs=1e-9)
    assert found.ssim == pytest.approx(ssim(images, 0.0, 100.0), abs=1e-9)


def test_pearsons_r_and_the_mean_error_of_numpy() -> None:
    images = hounsfield_images(1)
    assert images.inside is not None
    truth, result = images.truth.voxels[images.inside], images.result.voxels[images.inside]
    found = measure(images, SYNTHRAD2025)
    assert found.figures.r == pytest.approx(np.corrcoef(truth, result)[0, 1], rel=1e-12)
    assert found.figures.mae == pytest.approx(np.abs(truth - result).mean(), rel=1e-12)
    assert found.voxels == truth.size
