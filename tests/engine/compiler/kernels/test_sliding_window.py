"""Launches of the sliding window have a thread for every voxel."""

import numpy as np
import pytest

from cuda_cyclegan.engine.compiler.kernels.sliding_window import RingLayout, blend
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.patch_grid import PatchWindow

PLACES = RingLayout(
    source=0, mean=0, total=0, weights=0, lowest=0, overflowed=0, clipped=0, rows=64, bytes=0
)


@pytest.mark.parametrize("patch", [(4, 16, 16), (3, 17, 19), (5, 33, 31), (2, 48, 48)])
@pytest.mark.parametrize("origin", [(0, 0, 0), (-1, -2, 3)])
def test_each_voxel_that_a_patch_covers_is_blended(patch: Triple, origin: Triple) -> None:
    extents = (64, 64, 64)
    window = PatchWindow(
        extents,
        patch,
        ((0,), (0,), (0,)),
        (0, 1, 2),
        voxel_bytes=4,
        weights=np.ones(patch, np.float32),
        padding="edge",
    )
    launch = blend(window, PLACES, 1, origin, 0, 0)
    planes, height, width = launch.arguments.count
    across, along, _ = launch.grid
    assert across * launch.block[0] >= height * width > (across - 1) * launch.block[0]
    assert along == planes
