"""Voxels as a tensor of cells holds them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from cuda_cyclegan.engine.network.layers import Triple


def as_cells(voxels: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Triple]:
    """Voxels [N, D, H, W, C] of even extents -> [N, D / 2, H / 2, W / 2, 8 C], and its extents."""
    n, d, h, w, c = voxels.shape
    pairs = voxels.reshape(n, d // 2, 2, h // 2, 2, w // 2, 2, c)
    cells = pairs.transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(n, d // 2, h // 2, w // 2, 8 * c)
    return np.ascontiguousarray(cells), (d // 2, h // 2, w // 2)
