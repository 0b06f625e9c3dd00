"""A scan as a model takes it: in its axes and spacing, with the map to its intensities."""

from dataclasses import dataclass

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.model.card import ModelCard
from ...engine.network.layers import FloatArray
from ...engine.scaling import Scaling, Stored
from ...io.volume import AnyArray, Empty, Volume
from .plan import StudyPlan
from .voxels.intensity import fit
from .voxels.orientation import memory_order
from .voxels.planes import Slab, rows, slabs
from .voxels.resampling import Resampling
from .voxels.statistics import study_range


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scan as the network takes it, and what leads back.

    given: [1, D, H, W], the scan's own voxels seen along the model's axes where they can be taken
    as they are stored; otherwise network intensities. source: the scan without the memory of its
    voxels. outward: from the scan's values to network intensities, for the contrast that comes out.
    steps: how many steps of its voxel type the scan's own values span. plan: by which it was
    prepared.
    """

    plan: StudyPlan
    given: Stored
    source: Volume
    outward: Scaling
    steps: float


def prepare(volume: Volume, plan: StudyPlan, card: ModelCard, empty: Empty = np.empty) -> Prepared:
    """Measure, and where need be map and resample a scan as its plan and a model's card demand.

    Before resampling the intensity map comes first, so its clipping keeps metal from smearing over
    its neighbours. Memory beside the volume: nothing where its voxels are taken as they are stored;
    else the array from `empty`, 4 bytes a voxel of the model's grid, and a few slabs.

    Raises PreparationError if the scan is constant, flat or not finite.
    """
    measured = study_range(volume)
    scaling = outward = fit(card.intensity_in, volume, measured, card.input_range)
    if not card.maps_alike:
        outward = fit(card.intensity_out, volume, measured, card.output_range)
    view = plan.orientation.oriented(volume.voxels)
    given = Stored(view[None], scaling.of_stored(volume.slope, volume.intercept))
    if plan.resampling is not None:
        given = _resampled(given, plan.resampling, empty)
    elif not plan.is_given_as_stored:
        given = _mapped(given, empty)
    return Prepared(
        plan=plan,
        given=given,
        source=_without_voxels(volume),
        outward=outward,
        steps=(measured.high - measured.low) / abs(volume.slope),
    )


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


def _without_voxels(volume: Volume) -> Volume:
    blank = np.zeros((), volume.voxels.dtype)
    return volume.with_voxels(np.broadcast_to(blank, volume.shape), volume.slope, volume.intercept)
