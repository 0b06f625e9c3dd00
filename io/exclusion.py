"""Scans that are translated only on request: found ones are skipped, named ones rejected."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .choice import SkipKind
from .discovery import Discovery
from .search import Skipped
from .volume import Blocker, Study

_ACCEPTED_BY: dict[SkipKind, str] = {
    "synthetic": "allow-synthetic",
    "mask": "any-contrast",
    "contrast": "any-contrast",
    "modality": "any-contrast",
}
"""Settings."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a scan may not be meant as input. words: description. kind: rule by which it is
    skipped; empty for a mere note.
    """

    words: str
    kind: SkipKind = ""

    @property
    def refusal(self) -> str:
        """The words, and the setting that accepts the scan, if there is one."""
        setting = _ACCEPTED_BY.get(self.kind)
        return f"{self.words}; use setting {setting} to include it" if setting else self.words


Judge: TypeAlias = Callable[[Study], Sequence[Doubt]]


def without_doubtful(found: Discovery, judge: Judge, takes: Collection[SkipKind]) -> Discovery:
    """Return the search result without doubtful scans; named ones stay, with a blocking error.
    takes: kinds that are accepted, with a note.
    """
    studies, skipped = list[Study](), list(found.skipped)
    for study in found.studies:
        doubts = judge(study)
        against = _against(doubts, takes)
        if against and found.named.isdisjoint(study.files):
            skipped.append(Skipped(study.files[0], against[0].refusal, kind=against[0].kind))
        else:
            studies.append(_with_doubts(study, doubts, takes))
    skipped.sort(key=lambda row: row.path)
    return replace(found, studies=tuple(studies), skipped=tuple(skipped))


def judged(study: Study, judge: Judge, takes: Collection[SkipKind]) -> Study:
    """Return a named study, with a blocking error if it is doubtful. takes: as in
    `without_doubtful`.
    """
    return _with_doubts(study, judge(study), takes)


def _against(doubts: Sequence[Doubt], takes: Collection[SkipKind]) -> list[Doubt]:
    return [doubt for doubt in doubts if doubt.kind and doubt.kind not in takes]


def _with_doubts(study: Study, doubts: Sequence[Doubt], takes: Collection[SkipKind]) -> Study:
    if against := _against(doubts, takes):
        return replace(study, blocker=Blocker("unsupported", against[0].refusal))
    notes = [doubt.words + (_AS_REQUESTED if doubt.kind else "") for doubt in doubts]
    return replace(study, notes=(*study.notes, *notes)) if notes else study


_AS_REQUESTED = "; it is included as requested"
