"""Voxels without a value: what stands for NaN in a scan."""

from dataclasses import replace

import numpy as np

from ....engine.cores import beside_each_other
from ....io.volume import Volume
from .planes import Slab, slabs


def without_nan(volume: Volume, value: float | None) -> Volume:
    """The volume with `value`, in its own unit, for every NaN, and a note of how many there were.

    None changes nothing, and neither is anything else replaced: an infinite value says that
    something overflowed. The voxels are changed in place where they may be written.
    """
    if value is None or volume.voxels.dtype.kind != "f" or not volume.voxels.size:
        return volume
    voxels = volume.voxels if volume.voxels.flags.writeable else volume.voxels.copy(order="K")
    stored = (value - volume.intercept) / volume.slope

    def fill(slab: Slab) -> int:
        missing = np.isnan(voxels[slab])
        found = int(np.count_nonzero(missing))
        if found:
            voxels[slab][missing] = stored
        return found

    found = sum(beside_each_other(fill, slabs(voxels)))
    if not found:
        return volume
    note = f"{found} of {voxels.size} voxels were NaN, and are taken as {value:g}"
    return replace(volume, voxels=voxels, notes=(*volume.notes, note))
