"""Windows that a reader chooses by name, and the unit of an image's values."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...io.contrast.texts import modality_named
from ...io.labels import read_labels
from ...io.volume import Study, Volume
from ..hounsfield import AIR_HU

_CT = {
    "Brain": (40.0, 80.0),
    "Bone": (500.0, 2000.0),
    "Lung": (-600.0, 1500.0),
    "Soft tissue": (40.0, 400.0),
    "Liver": (30.0, 150.0),
}
"""Level and width in HU."""

_PERCENTILES = ((0.5, 99.5), (2.0, 98.0), (5.0, 95.0), (0.0, 100.0))
_SAMPLED = 1 << 18
"""Most voxels from which percentiles are measured: every n-th along each axis."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Window with a name.

    name: as shown. low, high: its ends, in the unit of the image.
    """

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of an image.

    unit: of its values; "" if unknown. presets: windows with a name.
    """

    unit: str
    presets: tuple[Preset, ...]


def modality_of(study: Study) -> str:
    """Return CT, MR or PT: what DICOM says, a result's mark, or the name of a scan; else ""."""
    if study.modality:
        return study.modality
    mark = read_labels(study.files[0]).mark
    words = mark.target if mark else study.files[0].name
    return modality_named(words, "", "")


def windows_of(volume: Volume, modality: str) -> Windows:
    """Return the presets of CT for an image in HU, and percentiles for any other.

    A CT is in HU if it contains air.
    """
    values = _sample(volume)
    if modality == "CT" and values.size and values.min() <= AIR_HU:
        named = _CT.items()
        return Windows("HU", tuple(Preset(n, at - w / 2, at + w / 2) for n, (at, w) in named))
    return Windows("", tuple(_percentiles(values)))


def _percentiles(values: npt.NDArray[np.float64]) -> list[Preset]:
    if not values.size:
        return []
    found = [(ends, *map(float, np.percentile(values, ends))) for ends in _PERCENTILES]
    return [
        Preset(f"{first:g} to {last:g} %", low, high)
        for (first, last), low, high in found
        if low < high
    ]


def _sample(volume: Volume) -> npt.NDArray[np.float64]:
    """Return the finite values of evenly spaced voxels."""
    step = max(1, round((volume.voxels.size / _SAMPLED) ** (1 / 3)))
    stored = volume.voxels[::step, ::step, ::step]
    values = stored * np.float64(volume.slope) + volume.intercept
    return values[np.isfinite(values)]
