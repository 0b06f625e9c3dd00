"""A translation back onto its scan's own grid, and the memory that it is made in."""

from dataclasses import dataclass

import numpy as np

from ...engine.cores import beside_each_other
from ...engine.model.card import ModelCard
from ...engine.network.graph import FloatArray
from ...engine.scaling import Stored, is_taken_as_stored
from ...io.volume import Empty, Volume
from .preparation import Prepared, lying_alike
from .voxels.planes import Slab, rows, slabs
from .voxels.statistics import Range, extremes
from .voxels.voxel_type import (
    ENOUGH_STEPS,
    Demand,
    Storage,
    choose_storage,
    has_own_range,
    storage_of,
)


@dataclass(frozen=True, slots=True)
class Canvas:
    """What a translation is made in.

    target: what the network fills, [1, D, H, W]. volume: the result, of which the target is a view;
    None where network intensities are made first, as something is left to be done with them.
    """

    target: Stored
    volume: Volume | None = None


def canvas(prepared: Prepared, card: ModelCard, empty: Empty = np.empty) -> Canvas:
    """An empty one from `empty`: the result's own voxels if nothing but their map is left to do.

    That is not so where the model's grid is not the scan's, where the voxel type depends on what
    the network makes or is not of VOXEL_TYPES, and where network intensities were asked for.
    """
    if not (prepared.in_network or prepared.resampling or has_own_range(card.intensity_out)):
        storage = choose_storage(storage_of(prepared.source), card, _demand(prepared))
        if is_taken_as_stored(storage.dtype):
            volume, target = _blank(prepared, storage, empty)
            return Canvas(target, volume)
    return Canvas(Stored(lying_alike(prepared.given.values[0], empty)[None]))


def finish(prepared: Prepared, made: Canvas, card: ModelCard, empty: Empty = np.empty) -> Volume:
    """What the network has made as a volume on exactly the scan's grid.

    Its voxel type follows `choose_storage`. Raises PrecisionOverflowError if it cannot hold a
    value.
    """
    if made.volume is not None:
        return made.volume
    [network] = made.target.values
    demand = _demand(prepared)
    if has_own_range(card.intensity_out):
        demand = Demand(extremes(network), min(ENOUGH_STEPS, prepared.steps))
    storage = choose_storage(storage_of(prepared.source), card, demand)
    volume, target = _blank(prepared, storage, empty)
    _scatter(network, prepared, target)
    return volume


def _demand(prepared: Prepared) -> Demand:
    return Demand(Range(*prepared.outward.ends))


def _blank(prepared: Prepared, storage: Storage, empty: Empty) -> tuple[Volume, Stored]:
    """A volume of new voxels on the scan's grid, and these as the network sees them."""
    voxels = empty(prepared.source.shape[::-1], storage.dtype).transpose()
    scaling = prepared.outward.of_stored(storage.slope, storage.intercept)
    volume = prepared.source.with_voxels(voxels, storage.slope, storage.intercept)
    return volume, Stored(prepared.orientation.oriented(voxels)[None], scaling)


def _scatter(network: FloatArray, prepared: Prepared, target: Stored) -> None:
    [view] = target.values
    if prepared.resampling is None:

        def fill(slab: Slab) -> None:
            target.scaling.store(network[slab], view[slab])

        beside_each_other(fill, slabs(network))
        return
    back = prepared.resampling.inverse

    def read(start: int, stop: int) -> FloatArray:
        return network[start:stop]

    for start, stop in rows(view.shape):
        target.scaling.store(back.rows(read, start, stop), view[start:stop])
