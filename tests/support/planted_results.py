"""Cohorts of honest results, and the kinds of bad ones that are planted among them.

A cohort is drawn from its seed alone: scans of one contrast, and what a good generator makes of
them, with blur, noise and smooth errors of its own in each study. Arrays are [i, j, k], the last
axis from slice to slice, and C-contiguous in [k, j, i] as a reader of NIfTI has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
from scipy import ndimage
from support.product_source import ROOT

nibabel: Any = _nibabel
Image = np.ndarray[Any, np.dtype[np.float32]]
SAMPLE = ROOT / "sample_data" / "scans" / "icbm152_2009_t1_2mm.nii.gz"


@dataclass(frozen=True, slots=True)
class Pair:
    """A scan and its result, [i, j, k], with the spacing of their voxels in millimetres."""

    scan: Image
    result: Image
    spacing: tuple[float, float, float]


_HEAD_MM, _BRIGHT = 2.0, 800.0
"""Spacing of heads, and the value of their 99.5th percentile, about that of the sample's."""


@cache
def _head(file: Path) -> Image:
    """T1 of a head along R, A and S, in voxels of 2 mm."""
    stored = nibabel.as_closest_canonical(nibabel.load(file))
    voxels = np.asarray(stored.dataobj).astype(np.float32)
    if file == SAMPLE:
        return voxels
    edges = np.array(stored.header.get_zooms()[:3])
    fine = [max(each, 0.0) for each in (_HEAD_MM / edges - 1) / 2]
    even = ndimage.zoom(ndimage.gaussian_filter(voxels, fine), edges / _HEAD_MM, order=1)
    return even * np.float32(_BRIGHT / np.percentile(even, 99.5))


def _smooth(random: np.random.Generator, shape: tuple[int, ...], knots: int) -> Image:
    """Standard normal at a few knots, and linear between them."""
    drawn = random.standard_normal((knots,) * 3)
    return ndimage.zoom(drawn, np.array(shape) / knots, order=1, grid_mode=True, mode="nearest")


def _deformed(image: Image, random: np.random.Generator, amplitude: float) -> Image:
    """Another patient: scaled by up to 6 %, moved, and bent smoothly."""
    scale, shape = random.uniform(0.94, 1.06), image.shape
    middle = (np.array(shape) - 1) / 2
    places = [
        (line - centre) / scale + centre + random.normal(0, 1.5) + amplitude * bend
        for line, centre, bend in zip(
            np.indices(shape, np.float32),
            middle,
            (_smooth(random, shape, 5) for _ in shape),
            strict=True,
        )
    ]
    return ndimage.map_coordinates(image, places, order=1)


def _made(truth: Image, body: Any, random: np.random.Generator, noise: float, gain: float) -> Image:
    """Return what a good generator makes of a scan: its own blur, noise and smooth errors."""
    blurred = ndimage.gaussian_filter(truth, random.uniform(0.3, 0.7))
    errors = 1 + gain * _smooth(random, truth.shape, 4)
    noisy = random.standard_normal(truth.shape) * noise * random.uniform(0.5, 1.5)
    return np.where(body, blurred * errors + noisy, blurred).astype(np.float32)


def head_t2(seed: int, head: Path = SAMPLE) -> Pair:
    """T1 of a head at 2 mm, and its T2. head: file of a T1 from which it is made."""
    random = np.random.default_rng(seed)
    anatomy = _deformed(_head(head), random, 1.5)
    body = anatomy > 60
    truth = np.where(body, np.clip(1100 - anatomy, 50, None), 0).astype(np.float32)
    bias = np.exp(0.06 * _smooth(random, anatomy.shape, 3))
    scan = anatomy * bias * random.uniform(0.7, 1.4)
    scan = scan + random.standard_normal(scan.shape) * 8 * (scan > 0)
    result = np.clip(_made(truth, body, random, 8, 0.02), 0, None)
    return Pair(np.clip(scan, 0, None).astype(np.float32), result, (2.0, 2.0, 2.0))


def head_ct(seed: int, head: Path = SAMPLE) -> Pair:
    """T1 of a head in slices of 4 mm, and its CT. head: file of a T1 from which it is made."""
    random = np.random.default_rng(seed)
    anatomy = _deformed(_head(head), random, 1.5)
    body = ndimage.binary_dilation(anatomy > 60, iterations=2)
    skull = body & ~ndimage.binary_erosion(body, iterations=3)
    truth = np.full(anatomy.shape, -1000, np.float32)
    truth[body] = 30 + anatomy[body] / 60
    truth[skull] = 900 + 200 * random.uniform(-1, 1)
    scan = anatomy * np.exp(0.1 * _smooth(random, anatomy.shape, 3)) * random.uniform(0.5, 2)
    scan = np.clip(scan + random.standard_normal(scan.shape) * 10, 0, None).astype(np.float32)
    result = _made(truth, body, random, 15, 0.03)
    thick = (1, 1, 0.5)
    scan, result = (ndimage.zoom(image, thick, order=1) for image in (scan, result))
    return Pair(scan, result, (2.0, 2.0, 4.0))


