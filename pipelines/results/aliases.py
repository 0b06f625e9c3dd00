"""Scans that are there under several names: computed once, stored for each name."""

from collections.abc import Hashable, Iterable
from dataclasses import replace

from ...io.discovery import source_of
from ...io.reading import causes_named
from ...io.volume import Study
from .input_files import require_unchanged
from .manifest import FileState
from .resume import PlannedStudy


def with_aliases(planned: Iterable[PlannedStudy]) -> tuple[PlannedStudy, ...]:
    """The studies to work on: of those that are due and are one scan, the first has the others."""
    firsts: dict[Hashable, PlannedStudy] = {}
    for study in planned:
        key = source_of(study.study) if study.action == "translate" else study.study.name
        first = firsts.get(key)
        firsts[key] = replace(first, aliases=(*first.aliases, study)) if first else study
    return tuple(firsts.values())


def alias_note(study: Study) -> str:
    """What the row of another name of a study says."""
    return f"it is the same scan as {study.name}, which was computed once"


def states_again(alias: Study, known: Iterable[FileState]) -> tuple[FileState, ...]:
    """The states of a study's files under their other names; known: those of the same files.

    Raises UnreadableScanError if they are not the same any more.
    """
    with causes_named(alias.files[0]):
        pairs = list(zip(alias.files, known, strict=True))
        states = tuple(replace(state, name=file.name).again(file) for file, state in pairs)
    for now, (file, was) in zip(states, pairs, strict=True):
        require_unchanged(now.sha256 == was.sha256, file)
    return states
