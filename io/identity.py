"""Which studies are one scan under several names, as links give them."""

from collections.abc import Hashable
from pathlib import Path

from .files.own_files import identity
from .search import suffix_of
from .volume import Study


def source_of(study: Study) -> Hashable:
    """Equal for studies of the same files, on the disk, whose results hold the same.

    A study with a file that cannot be looked at is like no other.
    """
    try:
        states = [file.stat() for file in study.files]
    except OSError:
        return study.name
    places = tuple(map(identity, states))
    suffixes = suffix_of(study.files[0]), suffix_of(Path(study.name))
    return study.format, suffixes, places, tuple(map(_content, study.channels))


def _content(study: Study) -> Hashable:
    """What of a DICOM series makes its results; None of other studies."""
    if study.format != "dicom":
        return None
    from .dicom.series import Series

    return study.series.content if isinstance(study.series, Series) else None
