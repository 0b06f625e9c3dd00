"""What is decided about a study once its header is read, and followed to its result."""

from dataclasses import dataclass
from math import prod

import numpy as np

from ...engine.model.card import ModelCard
from ...engine.network.layers import Triple
from ...engine.scaling import is_taken_as_stored
from ...io.volume import Volume
from ..errors import PreparationError
from ..settings import TranslateSettings
from .tiling import Tiling, tile
from .voxels.orientation import Orientation, orientation
from .voxels.resampling import Resampling, resampling
from .voxels.voxel_type import VoxelType, foreseen_voxel_type, voxel_type_of

_INTENSITY = np.dtype(np.float32).itemsize
_MAPS = 2
"""Of a spread: mean and standard deviation."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of host memory that a study holds beside a few slabs, by what is there together.

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


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """How a scan comes onto the model's grid and back, and in which form its voxels travel.

    resampling: None where the scan has the model's spacing. tiling: of the model's grid.
    is_given_as_stored: whether the scan's own voxels are what the network is given. voxel_type: of
    the result; None where it depends on what the network makes. is_made_as_stored: whether the
    result's own voxels are what the network fills. keeps_unit: whether the result's values are in
    the scan's unit. footprint: exact where the voxel type is known, else a little more than is
    needed. orientation: from the scan's axes to the model's.
    """

    orientation: Orientation
    resampling: Resampling | None
    tiling: Tiling
    is_given_as_stored: bool
    voxel_type: VoxelType | None
    is_made_as_stored: bool
    keeps_unit: bool
    footprint: Footprint


def plan_study(
    volume: Volume,
    card: ModelCard,
    settings: TranslateSettings,
    stride: Triple,
    *,
    in_network: bool = False,
    spreads: bool = False,
) -> StudyPlan:
    """The plan of a scan, of which no voxel is looked at.

    stride: the network's, see `Graph.stride`. in_network: have network intensities on the host
    even where they need not be. spreads: have maps of several translations. Raises PreparationError
    if the affine or the grid is unusable, or if the model takes more than one channel.
    """
    _check_channels(card)
    turned = orientation(volume.affine, card.axes)
    grid = turned.oriented(volume.voxels).shape
    resample = resampling(grid, turned.sorted_spacing(volume.spacing), card.spacing)
    extents = grid if resample is None else resample.target
    _check_extents(volume, extents)
    tiling = tile(extents, settings.patch, settings.overlap, stride)
    keeps_voxels = resample is None and not in_network
    is_given = keeps_voxels and is_taken_as_stored(volume.voxels.dtype)
    voxel_type = foreseen_voxel_type(voxel_type_of(volume), card.intensity_out, card.output_range)
    is_made = (
        keeps_voxels
        and not spreads
        and voxel_type is not None
        and is_taken_as_stored(voxel_type.dtype)
    )
    footprint = _footprint(volume, tiling, voxel_type, is_given=is_given, is_made=is_made)
    if spreads:
        footprint = _with_maps(footprint, volume, tiling, is_resampled=resample is not None)
    return StudyPlan(
        orientation=turned,
        resampling=resample,
        tiling=tiling,
        is_given_as_stored=is_given,
        voxel_type=voxel_type,
        is_made_as_stored=is_made,
        keeps_unit=card.keeps_unit,
        footprint=footprint,
    )


def _footprint(
    volume: Volume, tiling: Tiling, voxel_type: VoxelType | None, *, is_given: bool, is_made: bool
) -> Footprint:
    scan, array = volume.voxels.nbytes, prod(tiling.extents) * _INTENSITY
    widest = max(volume.voxels.itemsize, _INTENSITY)
    result = volume.voxels.size * (voxel_type.dtype.itemsize if voxel_type else widest)
    depth, height, width = tiling.extents
    blended = 2 * min(tiling.patch[0], depth) * height * width * _INTENSITY
    given, made = scan if is_given else array, result if is_made else array
    return Footprint(
        read=scan + (0 if is_given else array),
        translated=given + made + blended,
        finished=given + made + (0 if is_made else result),
    )


def _with_maps(
    footprint: Footprint, volume: Volume, tiling: Tiling, *, is_resampled: bool
) -> Footprint:
    """With maps, which are made on the model's grid: as they are stored where it is the scan's."""
    made = _MAPS * prod(tiling.extents) * _INTENSITY
    stored = _MAPS * volume.voxels.size * _INTENSITY if is_resampled else 0
    return Footprint(
        read=footprint.read,
        translated=footprint.translated + made,
        finished=footprint.finished + made + stored,
    )


def _check_channels(card: ModelCard) -> None:
    if len(card.input_channels) != 1 or len(card.output_channels) != 1:
        raise PreparationError(
            f"The model takes {len(card.input_channels)} channels and makes "
            f"{len(card.output_channels)}, but a scan has one; use a model of one channel."
        )


def _check_extents(volume: Volume, extents: Triple) -> None:
    if volume.voxels.size == 0:
        held = "x".join(map(str, volume.shape))
        raise PreparationError(f"The volume of {held} holds no voxels; check how it was saved.")
    if min(extents) < 2:
        raise PreparationError(
            f"On the model's grid the scan has {'x'.join(map(str, extents))} voxels, and a 3D "
            "model needs at least 2 along each axis; check the scan and its spacing."
        )
