"""Plan of a batch: pending studies, up-to-date ones, and those blocked by foreign files."""

import hashlib
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Literal, Self, TypeAlias, cast

from ...engine.model.model_card import ModelCard
from ...io.discovery import source_of
from ...io.files.atomic import irreplaceable
from ...io.files.disk import takes_name
from ...io.maps import MapKind, MapMark
from ...io.sidecars import sidecar_of
from ...io.volume import Blocker, Study
from ...io.writing import files_at, is_series, map_beside, result_files, result_files_made
from ..report.report import Failure, StudyReport
from ..settings import TranslateOptions
from ..study.figures import CycleRule
from ..study.maps import requested_maps
from .file_states import FileState, content_of
from .manifest import ManifestEntry, MapRecord, Recipe, place_of
from .sidecar import SidecarMaker

Action: TypeAlias = Literal["translate", "keep", "preview", "sidecar", "refuse"]
"""Action for a study. "preview" and "sidecar" keep the result.

"preview" draws a requested preview from the files if it is missing or shows other labels of the
model, and writes missing sidecars as well; "sidecar" writes a sidecar that differs from what would
be written now.
"""
ADDS: tuple[Action, ...] = ("preview", "sidecar")
"""Actions that keep a result and write another file next to it."""


MOVED = "its earlier result has another name"
NO_PICTURE = "it has no preview, because the preview's name would be too long for the disk"
_Marks: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size and time of modification of each file."""


def preview_of(target: Path) -> Path:
    """Return the path of a result's preview, a name that is never taken for a scan."""
    return target.with_name(f"{target.name}.preview.png")


@dataclass(frozen=True, slots=True)
class PlannedStudy:
    """Planned work of a batch on one study.

    reason: why an older result is made again, or why the study is refused; None if there is no
    reason to state. replaces: whether existing files at the target may be replaced. refreshed: the
    manifest's entry with new marks, if files were touched or moved but have the same bytes. stale:
    preview of the older result, which would not show the new one. stale_beside: maps and sidecars
    of the older result that are not made again. aliases: the same scan under other names, for which
    the result is stored again. study: its files. target: path of the result. action: planned
    action. earlier: states of files known to be the program's own. kept: manifest entry of an
    up-to-date result. picture: path of the preview; None if none is requested, or its name is too
    long. differs: whether a valid result of another model or of other settings is replaced.
    sidecars: paths of the JSON files next to the results; none if none are requested.
    """

    study: Study
    target: Path
    action: Action
    reason: str | None = None
    replaces: bool = False
    refreshed: ManifestEntry | None = None
    stale: Path | None = None
    stale_beside: tuple[Path, ...] = ()
    aliases: "tuple[PlannedStudy, ...]" = ()
    earlier: tuple[FileState, ...] = ()
    kept: ManifestEntry | None = None
    picture: Path | None = None
    differs: bool = False
    sidecars: tuple[Path, ...] = ()

    @property
    def targets(self) -> tuple[Path, ...]:
        """Paths of the results of all channels."""
        return _targets(self.target, self.study)

    @property
    def refusal(self) -> Failure | None:
        """Failure with which a refused study is reported."""
        if self.action != "refuse":
            return None
        kind = self.study.blocker.kind if self.study.blocker else "occupied"
        return Failure(kind, self.reason or "", None)

    @property
    def opening_row(self) -> StudyReport:
        """Row before any work on the study; also the final row if nothing is pending."""
        row = StudyReport(
            name=str(self.study.name),
            source=self.study.files[0],
            output=self.target,
            status="up to date",
            notes=self.study.notes,
        )
        if self.refusal:
            return replace(row, status="failed", failure=self.refusal)
        if self.kept is None:
            return replace(row, due=self.reason)
        cycle = self.kept.cycle
        return replace(
            row,
            notes=(*row.notes, *self.kept.notes, *filter(None, [cycle and cycle.note])),
            source_content=content_of(self.kept.inputs),
            output_content=content_of(result_states(self.kept.outputs, self.targets)),
            cycle=cycle,
            maps=tuple(
                map_beside(self.target, cast("MapKind", record.kind)) for record in self.kept.maps
            ),
            spread=self.kept.spread,
            measures=self.kept.measures,
            seams=self.kept.seams,
        )

    def begun_again(self, why: str) -> "PlannedStudy":
        """Return the planned study with a note on the reason why its first try ended."""
        notes = *self.study.notes, f"{why} It was restarted in another process."
        return replace(self, study=replace(self.study, notes=notes))