def abdomen_ct(seed: int) -> Pair:
    """MR of a trunk with organs, and its CT; extents differ from patient to patient."""
    random = np.random.default_rng(seed)
    shape = (88, 72, int(random.integers(52, 64)))
    x, y, z = (np.linspace(-1, 1, count, dtype=np.float32) for count in shape)
    at = np.meshgrid(x, y, z, indexing="ij")
    bend = [0.05 * _smooth(random, shape, 5) for _ in shape]

    def ball(centre: tuple[float, ...], size: tuple[float, ...]) -> Any:
        moved = [random.normal(c, 0.03) for c in centre]
        sizes = [s * random.uniform(0.9, 1.1) for s in size]
        parts = zip(at, bend, moved, sizes, strict=True)
        return sum(((a + b - m) / s) ** 2 for a, b, m, s in parts) < 1

    body = ball((0, 0, 0), (0.85, 0.8, 3))
    scan, truth = np.zeros(shape, np.float32), np.full(shape, -1000, np.float32)
    scan[body], truth[body] = 700, -95
    organs = [
        (ball((0, 0, 0), (0.72, 0.66, 3)), 300, 45),
        (ball((-0.35, 0.1, 0.3), (0.3, 0.35, 0.5)), 420, 62),
        (ball((0.4, 0.15, 0.35), (0.2, 0.25, 0.35)), 250, 50),
        (ball((-0.3, -0.25, -0.35), (0.13, 0.16, 0.3)), 520, 33),
        (ball((0.32, -0.25, -0.3), (0.13, 0.16, 0.3)), 520, 33),
        (ball((0.1, 0.35, -0.1), (0.2, 0.13, 0.5)), 60, -850),
        (ball((0, -0.5, 0), (0.12, 0.12, 3)), 180, 550),
    ]
    for where, before, after in organs:
        scan[where], truth[where] = before, after
    texture = ndimage.gaussian_filter(random.standard_normal(shape), 1.2)
    texture = (texture / texture.std()).astype(np.float32)
    scan = scan * (1 + 0.1 * texture) * np.exp(0.1 * _smooth(random, shape, 3))
    truth = truth + np.where(body, 10 * texture, 0)
    noisy = scan * random.uniform(0.7, 1.4) + random.standard_normal(shape) * 8
    result = _made(truth, body, random, 10, 0.03)
    return Pair(np.abs(noisy).astype(np.float32), result, (1.9, 1.9, 2.5))


COHORTS: dict[str, Callable[[int], Pair]] = {
    "head T2": head_t2,
    "head CT": head_ct,
    "abdomen CT": abdomen_ct,
}


def cohorts_of(head: Path) -> dict[str, Callable[[int], Pair]]:
    """Return the cohorts that are made from the T1 of another head."""
    return {"head T2": partial(head_t2, head=head), "head CT": partial(head_ct, head=head)}


