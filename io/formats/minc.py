"""MINC 1, only read, by nibabel. MINC 2 is HDF5, which would need h5py: such a file is refused."""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from nibabel.externals.netcdf import netcdf_file as _netcdf_file
from nibabel.minc1 import Minc1File as _Minc1File

from ..errors import UnreadableScanError, UnsupportedScanError
from ..files.header_limits import check_extents, check_memory, pick_volume
from ..files.regular import open_regular
from ..volume import Affine, AnyArray, Empty, Grid, Study, Volume
from .format import Format
from .geometry import check_position, shear_notes

netcdf_file: Any = _netcdf_file  # these two are not typed
Minc1File: Any = _Minc1File
_HDF5 = b"\x89HDF"
_SPACE = {"xspace", "yspace", "zspace"}


@contextmanager
def _opened(path: Path, *, header_only: bool = False) -> Generator[Any]:
    """Open a file as nibabel's Minc1File. Raises ScanError and OSError.

    header_only: map the voxels into memory instead of reading them.
    """
    with open_regular(path) as file:
        if file.peek(len(_HDF5)).startswith(_HDF5):
            raise UnsupportedScanError(
                f"{path} is a MINC 2 file, and only MINC 1 is read; convert it to .nii with mnc2nii"
                " or to MINC 1 with mincconvert."
            )
        with _damage_named(path):
            found = Minc1File(netcdf_file(file, mmap=header_only))
        _check(path, found)
        yield found


@contextmanager
def _damage_named(path: Path) -> Generator[None]:
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:  # nibabel raises what Python does at a damaged file
        raise UnreadableScanError(
            f"{path} cannot be read as MINC ({error or type(error).__name__}); export it again, or "
            "convert it to .nii with mnc2nii."
        ) from error


def _check(path: Path, found: Any) -> None:
    """Raise ScanError unless a file has three axes of space, perhaps after one of time."""
    names, spatial = tuple(found._dim_names), tuple(found._spatial_dims)
    if set(spatial) != _SPACE or names not in (spatial, ("time", *spatial)):
        raise UnsupportedScanError(
            f"{path} has the axes {', '.join(names)}; give a file with xspace, yspace and zspace, "
            "perhaps after time."
        )


def _geometry(path: Path, found: Any) -> tuple[tuple[int, ...], Affine]:
    """Return the extents, those of space first, and the voxel to RAS+ map."""
    with _damage_named(path):
        *further, i, j, k = map(int, found.get_data_shape())
        affine: Affine = np.asarray(found.get_affine(), np.float64)
    extents = (i, j, k, *further)
    check_extents(path, extents)
    check_position(path, affine, "its axes do")
    return extents, affine


def _read(path: Path, found: Any, picked: range, empty: Empty) -> Iterator[Volume]:
    """Read volumes as float32, slab by slab: each slab may have a scale of its own."""
    extents, affine = _geometry(path, found)
    notes, count = shear_notes(affine), math.prod(extents[3:])
    further = extents[3:] if count > 1 and len(picked) == count else ()
    for index in picked:
        voxels: AnyArray = empty(extents[:3], np.float32)
        with _damage_named(path):
            for slab in range(extents[0]):
                at = (index, slab) if extents[3:] else (slab,)
                voxels[slab] = found.get_scaled_data(at)
        yield Volume(voxels, affine, None, "minc", notes=notes, further=further)
        del voxels


class Minc(Format):
    """One file of MINC 1, whose slices are integers with a range of their own."""

    name = "minc"
    suffixes = (".mnc",)
    has_scale = False

    def read_grid(self, study: Study, volume_index: int | None) -> Grid:
        """Read the grid of all volumes, whose voxels are read as float32. Raises ScanError."""
        del volume_index
        path = study.files[0]
        with _opened(path, header_only=True) as found:
            extents, affine = _geometry(path, found)
        held = path.stat().st_size + 4 * math.prod(extents[:3])
        check_memory(path, held)
        return Grid(extents, affine, shear_notes(affine), np.dtype(np.float32), held)

    def read(self, study: Study, volume_index: int | None, empty: Empty) -> Volume:
        """Read one volume; raises ScanError and OSError."""
        path = study.files[0]
        with _opened(path) as found:
            index = pick_volume(path, _geometry(path, found)[0], volume_index)
            [volume] = _read(path, found, range(index, index + 1), empty)
            return volume

    def read_each(self, study: Study, empty: Empty) -> Iterator[Volume]:
        """Read all volumes, each on demand; raises what `read` raises."""
        path = study.files[0]
        with _opened(path) as found:
            count = math.prod(_geometry(path, found)[0][3:])
            yield from _read(path, found, range(count), empty)


MINC = Minc()