@dataclass(frozen=True, slots=True)
class Planner:
    """Planner that compares studies with an output folder and its manifest; changes nothing.

    output: the folder. entries: newest entry of every output. recipe: current recipe of results.
    overwrite: whether everything is made again and foreign files are replaced. preview: whether
    each result needs a preview. cycle: rule by which each result needs a cycle error; None if it
    needs none. maps: maps that each result needs. words: labels of the model for results; none if
    unknown. sidecars: maker of the JSON files next to results; None if they need none.
    """

    output: Path
    entries: Mapping[str, ManifestEntry]
    recipe: Recipe
    overwrite: bool
    preview: bool = False
    cycle: CycleRule | None = None
    maps: tuple[MapMark, ...] = ()
    words: tuple[str, ...] = ()
    sidecars: SidecarMaker | None = None

    @classmethod
    def of(
        cls,
        output: Path,
        entries: Mapping[str, ManifestEntry],
        recipe: Recipe,
        options: TranslateOptions,
        card: ModelCard | None,
        model_sha256: str,
        cycle: CycleRule | None,
    ) -> Self:
        """Return the planner for results with these options.

        card: model card of the model with this hash; None if its file cannot be read.
        """
        return cls(
            output,
            entries,
            recipe,
            options.overwrite,
            options.preview,
            cycle,
            requested_maps(options, card),
            card.words if card else (),
            card and SidecarMaker.of(card, model_sha256, options),
        )

    def plan(self, studies: Sequence[Study]) -> tuple[PlannedStudy, ...]:
        """Return one planned study per study, in their order."""
        sources = _identities(file for study in studies for file in self._inputs_of(study))
        moved = self._results_without(studies)
        planned = (self._without_links(self._plan(study, sources)) for study in studies)
        return tuple(self._noting_move(each, moved) for each in planned)

    def _inputs_of(self, study: Study) -> Iterator[Path]:
        """Yield the files that no result may replace."""
        yield from study.files
        if self.sidecars:
            yield from (sidecar_of(scan.files[0]) for scan in study.channels)

    def _results_without(self, studies: Sequence[Study]) -> "dict[_Marks, str]":
        """Return existing results of studies with other names than these, by the inputs' marks."""
        names = {str(study.mirrored_name) for study in studies}
        return {
            tuple(
                (state.name, state.size, state.modified_ns) for state in entry.inputs
            ): entry.output
            for entry in self.entries.values()
            if entry.status == "written" and entry.mirrored_name not in names
        }

    def _without_links(self, planned: PlannedStudy) -> PlannedStudy:
        """Return the plan, refused if its files would replace a link or anything but a file."""
        match planned.action:
            case "translate":
                coming = self._places(planned)
            case "preview":
                coming = [*planned.sidecars, *([planned.picture] if planned.picture else [])]
            case "sidecar":
                coming = [*planned.sidecars]
            case "keep" | "refuse":
                coming = []
        for file in coming:
            if kind := irreplaceable(file):
                reason = f"{file} is {kind}, and stays; move it away"
                return replace(planned, action="refuse", reason=reason)
        return planned

    def _places(self, planned: PlannedStudy) -> list[Path]:
        """Return every file that may be written for a study."""
        maps = map_places(planned.target, [mark.kind for mark in self.maps])
        pictures = [planned.picture] if planned.picture else []
        return [*files_of(planned), *maps, *planned.sidecars, *pictures]

    def _noting_move(self, planned: PlannedStudy, moved: "Mapping[_Marks, str]") -> PlannedStudy:
        """Return the plan, with a note if its result has a name from a run with other inputs."""
        study = planned.study
        if not moved or planned.action != "translate" or str(study.name) in self.entries:
            return planned
        with suppress(OSError):
            states = [(file.name, file.stat()) for file in study.files]
            old = moved.get(tuple((name, at.st_size, at.st_mtime_ns) for name, at in states))
            if old and _is_one_path(old, study.name) and os.path.lexists(self.output / old):
                note = f"its earlier result is {old}, because the inputs differed then"
                study = replace(study, notes=(*study.notes, note))
                return replace(planned, study=study, reason=MOVED)
        return planned

    def _plan(self, study: Study, sources: set[tuple[int, int]]) -> PlannedStudy:
        target = self.output / study.name
        entry = self.entries.get(str(study.name))
        study = study if study.blocker else self._named(study)
        if study.blocker:
            return PlannedStudy(study, target, "refuse", study.blocker.reason)
        earlier = entry.files if entry else ()
        picture = preview_of(target) if self.preview else None
        if picture and not takes_name(picture):
            study = replace(study, notes=(*study.notes, NO_PICTURE))
            picture = None
        due = PlannedStudy(
            study,
            target,
            "translate",
            stale=self._stale(target, entry),
            stale_beside=self._stale_beside(target, entry),
            earlier=earlier,
            picture=picture,
            sidecars=tuple(map(sidecar_of, _targets(target, study))) if self.sidecars else (),
        )
        standing = [file for file in self._places(due) if os.path.lexists(file)]
        if inputs := [file for file in standing if _identities([file]) & sources]:
            reason = f"{inputs[0]} is itself an input; choose another output folder"
            return replace(due, action="refuse", reason=reason)
        if self.overwrite:
            return replace(due, replaces=True)
        if not standing:
            missing = entry is not None and entry.status == "written"
            return replace(due, reason="its result was deleted" if missing else None)
        if entry is None or entry.status == "failed":
            return _refused(due, standing[0], _FOREIGN)
        ours = replace(due, replaces=True)
        if entry.status == "writing":
            if foreign := _foreign(standing, earlier):
                return _refused(due, foreign, _FOREIGN)
            return replace(ours, reason="an earlier run was stopped while writing it")
        return self._judge(ours, entry)

    def _named(self, study: Study) -> Study:
        """Return the study, with a blocking error if a result's name is too long for the disk."""
        results = [self.output / name for name in study.results]
        maps = (map_beside(results[0], mark.kind) for mark in self.maps)
        outputs = [file for place in (*results, *maps) for file in result_files_made(place, study)]
        for place in (*outputs, *(map(sidecar_of, results) if self.sidecars else ())):
            if not takes_name(place):
                reason = f"{place} has a name that is too long for its disk; choose a shorter one"
                return replace(study, blocker=Blocker("write", reason))
        return study

    def _judge(self, ours: PlannedStudy, entry: ManifestEntry) -> PlannedStudy:
        """Plan a study whose result exists and was written by an earlier run."""
        picture = preview_of(ours.target)
        pictures = tuple(state for state in entry.outputs if state.name == picture.name)
        if self.preview and not pictures and os.path.lexists(picture):
            return _refused(ours, picture, _FOREIGN)
        is_drawn = bool(pictures) and os.path.lexists(picture)
        names = {sidecar_of(target).name for target in ours.targets}
        sidecars = {state.name: state for state in entry.outputs if state.name in names}
        if edited := _edited(ours.sidecars, sidecars):
            return _refused(ours, *edited)
        unasked = (*(() if self.preview and is_drawn else pictures), *sidecars.values())
        recorded = tuple(state for state in entry.outputs if state not in unasked)
        try:
            outputs = _again(recorded, _files_of(ours, [s.name for s in recorded]))
        except FileNotFoundError:
            return replace(ours, reason="a part of its result was deleted")
        except OSError as error:
            return _refused(ours, ours.target, f"cannot be checked ({error.strerror})")
        if _hashes(outputs) != _hashes(recorded):
            return _refused(ours, ours.target, _CHANGED)
        words = self.words if is_series(ours.study.format, ours.target) else ()
        if changed := entry.change_of(self.recipe.model, words):
            return replace(ours, reason=changed, differs=entry.recipe.model != self.recipe.model)
        if entry.recipe.settings != self.recipe.settings:
            return replace(ours, reason="the settings changed", differs=True)
        try:
            inputs = _again(entry.inputs, ours.study.files)
        except OSError:
            return ours  # reading the file will report the error
        if _hashes(inputs) != _hashes(entry.inputs):
            if entry.place not in ("", place_of(ours.study)):
                return _refused(ours, ours.target, f"is the result of another scan, {entry.place}")
            return replace(ours, reason="the input changed")
        cycle = entry.cycle
        if self.cycle:
            if cycle is None or cycle.back != self.cycle.back:
                return replace(ours, reason="its cycle error is requested")
            cycle = self.cycle.judged_again(cycle)
        judged = self._judge_maps(ours, entry)
        if isinstance(judged, PlannedStudy):
            return judged
        now = replace(entry, inputs=inputs, outputs=(*outputs, *unasked), maps=judged, cycle=cycle)
        is_drawn = ours.picture is None or (is_drawn and not entry.has_other_words(self.words))
        is_described = self._is_described(ours, entry, sidecars)
        if is_drawn and is_described:
            return replace(ours, action="keep", refreshed=now if now != entry else None, kept=now)
        due = {*sidecars} if ours.sidecars else set[str]()
        due |= set() if is_drawn else {picture.name}
        now = replace(now, outputs=tuple(each for each in now.outputs if each.name not in due))
        if is_drawn:
            return replace(ours, action="sidecar", kept=now)
        now = replace(now, words=self.words or entry.words)
        stale = picture if pictures and os.path.lexists(picture) else None
        return replace(ours, action="preview", kept=now, stale=stale)

    def _is_described(
        self, ours: PlannedStudy, entry: ManifestEntry, sidecars: Mapping[str, FileState]
    ) -> bool:
        """Return whether a result has the requested sidecars, as they would be written now."""
        if self.sidecars is None:
            return True
        contents = self.sidecars.contents(ours.study, entry.program)
        return all(
            place.name in sidecars
            and os.path.lexists(place)
            and sidecars[place.name].sha256 == hashlib.sha256(content).hexdigest()
            for place, content in zip(ours.sidecars, contents, strict=True)
        )

    def _judge_maps(
        self, ours: PlannedStudy, entry: ManifestEntry
    ) -> "PlannedStudy | tuple[MapRecord, ...]":
        """Return the maps of an up-to-date result, the requested ones with new marks; or the
        planned study if one of them needs work.
        """
        known = {record.kind: record for record in entry.maps}
        for mark in self.maps:
            record, place = known.get(mark.kind), map_beside(ours.target, mark.kind)
            if record is None:
                for standing in filter(os.path.lexists, result_files(place)):
                    return _refused(ours, standing, _FOREIGN)
                return replace(ours, reason=f"it has no map {mark.kind} yet")
            try:
                files = _again(record.files, files_at(place))
            except OSError as error:
                return _refused(ours, place, f"cannot be checked ({error.strerror})")
            if len(files) < len(record.files):
                return replace(ours, reason="a map of its result was deleted")
            if _hashes(files) != _hashes(record.files):
                return _refused(ours, place, _CHANGED)
            if record.recipe != mark.recipe:
                return replace(ours, reason="the settings of a map changed")
            known[mark.kind] = replace(record, files=files)
        return tuple(known.values())

    def _stale_beside(self, target: Path, entry: ManifestEntry | None) -> tuple[Path, ...]:
        """Return the maps and sidecars of an earlier run that this one does not replace and no
        user changed.
        """
        if entry is None:
            return ()
        current = {mark.kind for mark in self.maps}
        kinds = [record.kind for record in entry.maps if record.kind not in current]
        names = {state.name for state in entry.outputs}
        results = [target, *(target.with_name(PurePath(each).name) for each in entry.others)]
        sidecars = () if self.sidecars else tuple(map(sidecar_of, results))
        old = (*map_places(target, kinds), *(each for each in sidecars if each.name in names))
        return tuple(
            place for place in old if os.path.lexists(place) and not _foreign([place], entry.files)
        )

    def _stale(self, target: Path, entry: ManifestEntry | None) -> Path | None:
        """Return the preview of an earlier run if neither replaced by this one nor changed by a
        user.
        """
        picture = preview_of(target)
        if self.preview or entry is None:
            return None
        for state in entry.outputs:
            with suppress(OSError):
                if state.name == picture.name and state.again(picture).sha256 == state.sha256:
                    return picture
        return None


