"""How much host memory a study takes, known once it is read."""

from dataclasses import dataclass

import numpy as np

from ...engine.model.card import ModelCard
from ...engine.network.graph import Triple
from ...io.volume import Volume
from ..settings import Extras
from .preparation import stays_as_stored
from .voxels.orientation import orientation
from .voxels.resampling import resampling
from .voxels.voxel_type import has_own_range, in_own_unit

_INTENSITY = np.dtype(np.float32).itemsize


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of what a study holds beside a few slabs, by what is there at the same time.

    read: the scan, and what goes into the network if that is not the scan itself. translated: that
    and what comes out, while it is blended. finished: both, and the result if it is a third.
    """

    read: int
    translated: int
    finished: int

    @property
    def peak(self) -> int:
        """The most of it."""
        return max(self.read, self.translated, self.finished)


def footprint(volume: Volume, card: ModelCard, patch: Triple, extras: Extras) -> Footprint:
    """The footprint of a scan or a little more; raises PreparationError if its grid is unusable."""
    turned = orientation(volume.affine, card.axes)
    grid = turned.oriented(volume.voxels).shape
    resample = resampling(grid, turned.sorted_spacing(volume.spacing), card.spacing)
    is_as_stored = stays_as_stored(volume, resample, in_network=extras.seam_score)
    depth, height, width = grid if resample is None else resample.target
    array = depth * height * width * _INTENSITY
    given = volume.voxels.nbytes if is_as_stored else array
    widest = max(volume.voxels.itemsize, _INTENSITY)
    result = volume.voxels.size * (
        volume.voxels.itemsize if in_own_unit(card.intensity_out) else widest
    )
    is_made_at_once = is_as_stored and not has_own_range(card.intensity_out)
    made = result if is_made_at_once else array
    blended = 2 * min(patch[0], depth) * height * width * _INTENSITY
    return Footprint(
        read=volume.voxels.nbytes + (0 if is_as_stored else array),
        translated=given + made + blended,
        finished=given + made + (0 if is_made_at_once else result),
    )
