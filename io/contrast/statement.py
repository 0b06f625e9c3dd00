"""Statement about the kind of an image, by its name, a sidecar or a header."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

from .words import ScanKind

NoScan: TypeAlias = Literal["", "mask", "synthetic", "derived"]
"""Kind of image that is no scan; empty for scans."""


class Weight(IntEnum):
    """Weight of evidence: of the folder, of free words, and of BIDS suffixes or DICOM elements."""

    FOLDER = 0
    WORDS = 1
    STANDARD = 2


@dataclass(frozen=True, slots=True)
class Statement:
    """Statement about the kind of an image.

    kinds: stated kinds; a name such as T1_T2 states two. by: source of the statement, in words.
    text: the words that state it, as they may be shown. weight: weight of the evidence. mark: if it
    is no scan. is_open: whether it is one of the kinds, or none of them. is_coarse: whether only a
    modality is stated, which others may refine. is_of_field: whether `text` is the field of a
    header or sidecar that states it, whose own text may name a patient.
    """

    kinds: frozenset[ScanKind]
    by: str
    text: str
    weight: Weight = Weight.WORDS
    mark: NoScan = ""
    is_open: bool = False
    is_coarse: bool = False
    is_of_field: bool = False

    @property
    def in_words(self) -> str:
        """Kinds, in words for the user."""
        return (" or " if self.is_open else " and ").join(sorted(self.kinds))
