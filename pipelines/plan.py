"""Which studies are due, which are up to date, and which have something foreign in their way."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from ..io.volume import Study
from ..io.writing import files_at, places
from .manifest import Entry, FileState, Recipe
from .report import Failure

Action: TypeAlias = Literal["translate", "keep", "refuse"]


@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """What a batch will do about one study.

    reason: why an older result is made anew, or why the study is refused; None if there is
    nothing to say. replaces: whether what stands at the target may be replaced. refreshed: the
    manifest's entry with new marks, if files were touched or moved but hold the same bytes.
    """

    study: Study
    target: Path
    action: Action
    reason: str | None = None
    replaces: bool = False
    refreshed: Entry | None = None

    @property
    def refusal(self) -> Failure | None:
        """The failure that a refused study is reported with."""
        return Failure("occupied", self.reason or "", None) if self.action == "refuse" else None


@dataclass(frozen=True, slots=True)
class Planner:
    """Judges studies against an output folder and its manifest; changes nothing.

    overwrite: whether everything is made anew and foreign files are replaced.
    """

    output: Path
    entries: Mapping[str, Entry]
    recipe: Recipe
    overwrite: bool

    def plan(self, studies: Sequence[Study]) -> tuple[PlannedStudy, ...]:
        """One plan a study, in their order."""
        sources = _identities(file for study in studies for file in study.files)
        return tuple(self._plan(study, sources) for study in studies)

    def _plan(self, study: Study, sources: set[tuple[int, int]]) -> PlannedStudy:
        due = PlannedStudy(study, self.output / study.name, "translate")
        standing = [file for file in places(due.target) if os.path.lexists(file)]
        if inputs := [file for file in standing if _identities([file]) & sources]:
            reason = f"{inputs[0]} is itself an input; choose another output folder"
            return replace(due, action="refuse", reason=reason)
        if self.overwrite:
            return replace(due, replaces=True)
        entry = self.entries.get(str(study.name))
        if not standing:
            missing = entry is not None and entry.status == "written"
            return replace(due, reason="its result was deleted" if missing else None)
        if entry is None or entry.status == "failed":
            return _refused(due, standing[0], "was not made by this program")
        ours = replace(due, replaces=True)
        if entry.status == "writing":
            return replace(ours, reason="an earlier run was stopped while writing it")
        return self._judge(ours, entry)

    def _judge(self, ours: PlannedStudy, entry: Entry) -> PlannedStudy:
        """A study whose result is there and was written by an earlier run."""
        try:
            outputs = _again(entry.outputs, _files_of(ours.target, entry))
        except FileNotFoundError:
            return replace(ours, reason="a part of its result was deleted")
        except OSError as error:
            return _refused(ours, ours.target, f"cannot be checked ({error.strerror})")
        if _hashes(outputs) != _hashes(entry.outputs):
            return _refused(ours, ours.target, "was changed after this program wrote it")
        if entry.recipe.model != self.recipe.model:
            return replace(ours, reason="the model changed")
        if entry.recipe.settings != self.recipe.settings:
            return replace(ours, reason="the settings changed")
        try:
            inputs = _again(entry.inputs, ours.study.files)
        except OSError:
            return ours  # reading it will say what is wrong
        if _hashes(inputs) != _hashes(entry.inputs):
            return replace(ours, reason="the input changed")
        now = replace(entry, inputs=inputs, outputs=outputs)
        return replace(ours, action="keep", refreshed=now if now != entry else None)


def _refused(due: PlannedStudy, file: Path, trouble: str) -> PlannedStudy:
    reason = f"{file} {trouble}; move it away or use --overwrite"
    return replace(due, action="refuse", reason=reason)


def _files_of(target: Path, entry: Entry) -> list[Path]:
    """The files of an earlier result, with all others that a result folder holds now."""
    names = [state.name for state in entry.outputs]
    if not target.is_dir():
        return [target.with_name(name) for name in names]
    found = files_at(target)
    if missing := set(names) - {file.name for file in found}:
        raise FileNotFoundError(*missing)
    return found


def _again(states: Sequence[FileState], files: Sequence[Path]) -> tuple[FileState, ...]:
    if len(states) != len(files):
        return tuple(FileState.of(file) for file in files)
    return tuple(state.again(file) for state, file in zip(states, files, strict=True))


def _hashes(states: Iterable[FileState]) -> list[str]:
    return [state.sha256 for state in states]


def _identities(files: Iterable[Path]) -> set[tuple[int, int]]:
    """Device and inode of every file that is there, so that links do not hide a file."""
    found: set[tuple[int, int]] = set()
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found
