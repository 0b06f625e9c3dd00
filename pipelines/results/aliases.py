"""Scans that exist under several names: computed once, stored for each name."""

from collections.abc import Hashable, Iterable
from dataclasses import replace

from ...io.discovery import source_of
from ...io.volume import Study
from .resume import PlannedStudy


def with_aliases(planned: Iterable[PlannedStudy]) -> tuple[PlannedStudy, ...]:
    """Return the studies to process; pending studies of one scan become aliases of the first."""
    firsts: dict[Hashable, PlannedStudy] = {}
    for study in planned:
        key = source_of(study.study) if study.action == "translate" else study.study.name
        first = firsts.get(key)
        firsts[key] = replace(first, aliases=(*first.aliases, study)) if first else study
    return tuple(firsts.values())


def alias_note(study: Study) -> str:
    """Return the note in the row of an alias of a study."""
    return f"it is the same scan as {study.name}, which was computed once"
