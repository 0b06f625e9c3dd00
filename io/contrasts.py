"""What words say of a scan's contrast: those of a model card, of a file's name and the JSON beside
it, and DICOM's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from .search import scan_stem
from .sidecars import read_sidecar, sidecar_of
from .volume import Study

_WORDS = {
    ("CT", "CT"): "ct cta cbct cect ldct ncct sct",
    ("MR", ""): "mr mri smr",
    ("MR", "T1"): "t1 t1c t1ce t1gd t1n t1w inplanet1 mprage unit1",
    ("MR", "T2"): "t2 t2w inplanet2",
    ("MR", "T2*"): "t2star t2starw",
    ("MR", "FLAIR"): "flair t2f tirm",
    ("MR", "PD"): "pd pdw",
    ("MR", "diffusion"): "adc dti dwi",
    ("MR", "functional"): "bold sbref",
    ("MR", "perfusion"): "asl m0scan",
    ("MR", "quantitative"): "t1map t2map t2starmap",
    ("MR", "angiography"): "angio",
    ("MR", "field map"): "fieldmap phasediff",
    ("MR", "SWI"): "swi",
    ("PT", "PET"): "fdg pet pt",
}
"""By DICOM's modality and a contrast of it: words that mean it, and nothing else."""

_MEANINGS = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}

_OF_OTHER_THINGS = {"pd", "pt"}
"""Words that in a name may well be Parkinson's disease or a patient."""

_DARK_FLUID = re.compile(r"dark[^a-z0-9]?fluid|da[^a-z0-9]fl(?![a-z0-9])", re.IGNORECASE)
"""FLAIR in the names of Siemens' protocols, which call it a T2."""


@dataclass(frozen=True, slots=True)
class Contrasts:
    """What some words name.

    modalities: in DICOM's terms; none if no word is known. weightings: contrasts of these; none if
    the words leave that open.
    """

    modalities: frozenset[str] = field(default_factory=frozenset[str])
    weightings: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def named_in(cls, text: str) -> Self:
        """What a text names; words that are not known say nothing."""
        words = re.split(r"[^a-z0-9]+", _DARK_FLUID.sub(" flair ", text).lower())
        found = [_MEANINGS[word] for word in words if word in _MEANINGS]
        return cls(
            frozenset(modality for modality, _ in found),
            frozenset(weighting for _, weighting in found if weighting),
        )

    @property
    def modality(self) -> str | None:
        """CT, MR or PT; None if the words name none of these, or several."""
        return next(iter(self.modalities)) if len(self.modalities) == 1 else None

    def contradicts(self, other: Self) -> bool:
        """Whether both name something, and nothing that could be the same."""
        if self.modalities and other.modalities and not self.modalities & other.modalities:
            return True
        return bool(self.weightings and other.weightings) and not (
            self.weightings & other.weightings
        )

    def is_met_by(self, other: Self) -> bool:
        """Whether the other names what this does, as T1 is named where MR is asked for."""
        has_weighting = not self.weightings or bool(self.weightings & other.weightings)
        return bool(self.modalities & other.modalities) and has_weighting


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a scan by something that is no part of it, and may be wrong.

    by: what says so, and what, in words. contrasts: all that it names. against: those by which it
    may be of another contrast than a model takes.
    """

    by: str
    contrasts: Contrasts
    against: Contrasts


def told_beside(study: Study) -> Iterator[Told]:
    """What the JSON beside a file says, as BIDS and dcm2niix have it, and what its name says."""
    file = study.files[0]
    sidecar = read_sidecar(sidecar_of(file))
    for key in ("Modality", "SeriesDescription"):
        text = sidecar.get(key)
        named = Contrasts.named_in(text if isinstance(text, str) else "")
        words = sorted(named.weightings or named.modalities)
        # The text itself may name a patient.
        yield Told(f"the JSON beside it says {', '.join(words)}", named, named)
    yield _told_by_name(scan_stem(file))


def _told_by_name(stem: str) -> Told:
    """The last word that names a contrast speaks against a scan, as BIDS has it as a suffix; that
    another one fits speaks for it. What is joined by one hyphen, as in space-T2w, says neither.
    """
    parts = _DARK_FLUID.sub("FLAIR", stem).split("_")
    if len(parts) > 1:
        parts = [part for part in parts if part.count("-") != 1]
    words = re.findall(r"[A-Za-z0-9]+", " ".join(parts))
    sure = [word for word in words if word.lower() in _MEANINGS.keys() - _OF_OTHER_THINGS]
    last = sure[-1] if sure else ""
    return Told(
        f"its name says {last}", Contrasts.named_in(" ".join(words)), Contrasts.named_in(last)
    )
