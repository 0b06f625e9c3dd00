"""SSIM and MS-SSIM as Wang et al. define them, in whole arrays with scipy's filters."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from cuda_cyclegan.pipelines.evaluation.images import Images

Array = NDArray[Any]
WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def prepared(images: Images, low: float) -> tuple[Array, Array, Array]:
    """Truth and result from the low end on, 0 outside the mask, and the mask."""
    shape = images.truth.voxels.shape
    inside = np.ones(shape, np.bool_) if images.inside is None else images.inside
    return *(
        np.where(inside, stored.values(slice(None)) - low, 0.0)
        for stored in (images.truth, images.result)
    ), inside


def maps(x: Array, y: Array, peak: float) -> tuple[Array, Array]:
    """SSIM, and its part without luminance, wherever a 7 x 7 x 7 box fits."""
    box = {"size": 7, "mode": "constant"}
    inner = (slice(3, -3),) * 3
    mx, my = uniform_filter(x, **box)[inner], uniform_filter(y, **box)[inner]
    xx, yy, xy = (uniform_filter(a * b, **box)[inner] for a, b in ((x, x), (y, y), (x, y)))
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    structure = (2 * (xy - mx * my) + c2) / (xx - mx * mx + yy - my * my + c2)
    return (2 * mx * my + c1) / (mx * mx + my * my + c1) * structure, structure


def ssim(images: Images, low: float, high: float) -> float:
    """Mean over the mask."""
    x, y, inside = prepared(images, low)
    return float(maps(x, y, high - low)[0][inside[3:-3, 3:-3, 3:-3]].mean())


def ms_ssim(images: Images, low: float, high: float) -> float:
    """Product over five scales, of images that have at least 112 voxels along each axis."""
    x, y, inside = prepared(images, low)
    scores: list[float] = []
    for level, weight in enumerate(WEIGHTS):
        whole, structure = maps(x, y, high - low)
        score = (whole if level == 4 else structure)[inside[3:-3, 3:-3, 3:-3]].mean()
        scores.append(max(float(score), 0.0) ** weight)
        x, y, inside = _halved(x), _halved(y), _every_other(inside)
    return prod(scores)


def _halved(x: Array) -> Array:
    k, j, i = (extent // 2 for extent in x.shape)
    return x[: 2 * k, : 2 * j, : 2 * i].reshape(k, 2, j, 2, i, 2).mean(axis=(1, 3, 5))


def _every_other(inside: Array) -> Array:
    k, j, i = (extent // 2 for extent in inside.shape)
    return inside[: 2 * k : 2, : 2 * j : 2, : 2 * i : 2]