@dataclass(frozen=True, slots=True)
class Others:
    """Honest results of other patients, on grids of any shape. random: source of noise."""

    results: tuple[Image, ...]
    random: np.random.Generator

    def one(self, shape: tuple[int, ...]) -> Image:
        """Return another patient's result, cropped or padded to a shape."""
        return fitted(self.results[0], shape)

    def mean(self, shape: tuple[int, ...]) -> Image:
        """Return the mean of all, as a generator whose modes collapsed has it."""
        return np.mean([fitted(each, shape) for each in self.results], axis=0, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Case:
    """A study in which a fault is planted: its scan, its honest result y, and other patients."""

    scan: Image
    y: Image
    others: Others


Plant = Callable[[Case], Image]


def fitted(image: Image, shape: tuple[int, ...]) -> Image:
    """Return an image with its middle in the middle of a shape, its edges repeated."""
    for axis, count in enumerate(shape):
        places = np.arange(count) + (image.shape[axis] - count) // 2
        image = image.take(np.clip(places, 0, image.shape[axis] - 1), axis)
    return image


def _along(y: Image, axis: int) -> Any:
    shape = [1, 1, 1]
    shape[axis] = y.shape[axis]
    return np.arange(y.shape[axis]).reshape(shape) / y.shape[axis]


def _sphere(y: Image, radius: float) -> Any:
    middle = [0.4 * count for count in y.shape]
    lines = zip(np.indices(y.shape), middle, strict=True)
    return sum((line - at) ** 2 for line, at in lines) < radius**2


def _air(y: Image) -> float:
    return float(y.min())


def _checked(y: Image, size: int, low: float) -> Image:
    squares = (np.indices(y.shape) // size).sum(0) % 2
    return np.where(squares == 1, _air(y) + (y - _air(y)) * low, y)


def _jittered(y: Image) -> Image:
    made = y.copy()
    for at in range(0, y.shape[2], 7):
        made[:, :, at] = np.roll(y[:, :, at], 3, 0)
    return made


def _zoomed(y: Image, by: float) -> Image:
    return fitted(ndimage.zoom(y, by, order=1), y.shape)


def _lines(y: Image) -> Image:
    grid = np.indices(y.shape, np.int16)
    near = [np.abs(grid[axis] - y.shape[axis] // 2) < 2 for axis in (0, 1)]
    return np.where(near[0] | near[1], y.max() * 3, y)


def _windowed(y: Image, levels: int) -> Image:
    step = (float(y.max()) - _air(y)) / levels
    return np.round((y - _air(y)) / step) * step + _air(y)


PLANTED: dict[str, Plant] = {
    "flip_LR": lambda c: c.y[::-1],
    "flip_AP": lambda c: c.y[:, ::-1],
    "flip_SI": lambda c: c.y[:, :, ::-1],
    "shift_1": lambda c: np.roll(c.y, 1, 1),
    "shift_2": lambda c: np.roll(c.y, 2, 2),
    "shift_5": lambda c: np.roll(c.y, 5, 0),
    "input_again": lambda c: c.scan.copy(),
    "mode_collapse": lambda c: c.others.mean(c.y.shape),
    "saturated": lambda c: np.clip(c.y, None, _air(c.y) + 0.3 * (c.y.max() - _air(c.y))),
    "8_levels": lambda c: _windowed(c.y, 8),
    "offset_1024": lambda c: c.y - 1024,
    "scale_0.1": lambda c: c.y * 0.1,
    "seams": lambda c: _checked(c.y, 24, 0.8),
    "slices_missing_3": lambda c: np.where(
        np.abs(_along(c.y, 2) - 0.5) < 1.6 / c.y.shape[2], _air(c.y), c.y
    ),
    "every_10th_empty": lambda c: np.where(
        np.arange(c.y.shape[2]) % 10 == 5, np.float32(_air(c.y)), c.y
    ),
    "constant": lambda c: np.full_like(c.y, 500),
    "pure_noise": lambda c: np.abs(c.others.random.standard_normal(c.y.shape)) * 300,
    "noise_added": lambda c: c.y + c.others.random.standard_normal(c.y.shape) * 0.07 * np.ptp(c.y),
    "lesion_added": lambda c: np.where(_sphere(c.y, 5), c.y.max(), c.y),
    "half_empty": lambda c: np.where(_along(c.y, 2) > 0.5, _air(c.y), c.y),
    "blurred_2": lambda c: ndimage.gaussian_filter(c.y, 2),
    "blurred_1": lambda c: ndimage.gaussian_filter(c.y, 1),
    "inverted": lambda c: _air(c.y) + c.y.max() - c.y,
    "zoomed_1.2": lambda c: _zoomed(c.y, 1.2),
    "metal_lines": lambda c: _lines(c.y),
    "jittered": lambda c: _jittered(c.y),
}
"""Kinds of bad results on which the rules were chosen."""

KEPT_BACK: dict[str, Plant] = {
    "other_patient": lambda c: c.others.one(c.y.shape),
    "turned_90": lambda c: fitted(np.rot90(c.y, 1, (0, 1)), c.y.shape),
    "checkerboard": lambda c: _checked(c.y, 1, 0.75),
    "top_tenth_empty": lambda c: np.where(_along(c.y, 2) > 0.8, _air(c.y), c.y),
    "left_half_empty": lambda c: np.where(_along(c.y, 0) > 0.5, _air(c.y), c.y),
    "slab_repeated": lambda c: np.where(
        np.abs(_along(c.y, 2) - 0.5) < 0.08, c.y[:, :, c.y.shape[2] // 2, None], c.y
    ),
    "zoomed_0.9": lambda c: _zoomed(c.y, 0.9),
    "oblique_shift": lambda c: np.roll(c.y, (2, 2, 1), (0, 1, 2)),
    "scale_1.5": lambda c: _air(c.y) + (c.y - _air(c.y)) * 1.5,
    "slices_swapped": lambda c: (
        c.y[:, :, np.arange(c.y.shape[2]) ^ 1].copy()
        if c.y.shape[2] % 2 == 0
        else np.concatenate([c.y[:, :, np.arange(c.y.shape[2] - 1) ^ 1], c.y[:, :, -1:]], 2)
    ),
    "lesion_removed": lambda c: np.where(_sphere(c.y, 7), np.median(c.y[c.y > _air(c.y) + 1]), c.y),
    "corner_empty": lambda c: np.where(
        (_along(c.y, 0) > 0.5) & (_along(c.y, 1) > 0.5), _air(c.y), c.y
    ),
}
"""Kinds whose figures were seen while rules were chosen, but that no limit was fitted to."""
