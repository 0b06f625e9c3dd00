"""Results, masks, segmentations and other files that are not scans, by their names and headers."""

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .dicom.header_scan import KnownHeaders
from .files.regular import open_regular
from .formats.marks import mark_in_texts
from .formats.registry import FORMATS, scan_stem
from .volume import SyntheticMark

_WORDS = {
    *("mask", "masks", "brainmask", "brainmasks", "seg", "segs", "dseg", "probseg", "aseg"),
    *("segmentation", "segmentations", "label", "labels", "labelmap", "labelmaps"),
}
"""Last words of a name, apart from numbers, that mark it as a mask."""


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


def mask_reason(file: Path, known: KnownHeaders | None = None) -> str | None:
    """Return why a file counts as a mask or the like, in words; None if it does not.

    file: with the header. known: files that were read before.
    """
    if (word := _last_word(file)) in _WORDS:
        return f"its name contains '{word}'"
    contents = labels_of(file, known).contents
    return f"its header declares its voxels as {contents}" if contents else None


def takes_masks(words: Iterable[str]) -> bool:
    """Return whether a model's channels, in words, are masks or segmentations."""
    return any(word in _WORDS for text in words for word in re.split(r"[^a-z0-9]+", text.lower()))


def _last_word(file: Path) -> str:
    words = re.split(r"[^a-z0-9]+", scan_stem(file).lower())
    return next((word for word in reversed(words) if word and not word.isdecimal()), "")
