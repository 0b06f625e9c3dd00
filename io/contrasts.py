"""What words say of a scan's contrast: those of a model card, of a file's name and the JSON beside
it, and DICOM's own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from .search import suffix_of
from .sidecars import read_sidecar
from .volume import Study

_WORDS = {
    ("CT", "CT"): "ct cta cbct cect ldct ncct sct",
    ("MR", ""): "mr mri smr",
    ("MR", "T1"): "t1 t1c t1ce t1gd t1w mprage",
    ("MR", "T2"): "t2 t2w",
    ("MR", "FLAIR"): "flair",
    ("MR", "PD"): "pd pdw",
    ("MR", "diffusion"): "adc dti dwi",
    ("MR", "SWI"): "swi",
    ("PT", "PET"): "fdg pet pt",
}
"""By DICOM's modality and a contrast of it: words that mean it, and nothing else."""

_MEANINGS = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}


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
        words = re.split(r"[^a-z0-9]+", text.lower())
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


def told_beside(study: Study) -> Iterator[tuple[str, Contrasts]]:
    """By whom, in words, and what: the modality in a sidecar as BIDS and dcm2niix have it, and the
    last word of the name, as in sub-01_T1w.nii.gz. Neither is part of the scan, and may be wrong.
    """
    file = study.files[0]
    stem = file.name.removesuffix(file.name[-len(suffix_of(file)) :])
    beside = file.with_name(f"{stem}.json")
    modality = _modality_in(beside)
    yield f"{beside.name} says {modality}", Contrasts.named_in(modality)
    word = stem.rpartition("_")[2]
    yield f"its name says {word}", Contrasts.named_in(word)


def _modality_in(sidecar: Path) -> str:
    """Its Modality; nothing if it has none."""
    modality = read_sidecar(sidecar).get("Modality")
    return modality if isinstance(modality, str) and modality.isalpha() else ""
