"""Scan files and studies for the tests of io."""

import gzip
import os
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel
import numpy as np

from cuda_cyclegan.io.formats.nifti import NIFTI
from cuda_cyclegan.io.formats.registry import format_at
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import AnyArray, Study, Volume

OBLIQUE = np.array(
    [
        [-0.93, 0.21, 0.34, 90.5],
        [0.25, 1.09, 0.13, -126.25],
        [-0.31, 0.18, 1.42, -72.125],
        [0, 0, 0, 1],
    ]
)


def study_of(path: Path, *others: Path) -> Study:
    """The study that discovery would make of `path`, without a search."""
    found = format_at(path) or NIFTI
    return Study(PurePosixPath(path.name), (path, *others, *found.other_files(path)), found.name)


def read_file(path: Path, volume_index: int | None = None) -> Volume:
    return read(study_of(path), volume_index)


def write_later(path: Path, content: bytes) -> None:
    """Replace a file's content, a second after the file was written.

    File systems keep time in steps, and a test may be faster than one.
    """
    later = path.stat().st_mtime_ns + 10**9
    path.write_bytes(content)
    os.utime(path, ns=(later, later))


def unpacked(path: Path) -> bytes:
    """Return what a gzip file holds; ISA-L may pack equal content in more than one way.

    Raises OSError, EOFError or zlib.error where the file is damaged or cut short.
    """
    return gzip.decompress(path.read_bytes())


def ramp(shape: tuple[int, ...] = (3, 4, 5), dtype: Any = np.int16) -> AnyArray:
    """Voxels that all differ, so that a swapped or mirrored axis shows."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def save_nifti(path: Path, voxels: AnyArray | None = None, affine: Any = OBLIQUE) -> Path:
    image: Any = nibabel.Nifti1Image(ramp() if voxels is None else voxels, affine)
    image.to_filename(path)
    return path
