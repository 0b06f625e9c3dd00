"""Random truths and results with structure at all scales, and a mask of several pieces."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from cuda_cyclegan.pipelines.evaluation.images import Images, StoredImage
from cuda_cyclegan.pipelines.evaluation.protocols import Protocol

Array = NDArray[Any]


def smooth_noise(random: np.random.Generator, shape: tuple[int, ...], width: float) -> Array:
    """Return smooth noise of mean 0 and standard deviation 1."""
    noise = gaussian_filter(random.normal(size=shape), width)
    return noise / noise.std()


def random_images(
    random: np.random.Generator, shape: tuple[int, int, int], low: float, high: float
) -> Images:
    """Float64 truth and result, some beyond low to high; two thirds of the voxels count."""
    middle, half = (low + high) / 2, (high - low) / 2
    truth = middle + half * 0.5 * smooth_noise(random, shape, random.uniform(0.8, 3))
    bias = half * random.uniform(0, 0.2)
    result = truth + bias * smooth_noise(random, shape, random.uniform(0.3, 2))
    return Images(StoredImage(truth), StoredImage(result), smooth_noise(random, shape, 4) > -0.5)


def without_extension(protocol: Protocol) -> Protocol:
    """Return the protocol with short axes as they are, hence no MS-SSIM of small images.

    To extend them to five scales takes a hundred times as long as all other figures.
    """
    return replace(protocol, rule=replace(protocol.rule, fewest=0))


def hounsfield_images(seed: int) -> Images:
    """CT-like images of random extents and ranges, every fifth of at least 97 voxels a side."""
    random = np.random.default_rng(seed)
    ends = (20, 60) if seed % 5 else (97, 104)
    k, j, i = (int(extent) for extent in random.integers(*ends, 3))
    low, high = random.uniform(-1500, -600), random.uniform(100, 3500)
    images = random_images(random, (k, j, i), low, high)
    images.truth.voxels[0, 0, 0] = -1000  # air, by which a CT is known
    return images


def whole_images(seed: int, shape: tuple[int, int, int]) -> tuple[Images, float]:
    """Return images without a mask, from 0 on, as other libraries take them; and the data range."""
    random = np.random.default_rng(seed)
    peak = float(random.choice([1.0, 255.0, 4095.0]) * random.uniform(0.5, 1.5))
    return replace(random_images(random, shape, 0.0, peak), inside=None), peak
