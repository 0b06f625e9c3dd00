"""Differences between two grids, reported with figures; rounding of headers is no difference."""

import numpy as np
import pytest
from support.numerics_models import volume

from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.study.grids import grid_difference

AFFINE = np.array([[-1.5, 0, 0, 90.0], [0, 1.5, 0, -126], [0, 0, 2, -72], [0, 0, 0, 1]])


def grid(shape: tuple[int, int, int] = (20, 24, 16), affine: np.ndarray = AFFINE) -> Volume:
    return volume(np.zeros(shape, np.int16), affine)


def test_equal_grids_and_rounded_ones_do_not_differ() -> None:
    assert grid_difference(grid(), grid()) is None
    rounded = AFFINE.astype(np.float32).astype(np.float64) + 1e-5
    assert grid_difference(grid(affine=rounded), grid()) is None


def moved(millimetres: float) -> np.ndarray:
    affine = AFFINE.copy()
    affine[0, 3] += millimetres
    return affine


def turned(degrees: float) -> np.ndarray:
    sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
    return np.array([[cosine, -sine, 0, 0], [sine, cosine, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) @ (
        AFFINE
    )


@pytest.mark.parametrize(
    ("other", "reported"),
    [
        (grid((20, 24, 15)), "20 x 24 x 15 voxels against 20 x 24 x 16"),
        (
            grid(affine=AFFINE * [1, 1, 1.1, 1]),
            "voxels of 1.5 x 1.5 x 2.2 mm against 1.5 x 1.5 x 2 mm",
        ),
        (grid(affine=AFFINE * [-1, 1, 1, 1]), "axes that run to RAS against LAS"),
        (grid(affine=moved(0.5)), "corners that lie up to 0.5 mm apart"),
    ],
)
def test_differences_are_reported_with_the_figures_of_both(other: Volume, reported: str) -> None:
    assert grid_difference(other, grid()) == reported


def test_a_hundredth_of_a_voxel_is_the_limit() -> None:
    assert grid_difference(grid(affine=moved(0.014)), grid()) is None
    assert grid_difference(grid(affine=moved(0.016)), grid()) is not None
    assert grid_difference(grid(affine=turned(1)), grid()) is not None
