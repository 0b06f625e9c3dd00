"""Images as a page shows them: planes through the patient, all on the grid of one study."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...io.errors import ScanError
from ...io.files.machine_limits import physical_memory
from ...io.reading import read
from ...io.volume import Affine, AnyArray, Volume
from ..errors import PipelineError
from ..study.geometry import mid_slices, orientation
from ..study.preview import inner_range
from ..study.statistics import Range
from .studies import ImageFile, Role, ViewedStudy
from .windows import modality_of, windows_of

Plane: TypeAlias = Literal["axial", "coronal", "sagittal"]
PLANES: tuple[Plane, ...] = ("axial", "coronal", "sagittal")
"""Directions of the planes; the normal of each is the axis from feet to head, back to front, and
left to right."""

_NORMAL: dict[Plane, int] = {"axial": 2, "coronal": 1, "sagittal": 0}
SENT_TYPES = ("int8", "uint8", "int16", "uint16", "int32", "float32")
"""Types that values of a plane may have, in the order by which a page knows them."""

_INNER = 99.5
"""Percentile of differences that counts as the largest."""

_SHARE_OF_MEMORY, _LEAST_KEPT = 4, 2 << 30
"""Part of the memory in which images stay, and bytes at least."""


@dataclass(frozen=True, slots=True)
class PlaneValues:
    """Values of a plane, [row, column], the first row on top, the patient's right on the left.

    A value is ``stored * slope + intercept``; NaN lies outside the image.
    """

    stored: AnyArray
    slope: float
    intercept: float

    def values(self) -> npt.NDArray[np.float64]:
        """Return the values."""
        return self.stored * np.float64(self.slope) + self.intercept


class ViewedImage:
    """Volume seen along the patient's axes: x towards the left, y to the back, z to the feet.

    shape, spacing: along x, y and z. window: range of its middle planes without outliers. windows:
    others by name.
    """

    def __init__(self, volume: Volume, modality: str = "") -> None:
        """Raises PreparationError for an unusable affine. modality: CT, or another or none."""
        self._volume = volume
        self._turned = orientation(volume.affine, "LPI")
        self._seen = self._turned.oriented(volume.voxels)
        self.shape: tuple[int, ...] = self._seen.shape
        self.spacing = self._turned.sorted_spacing(volume.spacing)
        self.window = _window(volume)
        self.windows = windows_of(volume, modality)

    @property
    def nbytes(self) -> int:
        """Memory of the voxels."""
        return self._volume.voxels.nbytes

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how the volume was read."""
        return self._volume.notes

    def plane(self, plane: Plane, index: int, grid: "ViewedImage") -> PlaneValues:
        """Return a plane of the grid of another image; voxels of this one are taken as they lie.

        Raises IndexError for a plane outside of the grid.
        """
        normal = _NORMAL[plane]
        if not 0 <= index < grid.shape[normal]:
            raise IndexError(index)
        if not self.is_on_grid_of(grid):
            return PlaneValues(self._nearest(normal, index, grid), 1.0, 0.0)
        stored = self._seen[tuple(index if axis == normal else slice(None) for axis in range(3))]
        if stored.dtype.name in SENT_TYPES:
            return PlaneValues(
                np.ascontiguousarray(stored.T), self._volume.slope, self._volume.intercept
            )
        values = stored.T * np.float64(self._volume.slope) + self._volume.intercept
        return PlaneValues(np.ascontiguousarray(values, np.float32), 1.0, 0.0)

    def is_on_grid_of(self, other: "ViewedImage") -> bool:
        """Return whether both have the same voxels in space."""
        return self.shape == other.shape and np.allclose(
            self.to_space, other.to_space, rtol=1e-4, atol=1e-2
        )

    @property
    def to_space(self) -> Affine:
        """Affine of indices x, y, z to millimetres."""
        turn, volume = self._turned, self._volume
        steps = np.zeros((4, 4))
        steps[3, 3] = 1
        for axis, (of_volume, flips) in enumerate(zip(turn.order, turn.flips, strict=True)):
            steps[of_volume, axis] = -1 if flips else 1
            steps[of_volume, 3] = volume.shape[of_volume] - 1 if flips else 0
        return volume.affine @ steps

    def _nearest(self, normal: int, index: int, grid: "ViewedImage") -> npt.NDArray[np.float32]:
        """Return the nearest voxels to a plane of another grid; NaN outside."""
        across, down = (axis for axis in range(3) if axis != normal)
        places = np.zeros((4, grid.shape[down], grid.shape[across]))
        places[across] = np.arange(grid.shape[across])
        places[down] = np.arange(grid.shape[down])[:, None]
        places[normal], places[3] = index, 1
        steps = np.linalg.inv(self.to_space) @ grid.to_space
        own = np.rint(np.einsum("ab,bij->aij", steps[:3], places)).astype(np.int64)
        extents = np.array(self.shape)[:, None, None]
        inside = ((own >= 0) & (own < extents)).all(axis=0)
        x, y, z = np.where(inside, own, 0)
        values = self._seen[x, y, z] * np.float32(self._volume.slope) + self._volume.intercept
        return np.where(inside, values, np.nan).astype(np.float32)


