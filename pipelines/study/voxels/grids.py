"""Whether two volumes lie on one grid, and what differs if they do not."""

from itertools import product
from typing import Any

import nibabel as _nibabel
import numpy as np

from ....io.volume import Affine, Volume

nibabel: Any = _nibabel  # typed only in part

MOST_APART = 0.01
"""Of the smallest edge of a voxel, between corners of two grids that are one: headers round."""


def grid_difference(one: Volume, other: Volume) -> str | None:
    """What differs between two grids, with the figures of both; None for one and the same grid."""
    if one.shape != other.shape:
        return f"{_sizes(one.shape)} voxels against {_sizes(other.shape)}"
    apart = _farthest_corners(one.shape, one.affine, other.affine)
    smallest = min(*one.spacing, *other.spacing)
    if apart <= MOST_APART * smallest:
        return None
    if not np.allclose(one.spacing, other.spacing, rtol=MOST_APART / max(one.shape), atol=0):
        return f"voxels of {_sizes(one.spacing)} mm against {_sizes(other.spacing)} mm"
    axes = _axes(one.affine), _axes(other.affine)
    if axes[0] != axes[1]:
        return f"axes that run to {axes[0]} against {axes[1]}"
    return f"corners that lie up to {apart:.3g} mm apart"


def _farthest_corners(extents: tuple[int, int, int], one: Affine, other: Affine) -> float:
    """In millimetres, between equal corners of two grids."""
    ends = [(0, extent - 1) for extent in extents]
    corners = np.array([(*corner, 1) for corner in product(*ends)])
    return float(np.linalg.norm((corners @ (one - other).T)[:, :3], axis=1).max())


def _axes(affine: Affine) -> str:
    codes: tuple[str | None, ...] = nibabel.aff2axcodes(affine)
    return "".join(code or "?" for code in codes)


def _sizes(sizes: tuple[float, ...]) -> str:
    return " x ".join(f"{size:.6g}" for size in sizes)