def map_places(target: Path, kinds: Iterable[str]) -> tuple[Path, ...]:
    """Return every file or folder of maps of these kinds next to a result."""
    targets = (map_beside(target, cast("MapKind", kind)) for kind in kinds)
    return tuple(place for target in targets for place in result_files(target))


_FOREIGN = "was not written by this program"
_CHANGED = "was changed after this program wrote it"


def _foreign(standing: Iterable[Path], ours: Sequence[FileState]) -> Path | None:
    """Return a file at the path of a result that is not the program's own, or None."""
    for place in standing:
        for file in files_at(place) if place.is_dir() else [place]:
            if not any(_is_of(state, file) for state in ours):
                return file
    return None


def _is_of(state: FileState, file: Path) -> bool:
    try:
        return state.is_of(file)
    except OSError:
        return False


def result_states(outputs: Iterable[FileState], targets: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the files of a study's results without its preview and its sidecars."""
    beside = {place(target).name for target in targets for place in (preview_of, sidecar_of)}
    return tuple(state for state in outputs if state.name not in beside)


def _targets(target: Path, study: Study) -> tuple[Path, ...]:
    return target, *(target.with_name(result.name) for result in study.other_results)


def _edited(places: Iterable[Path], known: Mapping[str, FileState]) -> tuple[Path, str] | None:
    """Return a sidecar whose content this program did not write, and the problem with it."""
    for place in filter(os.path.lexists, places):
        state = known.get(place.name)
        if state is None:
            return place, _FOREIGN
        try:
            if state.again(place).sha256 != state.sha256:
                return place, _CHANGED
        except OSError as error:
            return place, f"cannot be checked ({error.strerror})"
    return None


def _refused(due: PlannedStudy, file: Path, trouble: str) -> PlannedStudy:
    reason = f"{file} {trouble}; move it away or use setting overwrite"
    return replace(due, action="refuse", reason=reason)


def files_of(planned: PlannedStudy) -> tuple[Path, ...]:
    """Return every file that may be written as a result of a study, in the order of channels."""
    return tuple(file for target in planned.targets for file in result_files(target))


def _files_of(ours: PlannedStudy, recorded: Sequence[str]) -> list[Path]:
    """Return the files of an earlier result, with all others now in a result folder.

    Raises FileNotFoundError if a recorded file is missing from the folder.
    """
    target = ours.target
    beside = [target.with_name(name) for name in recorded]
    if not target.is_dir():
        return beside
    pictures = [path for path in beside if path == preview_of(target)]
    found = [file for folder in ours.targets for file in files_at(folder)]
    if missing := set(recorded) - {path.name for path in (*found, *pictures)}:
        raise FileNotFoundError(*missing)
    return [*found, *pictures]


def _again(states: Sequence[FileState], files: Sequence[Path]) -> tuple[FileState, ...]:
    if len(states) != len(files):
        return tuple(FileState.of(file) for file in files)
    return tuple(state.again(file) for state, file in zip(states, files, strict=True))


def _hashes(states: Iterable[FileState]) -> list[str]:
    return [state.sha256 for state in states]


def _is_one_path(one: str, other: PurePath) -> bool:
    """Return whether the folders of two results may lead to one scan, from different inputs."""
    short, long = sorted((PurePath(one).parent.parts, other.parent.parts), key=len)
    return long[len(long) - len(short) :] == short


def _identities(files: Iterable[Path]) -> set[tuple[int, int]]:
    """Return device and inode of every existing file, so that links do not hide a file."""
    found: set[tuple[int, int]] = set()
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found


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
