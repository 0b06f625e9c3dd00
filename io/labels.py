"""Results, segmentations and other files that are not scans, by their headers."""

import zlib
from dataclasses import dataclass
from pathlib import Path

from .dicom.header_scan import KnownHeaders
from .files.regular import open_regular
from .formats.marks import mark_in_texts
from .formats.registry import FORMATS
from .volume import SyntheticMark


@dataclass(frozen=True, slots=True)
class FileLabels:
    """Statements in the header of a scan file.

    mark: of a result; None for a real scan. contents: what the voxels are, such as "segments"; None
    if they may be those of a scan.
    """

    mark: SyntheticMark | None = None
    contents: str | None = None


def read_labels(file: Path) -> FileLabels:
    """Return the labels in a header; none of a file that cannot be read, or is of another format.

    file: with the header. Images of DICOM have theirs in a `Series`.
    """
    try:
        with open_regular(file) as opened:
            for each in FORMATS:
                opened.seek(0)
                if (labels := each.labels(opened)) is not None:
                    return FileLabels(mark_in_texts(labels.texts), labels.contents)
    except (OSError, zlib.error):
        pass
    return FileLabels()


def labels_of(file: Path, known: KnownHeaders | None = None) -> FileLabels:
    """Return `read_labels` of a file, or its earlier result if the file is unchanged."""
    return known.once(file, read_labels) if known else read_labels(file)
