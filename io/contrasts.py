"""Contrasts named by words in model cards, file names, JSON sidecars and DICOM."""

import re
from dataclasses import dataclass, field
from typing import Self

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
"""Words that mean one contrast and nothing else, by DICOM's modality and the contrast."""

MEANINGS = {word: meaning for meaning, words in _WORDS.items() for word in words.split()}

DARK_FLUID = re.compile(r"dark[^a-z0-9]?fluid|da[^a-z0-9]fl(?![a-z0-9])", re.IGNORECASE)
"""FLAIR in the names of Siemens' protocols, which call it a T2."""


@dataclass(frozen=True, slots=True)
class Contrasts:
    """Modalities and weightings that some words name.

    modalities: in DICOM's terms; none if no word is recognised. weightings: contrasts of these;
    none if the words leave that open.
    """

    modalities: frozenset[str] = field(default_factory=frozenset[str])
    weightings: frozenset[str] = field(default_factory=frozenset[str])

    @classmethod
    def named_in(cls, text: str) -> Self:
        """Return what a text names; unknown words are ignored."""
        words = re.split(r"[^a-z0-9]+", DARK_FLUID.sub(" flair ", text).lower())
        found = [MEANINGS[word] for word in words if word in MEANINGS]
        return cls(
            frozenset(modality for modality, _ in found),
            frozenset(weighting for _, weighting in found if weighting),
        )

    @property
    def modality(self) -> str | None:
        """CT, MR or PT; None if the words name none of these, or several."""
        return next(iter(self.modalities)) if len(self.modalities) == 1 else None

    def contradicts(self, other: Self) -> bool:
        """Return whether both name something, and nothing that could be the same."""
        if self.modalities and other.modalities and not self.modalities & other.modalities:
            return True
        return bool(self.weightings and other.weightings) and not (
            self.weightings & other.weightings
        )

    def is_met_by(self, other: Self) -> bool:
        """Return whether the other names at least what this names: T1 meets a request for MR."""
        has_weighting = not self.weightings or bool(self.weightings & other.weightings)
        return bool(self.modalities & other.modalities) and has_weighting
