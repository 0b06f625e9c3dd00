"""All formats of scans, and which of them a name belongs to."""

from pathlib import Path, PurePath

from .afni import AFNI
from .dicom import DICOM
from .format import Format
from .minc import MINC
from .nifti import NIFTI
from .nrrd_metaimage import METAIMAGE, NRRD

FORMATS: tuple[Format, ...] = (NIFTI, NRRD, METAIMAGE, AFNI, MINC, DICOM)

SUFFIXES: dict[str, str] = {suffix: each.name for each in FORMATS for suffix in each.suffixes}
"""Name of the format by the suffix of a file that is opened first."""
VOXEL_SUFFIXES: dict[str, Format] = {
    suffix: each for each in FORMATS for suffix in each.voxel_suffixes
}
RESULT_SUFFIXES: tuple[str, ...] = tuple(
    suffix for each in FORMATS for suffix in each.result_suffixes
)
"""Suffixes of files that can hold the result of any scan."""
_BY_NAME = {each.name: each for each in FORMATS}


def format_named(name: str) -> Format:
    """Return the format of a study or volume by its name."""
    return _BY_NAME[name]


def format_at(path: PurePath) -> Format | None:
    """Return the format that a file has by its suffix, or None."""
    name = SUFFIXES.get(suffix_of(path))
    return None if name is None else _BY_NAME[name]


def result_format(source: str, target: PurePath) -> Format:
    """Return the format of a result at `target`; source: format of its scan."""
    return format_at(target) or _BY_NAME[source]


def suffix_of(path: PurePath) -> str:
    """Return the last suffix in small letters, with the one before it if the file is gzip."""
    last = path.suffix.lower()
    return PurePath(path.stem).suffix.lower() + last if last == ".gz" else last


def scan_stem(path: PurePath) -> str:
    """Return the name without the suffix of a file of scans; that of a series has none."""
    suffix = suffix_of(path)
    return path.name[: len(path.name) - len(suffix)] if suffix in SUFFIXES else path.name


def header_of(file: Path) -> Path:
    """Return the header that describes a file of voxels, or the file itself."""
    found = VOXEL_SUFFIXES.get(suffix_of(file))
    return found.header_beside(file) if found else file
