"""Arrays, a function of patches that shows misplaced voxels, and TorchIO's settings for both."""

from dataclasses import dataclass
from typing import Any

import numpy as np


def placed(patches: Any) -> Any:
    """A result that depends on a voxel's place in the patch and on the patch as a whole."""
    place = np.linspace(-1, 1, patches[0].size, dtype=np.float32).reshape(patches[0].shape)
    return np.tanh(2 * patches * place + patches.mean())


def array_of(extents: tuple[int, ...]) -> Any:
    return np.random.default_rng(4).uniform(-1, 1, (1, *extents)).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """extents, patch, overlap: in voxels. mode: of the aggregator. padding: of the sampler."""

    extents: tuple[int, int, int]
    patch: tuple[int, int, int]
    overlap: tuple[int, int, int]
    mode: str
    padding: Any = None


TORCHIO = {
    "regular, crop": Case((20, 20, 20), (8, 8, 8), (2, 2, 2), "crop"),
    "odd, crop": Case((23, 17, 19), (8, 8, 8), (4, 4, 4), "crop"),
    "each axis, crop": Case((23, 17, 19), (9, 6, 10), (4, 2, 6), "crop"),
    "no overlap, crop": Case((23, 17, 19), (8, 7, 6), (0, 0, 0), "crop"),
    "thin, crop": Case((23, 17, 5), (8, 8, 5), (4, 4, 2), "crop"),
    "one patch, crop": Case((9, 8, 7), (9, 8, 7), (4, 4, 4), "crop"),
    "odd, average": Case((23, 17, 19), (8, 8, 8), (4, 4, 4), "average"),
    "each axis, average": Case((23, 17, 19), (9, 6, 10), (4, 2, 6), "average"),
    "odd, hann": Case((23, 17, 19), (8, 8, 8), (4, 4, 4), "hann"),
    "each axis, hann": Case((22, 17, 13), (9, 6, 10), (6, 2, 8), "hann"),
    "border, crop": Case((23, 17, 19), (8, 8, 8), (4, 4, 4), "crop", 0.5),
    "border reflected, crop": Case((21, 17, 18), (10, 8, 9), (4, 2, 4), "crop", "reflect"),
    "border repeated, hann": Case((23, 17, 19), (8, 8, 8), (4, 4, 2), "hann", "edge"),
}
SPACINGS = {
    "finer": ((12, 14, 10), (2.0, 1.5, 3.0), (1.3, 1.0, 1.1)),
    "coarser": ((24, 23, 21), (0.9, 0.8, 0.7), (1.5, 1.7, 2.0)),
    "thin": ((20, 18, 1), (1.0, 1.2, 5.0), (1.5, 0.7, 2.0)),
    "some axes": ((20, 18, 9), (1.0, 1.0, 3.0), (1.0, 1.0, 1.2)),
}
"""Extents, spacing and wanted spacing."""
