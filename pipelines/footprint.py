"""How much host memory a study takes, known once it is read."""

from dataclasses import dataclass
from math import prod

import numpy as np

from ..engine.card import ModelCard
from ..engine.graph import Triple
from ..io.volume import Volume
from .orientation import orientation
from .resampling import resampling

_INTENSITY = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of what a study holds beside a few slabs, by what is there at the same time.

    read: the scan, and what goes into the network. translated: that and what comes out, while it
    is blended. finished: both arrays and the result.
    """

    read: int
    translated: int
    finished: int

    @property
    def peak(self) -> int:
        """The most of it."""
        return max(self.read, self.translated, self.finished)


def footprint(volume: Volume, card: ModelCard, patch: Triple) -> Footprint:
    """The footprint of a scan; raises PreparationError if its grid is unusable."""
    depth, height, width = model_grid(volume, card)
    array = depth * height * width * _INTENSITY
    stored = volume.voxels.dtype.itemsize
    blended = 2 * min(patch[0], depth) * height * width * _INTENSITY
    return Footprint(
        read=volume.voxels.nbytes + array,
        translated=2 * array + blended,
        finished=2 * array + prod(volume.shape) * max(stored, _INTENSITY),
    )


def model_grid(volume: Volume, card: ModelCard) -> Triple:
    """Extents [D, H, W] of a scan in its model's axes and spacing."""
    turned = orientation(volume.affine, card.axes)
    i, j, k = (volume.shape[axis] for axis in turned.order)
    resample = resampling((i, j, k), turned.sorted_spacing(volume.spacing), card.spacing)
    return (i, j, k) if resample is None else resample.target
