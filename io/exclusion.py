"""Scans that are input only on request: found ones are passed over, named ones refused."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .choice import SkipKind
from .discovery import Discovery
from .search import Skipped
from .volume import Obstacle, Study

_TAKEN_BY: dict[SkipKind, str] = {
    "synthetic": "allow-synthetic",
    "mask": "any-contrast",
    "contrast": "any-contrast",
    "modality": "any-contrast",
}
"""Settings."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a user may not have meant a scan as input.

    words: description. kind: of the rule by which it is no input; empty if that is a note only.
    """

    words: str
    kind: SkipKind = ""

    @property
    def refusal(self) -> str:
        """The words, and the setting that takes the scan, if there is one."""
        setting = _TAKEN_BY.get(self.kind)
        return f"{self.words}; use setting {setting} to include it" if setting else self.words


Judge: TypeAlias = Callable[[Study], Sequence[Doubt]]


def passed_over(found: Discovery, judge: Judge, takes: Collection[SkipKind]) -> Discovery:
    """The search without scans that are no input; those that were named stay, with an obstacle.

    takes: kinds that are taken all the same, with a note.
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
    """A study that was named, with an obstacle if it is no input. takes: as of `passed_over`."""
    return _with_doubts(study, judge(study), takes)


def _against(doubts: Sequence[Doubt], takes: Collection[SkipKind]) -> list[Doubt]:
    return [doubt for doubt in doubts if doubt.kind and doubt.kind not in takes]


def _with_doubts(study: Study, doubts: Sequence[Doubt], takes: Collection[SkipKind]) -> Study:
    if against := _against(doubts, takes):
        return replace(study, obstacle=Obstacle("unsupported", against[0].refusal))
    notes = [doubt.words + (_AS_ASKED if doubt.kind else "") for doubt in doubts]
    return replace(study, notes=(*study.notes, *notes)) if notes else study


_AS_ASKED = "; it is included as requested"
