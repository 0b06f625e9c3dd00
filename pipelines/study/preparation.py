"""A scan as a model takes it: in its axes and spacing, with the map to its intensities."""

from dataclasses import dataclass

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.model.card import ModelCard
from ...engine.network.graph import FloatArray, Triple
from ...engine.scaling import Scaling, Stored, is_taken_as_stored
from ...io.volume import AnyArray, Empty, Volume
from ..errors import PreparationError
from .voxels.intensity import fit
from .voxels.orientation import Orientation, memory_order, orientation
from .voxels.planes import Slab, rows, slabs
from .voxels.resampling import Resampling, resampling
from .voxels.statistics import study_range


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scan as the network takes it, and what leads back.

    given: [1, D, H, W], the scan's own voxels seen along the model's axes where they can be taken
    as they are stored; otherwise network intensities. source: the scan without the memory of its
    voxels. outward: from the scan's values to network intensities, for the contrast that comes out.
    steps: how many steps of its voxel type the scan's own values span. in_network: whether network
    intensities were asked for.
    """

    given: Stored
    source: Volume
    orientation: Orientation
    resampling: Resampling | None
    outward: Scaling
    steps: float
    in_network: bool

    @property
    def extents(self) -> Triple:
        """Of the model's grid."""
        _, depth, height, width = self.given.values.shape
        return depth, height, width


def prepare(
    volume: Volume, card: ModelCard, empty: Empty = np.empty, *, in_network: bool = False
) -> Prepared:
    """Orient, measure, and where need be map and resample a scan as a model's card demands.

    in_network: have network intensities on the host even where they need not be. Before resampling
    the intensity map comes first, so its clipping keeps metal from smearing over its neighbours.
    Memory beside the volume: nothing where its voxels are taken as they are stored; else the
    array from `empty`, 4 bytes a voxel of the model's grid, and a few slabs.

    Raises PreparationError if the scan is empty, constant, flat or not finite, if its affine is
    unusable, or if the model takes more than one channel.
    """
    if len(card.input_channels) != 1 or len(card.output_channels) != 1:
        raise PreparationError(
            f"The model takes {len(card.input_channels)} channels and makes "
            f"{len(card.output_channels)}, but a scan has one; use a model of one channel."
        )
    turned = orientation(volume.affine, card.axes)
    measured = study_range(volume)
    scaling = outward = fit(card.intensity_in, volume, measured)
    if card.intensity_out != card.intensity_in:
        outward = fit(card.intensity_out, volume, measured)
    view = turned.oriented(volume.voxels)
    resample = resampling(view.shape, turned.sorted_spacing(volume.spacing), card.spacing)
    _check_grid(view.shape if resample is None else resample.target)
    given = Stored(view[None], scaling.of_stored(volume.slope, volume.intercept))
    if resample is not None:
        given = _resampled(given, resample, empty)
    elif not stays_as_stored(volume, resample, in_network=in_network):
        given = _mapped(given, empty)
    return Prepared(
        given=given,
        source=_without_voxels(volume),
        orientation=turned,
        resampling=resample,
        outward=outward,
        steps=(measured.high - measured.low) / abs(volume.slope),
        in_network=in_network,
    )


def stays_as_stored(volume: Volume, resample: Resampling | None, *, in_network: bool) -> bool:
    """Whether a scan's own voxels are what the network is given."""
    return resample is None and not in_network and is_taken_as_stored(volume.voxels.dtype)


def lying_alike(view: AnyArray, empty: Empty) -> FloatArray:
    """New memory of the shape of a 3D array, its axes in the same order there."""
    order = memory_order(view)
    extents = tuple(view.shape[axis] for axis in order)
    return empty(extents, np.float32).transpose(np.argsort(order))


def _mapped(given: Stored, empty: Empty) -> Stored:
    [view] = given.values
    array = lying_alike(view, empty)

    def fill(slab: Slab) -> None:
        given.scaling.forward(view[slab], array[slab])

    beside_each_other(fill, slabs(view))
    return Stored(array[None])


def _resampled(given: Stored, resample: Resampling, empty: Empty) -> Stored:
    [view] = given.values

    def read(start: int, stop: int) -> FloatArray:
        return given.scaling.forward(view[start:stop])

    array = empty(resample.target, np.float32)
    for start, stop in rows(resample.target):
        array[start:stop] = resample.rows(read, start, stop)
    return Stored(array[None])


def _check_grid(extents: Triple) -> None:
    if min(extents) < 2:
        raise PreparationError(
            f"On the model's grid the scan has {'x'.join(map(str, extents))} voxels, and a 3D "
            "model needs at least 2 along each axis; check the scan and its spacing."
        )


def _without_voxels(volume: Volume) -> Volume:
    blank = np.zeros((), volume.voxels.dtype)
    return volume.with_voxels(np.broadcast_to(blank, volume.shape), volume.slope, volume.intercept)
