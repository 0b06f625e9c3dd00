"""Scans that are there under several names: computed once, stored for each name."""

from collections.abc import Hashable, Iterable
from dataclasses import replace

from ...io.discovery import source_of
from ...io.errors import UnreadableScanError
from ...io.reading import causes_named
from ...io.volume import Study
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
        states = tuple(FileState.of(file, state.sha256) for file, state in pairs)
    for now, (file, was) in zip(states, pairs, strict=True):
        if (now.size, now.modified_ns) != (was.size, was.modified_ns):
            raise UnreadableScanError(
                f"{file} changed while it was read; translate it again when it is complete."
            )
    return states
