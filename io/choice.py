"""What a user may choose about the search for studies and about the form of results."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .globs import ALL_PATHS, PathGlobs
from .links import Links

OutputFormat: TypeAlias = Literal["same", "nifti", "nrrd", "mha", "dicom"]

SkipKind: TypeAlias = Literal["", "excluded", "synthetic", "mask", "contrast", "modality"]
"""Rule by which a scan is passed over unless asked for; empty for all else that is skipped."""

FEWEST_SLICES = 8
"""Of a DICOM volume unless the user says otherwise; localizers have fewer in each direction."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Filters of DICOM series, and what becomes of the studies that are found.

    modalities: those taken, in capitals; empty takes all. series: searched for in a series'
    description and label. fewest_slices: of a volume. allow_uneven: whether stacks with gaps,
    uneven spacing or tilt are resampled instead of refused. show_phi: whether a series' own text
    stands in what is told of it. format: of the results. keep_private: whether private elements of
    a DICOM source go into its result. links: which of those below the inputs are followed.
    takes: kinds of scans that are taken although they are passed over otherwise. take_maps: whether
    the maps beside results are. channels: name and pattern of those of a model that are not told by
    suffixes as in BIDS. globs: of which paths.
    """

    modalities: frozenset[str] = frozenset()
    series: "re.Pattern[str] | None" = None
    fewest_slices: int = FEWEST_SLICES
    allow_uneven: bool = False
    show_phi: bool = False
    format: OutputFormat = "same"
    keep_private: bool = False
    links: Links = "inside"
    takes: frozenset[SkipKind] = frozenset()
    take_maps: bool = False
    channels: tuple[tuple[str, str], ...] = ()
    globs: PathGlobs = ALL_PATHS

    def refusal(self, modality: str, description: str, label: str) -> str | None:
        """Why the filters leave a series out; None if they do not."""
        if self.modalities and modality.upper() not in self.modalities:
            return "setting modality leaves it out"
        if self.series and not (self.series.search(description) or self.series.search(label)):
            return "setting series leaves it out"
        return None


EVERYTHING = Choice()
