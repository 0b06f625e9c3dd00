"""Volume: voxels, their place in the patient, and the header data its writer must keep."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .maps import MapKind, MapMark

AnyArray: TypeAlias = npt.NDArray[Any]
DoubleArray: TypeAlias = npt.NDArray[np.float64]
Affine: TypeAlias = npt.NDArray[np.float64]
LPS_TO_RAS: Affine = np.diag([-1.0, -1.0, 1.0, 1.0])
Empty: TypeAlias = Callable[[tuple[int, ...], npt.DTypeLike], AnyArray]
"""Allocator of large arrays, such as numpy.empty."""
FARTHEST_PLACE_MM = 1e9
"""Limit of coordinates in a header; squares of larger ones may overflow."""
PROGRAM = "cuda-cyclegan"
NOTICE = "Synthetic image made by a neural network. Not for diagnosis."
"""Notice in every result whose format has a place for text."""


def spacing_of(affine: Affine) -> tuple[float, float, float]:
    """Distance in millimetres between neighbouring voxels along each axis."""
    x, y, z = np.linalg.norm(affine[:3, :3], axis=0)
    return float(x), float(y), float(z)


@dataclass(frozen=True, slots=True)
class Blocker:
    """Blocking error: why a study cannot be translated as requested.

    kind: another study has its place, its result cannot have the format or the model does not take
    it, a part of it cannot be read, or its result cannot be written. reason: in words.
    """

    kind: Literal["occupied", "unsupported", "unreadable", "write"]
    reason: str


@dataclass(frozen=True, slots=True)
class Study:
    """One thing to translate: a scan, or several scans of one patient.

    name: where its result goes below the output folder, mirroring the input tree; unique within a
    request, so that it identifies the study in rows, events and records. files: every file it is
    stored in, the one to open first. series: search result of a DICOM series; opaque to all but its
    reader. notes: remarks for the user on how it is interpreted. blocker: None if it can be
    translated along with the others. text: its own description, if that may be shown. format: of
    its files. modality: as DICOM has it, such as MR; "" if unknown. scans: of several, each as it
    was found by itself, in the order of a model's channels; `files` are those of all, and all else
    is as of the first. channel: of a model, that one of several scans is for. other_results: where
    the results of further channels go, as `name`. listed: the folders of a DICOM series, each with
    the time of its last change before it was searched, in nanoseconds since 1970; none where files
    were named one by one. incomplete: that its files are not the whole scan, in words for its
    result; empty if none is known to be missing. uneven: why it is resampled onto an even grid;
    empty if it is not. mirrored: what `results` would be if they mirrored
    the inputs; none where they do. read_as: the contrast that was read, such as "T1w: BIDS suffix";
    empty if nothing states one.
    """

    name: PurePosixPath
    files: tuple[Path, ...]
    format: str
    series: object = None
    notes: tuple[str, ...] = ()
    blocker: Blocker | None = None
    text: str = ""
    modality: str = ""
    scans: "tuple[Study, ...]" = ()
    channel: str = ""
    other_results: tuple[PurePosixPath, ...] = ()
    listed: tuple[tuple[Path, int], ...] = ()
    incomplete: str = ""
    uneven: str = ""
    mirrored: tuple[PurePosixPath, ...] = ()
    read_as: str = ""

    @property
    def is_dicom(self) -> bool:
        """Whether it is a DICOM series, whose images are many files."""
        return self.format == "dicom"

    @property
    def channels(self) -> "tuple[Study, ...]":
        """Scans of the study, in order; the study itself if it is a single one."""
        return self.scans or (self,)

    @property
    def mirrored_name(self) -> PurePosixPath:
        """Name of the result if it mirrored the inputs."""
        return self.mirrored[0] if self.mirrored else self.name

    @property
    def results(self) -> tuple[PurePosixPath, ...]:
        """Names of the results of all channels."""
        return self.name, *self.other_results


@dataclass(frozen=True, slots=True)
class Derivation:
    """Provenance of a result, for the formats that record it.

    source, target: contrasts in words. fingerprint: equal for equal input bytes, model, words of
    its card, settings and program, and for nothing else. newest_source: modification time of the
    newest source file, in seconds since 1970. shows: kind of a map; None for the result itself.
    channel: which of a study's results, counted from 0. incomplete: as of a `Study`.
    description: text for the result instead of target and model; "" for none.
    """

    model: str
    source: str
    target: str
    program: str
    fingerprint: str
    newest_source: int
    shows: MapMark | None = None
    channel: int = 0
    incomplete: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class SyntheticMark:
    """Statement in the file of a result that it is synthetic, whatever its format.

    model: its name. source, target: contrasts in words; the result is in the target. program:
    version that made it. model_sha256: the first 12 digits of the model file's hash. shows: the
    kind of a map; None for the result itself.
    """

    model: str
    source: str
    target: str
    program: str
    model_sha256: str
    shows: MapKind | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """Place and type of the voxels of a scan, by its header alone.

    extents: along all axes, those of space first. affine: (4, 4), RAS+, millimetres. notes: what of
    it is unverified. voxel_type: of the voxels as they are read. reading_bytes: held at most
    while one of its volumes is read, that included. slope, intercept: as of a volume. is_series:
    whether its volumes are stored in sequence, so that all can be read.
    """

    extents: tuple[int, ...]
    affine: Affine
    notes: tuple[str, ...]
    voxel_type: "np.dtype[Any]"
    reading_bytes: int
    slope: float = 1.0
    intercept: float = 0.0
    is_series: bool = True

    @property
    def volumes(self) -> int:
        """Number of volumes."""
        return prod(self.extents[3:])


@dataclass(frozen=True, slots=True, repr=False)
class Volume:
    """One 3D image in its file's own grid.

    voxels: stored values, indexed [i, j, k] as the affine's columns, in the file's voxel type.
    affine: (4, 4), maps (i, j, k, 1) to millimetres in RAS+ (nibabel's convention).
    slope, intercept: a voxel's value is ``stored * slope + intercept``.
    header: data that the format's writer requires to rewrite the file; opaque to all others.
    keeps_unit: whether its values are in the unit of those that were read, so that a range of them
    that the header gives is still valid. notes: remarks for the user on how it was read. mark:
    of a result, for its file; None for a scan. further: extents of the file's axes after k, if
    it is one of a series of volumes that are all read, and so of a result of as many; none if it
    is read alone.
    """

    voxels: AnyArray
    affine: Affine
    header: object
    format: str
    slope: float = 1.0
    intercept: float = 0.0
    keeps_unit: bool = True
    notes: tuple[str, ...] = ()
    mark: SyntheticMark | None = None
    further: tuple[int, ...] = ()

    def __repr__(self) -> str:
        shape, spacing = "x".join(map(str, self.shape)), "x".join(f"{s:.4g}" for s in self.spacing)
        return f"Volume({shape}, {spacing} mm, {self.voxels.dtype}, {self.format})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Extents along i, j and k."""
        i, j, k = self.voxels.shape
        return i, j, k

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Distance in millimetres between neighbouring voxels along i, j and k."""
        return spacing_of(self.affine)

    def values(self) -> npt.NDArray[np.float32]:
        """Scaled values as a new float32 array, indexed [i, j, k]."""
        values = self.voxels.astype(np.float32)
        if self.slope != 1.0:
            values *= np.float32(self.slope)
        if self.intercept != 0.0:
            values += np.float32(self.intercept)
        return values

    def with_voxels(
        self,
        voxels: AnyArray,
        slope: float = 1.0,
        intercept: float = 0.0,
        *,
        keeps_unit: bool = False,
    ) -> "Volume":
        """Return the same grid and header around other stored values."""
        return replace(self, voxels=voxels, slope=slope, intercept=intercept, keeps_unit=keeps_unit)