def _window(volume: Volume) -> Range:
    planes = [plane.values[np.isfinite(plane.values)] for plane in mid_slices(volume)]
    return inner_range([plane for plane in planes if plane.size] or [np.zeros(1)])


@dataclass(frozen=True, slots=True)
class StudyImages:
    """Images of a study that could be read.

    grid: the image whose grid all share. images: by role. faults: why others are missing, by role.
    """

    grid: ViewedImage | None
    images: Mapping[Role, ViewedImage]
    faults: Mapping[Role, str]

    def largest_difference(self, first: Role, second: Role) -> float | None:
        """Return the largest difference of two images in the middle planes, without outliers.

        None if one of them is missing.
        """
        if self.grid is None or first not in self.images or second not in self.images:
            return None
        changes: list[npt.NDArray[np.float64]] = []
        for plane in PLANES:
            middle = self.grid.shape[_NORMAL[plane]] // 2
            one, other = (
                self.images[role].plane(plane, middle, self.grid).values()
                for role in (first, second)
            )
            changes.append(np.abs(other - one))
        every = np.concatenate([change[np.isfinite(change)] for change in changes])
        return float(np.percentile(every, _INNER)) if every.size else None


class ImageStore:
    """Images of the studies that were looked at last, as many as a part of the memory holds."""

    def __init__(self, studies: tuple[ViewedStudy, ...]) -> None:
        self._studies = studies
        self._kept: OrderedDict[tuple[int, Role], ViewedImage | str] = OrderedDict()
        self._guards: dict[tuple[int, Role], threading.Lock] = {}
        self._guard = threading.Lock()
        self._most = max((physical_memory() or 0) // _SHARE_OF_MEMORY, _LEAST_KEPT)

    def study(self, number: int) -> StudyImages:
        """Return the images of a study, read on demand, several at a time.

        Images that could not be read are read again: their files may be repaired by now.
        """
        with self._guard:
            for role in self._studies[number].images:
                if isinstance(self._kept.get((number, role)), str):
                    del self._kept[number, role]
        return self._study(number)

    def _study(self, number: int) -> StudyImages:
        """Return the images of a study. Faults stay as they were, as does the grid."""
        for thread in self._start_reading(number):
            thread.join()
        images, faults = dict[Role, ViewedImage](), dict[Role, str]()
        for role in self._studies[number].images:
            found = self._image(number, role)
            if isinstance(found, ViewedImage):
                images[role] = found
            else:
                faults[role] = found
        grid = images.get("result") or images.get("input") or next(iter(images.values()), None)
        return StudyImages(grid, images, faults)

    def read_ahead(self, number: int) -> None:
        """Start to read the study that will be looked at next, if it fits beside the current one.

        It is assumed to be as large as that.
        """
        with self._guard:
            kept = list(self._kept.items())
        current = kept[-1][0][0] if kept else number
        size = sum(_nbytes(image) for (study, _), image in kept if study == current)
        if 2 * size <= self._most:
            self._start_reading(number)

    def _start_reading(self, number: int) -> list[threading.Thread]:
        """Start a thread for each image of a study that is not kept; it ends with the program."""
        threads = [
            threading.Thread(target=self._image, args=(number, role), daemon=True)
            for role in self._studies[number].images
            if (number, role) not in self._kept
        ]
        for thread in threads:
            thread.start()
        return threads

    def plane(self, number: int, role: Role, plane: Plane, index: int) -> PlaneValues:
        """Return a plane of an image on its study's grid. Raises LookupError if there is none."""
        study = self._study(number)
        if study.grid is None:
            raise KeyError(role)
        return study.images[role].plane(plane, index, study.grid)

    def _image(self, number: int, role: Role) -> ViewedImage | str:
        """Return an image, or why it cannot be shown; one thread reads, the others wait."""
        key = number, role
        with self._guard:
            guard = self._guards.setdefault(key, threading.Lock())
        with guard:
            with self._guard:
                if key in self._kept:
                    self._kept.move_to_end(key)
                    return self._kept[key]
            image = _read(self._studies[number].images[role])
            with self._guard:
                self._kept[key] = image
                self._drop(number)
            return image

    def _drop(self, number: int) -> None:
        """Drop the images not looked at for longest, but none of this study."""
        held = sum(map(_nbytes, self._kept.values()))
        for key, image in list(self._kept.items()):
            if held <= self._most:
                return
            if isinstance(image, ViewedImage) and key[0] != number:
                del self._kept[key]
                held -= image.nbytes


def _nbytes(image: ViewedImage | str) -> int:
    return image.nbytes if isinstance(image, ViewedImage) else 0


def _read(scan: ImageFile) -> ViewedImage | str:
    try:
        study = scan.study()
        volume = read(study, None if study.is_dicom else 0)
        return ViewedImage(volume, modality_of(study))
    except (ScanError, PipelineError, OSError) as error:
        return str(error)
