"""Scan files and studies for the tests of io."""

import gzip
import os
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel
import numpy as np

from cuda_cyclegan.io.errors import ScanError
from cuda_cyclegan.io.formats.nifti_header import image_beside
from cuda_cyclegan.io.formats.nrrd_metaimage import read_text_header
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import AnyArray, Study, Volume

FORMATS: dict[str, str] = {
    ".nrrd": "nrrd",
    ".nhdr": "nrrd",
    ".mha": "metaimage",
    ".mhd": "metaimage",
}
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
    name = path.name.lower()
    if name.endswith((".hdr", ".hdr.gz")):
        others = (image_beside(path),)
    kind = FORMATS.get(path.suffix.lower(), "nifti")
    if kind != "nifti" and path.is_file():
        with suppress(ScanError, OSError):
            others += tuple(file for file in read_text_header(path).data_files if file != path)
    return Study(PurePosixPath(path.name), (path, *others), kind)


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
    """What a gzip file holds; ISA-L may pack equal content in more than one way.

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
