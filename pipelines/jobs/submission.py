"""Jobs from a request, studies that arrive in a folder, and links among the files of a job."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from ...engine.model.calibration import ResultReference
from ...engine.model.model_file import Model, load_model
from ...io.discovery import images_sha256
from ...io.files.disk import takes_name
from ...io.links import LinkRule
from ...io.search import Skipped
from ...io.volume import Study
from ..cycle import load_reverse_model
from ..decisions import fitted
from ..errors import OutputFolderError
from ..request import Request, Search
from ..results.manifest import ManifestEntry, entries_of
from ..settings import CycleCheck
from .queue.job import NOT_RECORDED, StudyJob


def refused_link(job: StudyJob) -> Skipped | None:
    """Return the first link to the job's files, below its inputs, that must not be followed."""
    if job.options.links == "all":
        return None
    root = _inputs_of(job)
    rule = LinkRule.among(job.options.links, [root])
    for file in map(Path, job.files):
        below = (place for place in (*reversed(file.parents), file) if place.is_relative_to(root))
        for place in below:
            if place != root and place.is_symlink() and (refusal := rule.refusal(place)):
                return Skipped(place, refusal)
    return None


def _inputs_of(job: StudyJob) -> Path:
    """Return the common folder of all inputs, from which a study's path below the results derives.

    For scans in several folders it is the folder that these share, which lies within the inputs.
    """
    folder = Path(os.path.commonpath([os.path.dirname(file) for file in job.files]))  # noqa: PTH120
    above = PurePosixPath(job.mirrored_name).parent.parts
    if folder.parts[len(folder.parts) - len(above) :] != above:
        return folder
    return Path(*folder.parts[: len(folder.parts) - len(above)])


@dataclass(frozen=True, slots=True)
class Submission:
    """Jobs of a request, and the inputs without a job.

    jobs: one per study. skipped: paths that are not studies, with reasons. refused: studies with a
    blocking error, by name. identity: identity of the model. words: metadata of the model for the
    results. established: how the model's reading was verified, in words. reference: results of its
    reference set. outputs: output channels of each study. holds_files_only, notes: as in a search.
    """

    jobs: tuple[StudyJob, ...]
    skipped: tuple[Skipped, ...]
    refused: dict[str, str]
    identity: str = ""
    words: tuple[str, ...] = ()
    established: str = NOT_RECORDED
    reference: ResultReference | None = None
    outputs: tuple[str, ...] = ("",)
    holds_files_only: bool = False
    notes: tuple[str, ...] = ()


def jobs_of(request: Request, search: Search | None = None) -> Submission:
    """Check a request against its model, and find its studies; reads no scan and needs no device.

    The worker checks whether its device can do them. search: finds the studies; default:
    `request.search`. Raises ModelFileError, PatchShapeError, SettingsError,
    OutputFolderError or ScanError.
    """
    if not takes_name(request.output):
        raise OutputFolderError(
            f"{request.output} has a name that is too long for its disk; choose a shorter one."
        )
    model = load_model(request.model)
    decided = fitted(model, request.options)
    model.network.graph.check_patch(decided.patch or model.card.patch)
    options = replace(decided, cycle_check=_cycle_check(model, request))
    found = (search or request.search)(model)
    stored = Counter(file for series in found.series for file in set(series.files))
    found_jobs = (
        StudyJob(
            study=str(study.name),
            files=tuple(os.path.abspath(file) for file in study.files),  # noqa: PTH100
            output=os.path.abspath(request.output),  # noqa: PTH100
            model=os.path.abspath(request.model),  # noqa: PTH100
            model_sha256=model.sha256,
            options=options,
            listed=tuple(
                {str(at): when for scan in study.channels for at, when in scan.listed}.items()
            ),
            images=_images(study, stored),
            incomplete=study.incomplete,
            mirrored=tuple(map(str, study.mirrored)),
            others=tuple(map(str, study.other_results)) if study.mirrored else (),
        )
        for study in found.studies
        if study.blocker is None
    )
    # A link that was named is followed, wherever it leads.
    any_link = replace(options, links="all")
    jobs = tuple(replace(job, options=any_link) if refused_link(job) else job for job in found_jobs)
    refused = {str(study.name): study.blocker.reason for study in found.studies if study.blocker}
    card = model.card
    established, outputs = card.established.in_words, card.output_channels
    return Submission(
        jobs,
        found.skipped,
        refused,
        model.identity,
        card.words,
        established,
        card.results,
        outputs,
        found.holds_files_only,
        found.notes,
    )


def _images(study: Study, stored: "Mapping[Path, int]") -> tuple[str, ...]:
    """Return the hash of each scan's images if a file of the study holds several series.

    stored: number of series per file.
    """
    if all(stored.get(file, 0) < 2 for file in study.files):
        return ()
    return tuple(map(images_sha256, study.channels))


def _cycle_check(model: Model, request: Request) -> CycleCheck | None:
    """Return the requested cycle check with an absolute path and the hash of the reverse model."""
    back = load_reverse_model(model, request.options)
    if back is None or request.options.cycle_check is None:
        return None
    path = os.path.abspath(request.options.cycle_check.model)  # noqa: PTH100
    return replace(request.options.cycle_check, model=path, sha256=back.sha256)


Marks: TypeAlias = tuple[tuple[str, int, int], ...]
"""Name, size and modification time of every file of a study."""


@dataclass(slots=True)
class _Arrival:
    """State of a study; marks: hash of its `Marks`, as a study may have many files."""

    marks: int
    since: float
    handed_over: bool = False


class Arrivals:
    """Studies of a folder, and when each last changed.

    settle: quiet period in seconds after which a study counts as complete.
    """

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle = settle
        self._clock = clock
        self._seen: dict[str, _Arrival] = {}

    def complete(
        self, jobs: Iterable[StudyJob], model: str, words: tuple[str, ...] = ()
    ) -> list[StudyJob]:
        """Return jobs of complete studies, until `handed_over`, and again once a study changes.

        Studies whose results are up to date by the manifest, as after a restart, are omitted.
        model: identity of the jobs' model. words: metadata of the model for the results.
        """
        now = self._clock()
        settled: list[tuple[StudyJob, Marks]] = []
        for job in jobs:
            try:
                marks = _marks(job)
            except OSError:
                continue  # it was removed meanwhile
            arrival = self._seen.get(job.study)
            if arrival is None or arrival.marks != hash(marks):
                self._seen[job.study] = _Arrival(hash(marks), now)
            elif not arrival.handed_over and now - arrival.since >= self._settle:
                settled.append((job, marks))
        done = _done(settled, model, words)
        self.handed_over(done)
        return [job for job, _ in settled if not self._seen[job.study].handed_over]

    def handed_over(self, jobs: Iterable[StudyJob]) -> None:
        """Mark studies as handled until they change."""
        for job in jobs:
            self._seen[job.study].handed_over = True


class Complaints:
    """Problems of a folder, each reported once, after it has persisted for `settle` seconds.

    A file that is being copied is damaged until the copy ends.
    """

    def __init__(self, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle = settle
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._reported: set[str] = set()

    def due(self, found: Mapping[str, str]) -> dict[str, str]:
        """Return the problems to report now, by the file or study that they concern."""
        now = self._clock()
        self._since = {each: self._since.get(each, now) for each in found.items()}
        due = {
            name: reason
            for (name, reason), since in self._since.items()
            if name not in self._reported and now - since >= self._settle
        }
        self._reported |= due.keys()
        return due


def _marks(job: StudyJob) -> Marks:
    states = [(file, Path(file).stat()) for file in job.files]
    return tuple((file, state.st_size, state.st_mtime_ns) for file, state in states)


def _done(
    settled: Sequence[tuple[StudyJob, Marks]], model: str, words: tuple[str, ...]
) -> list[StudyJob]:
    """Return the jobs whose results are up to date by the manifest."""
    if not settled:
        return []
    marks_of = {job.study: marks for job, marks in settled}

    def is_done(entry: ManifestEntry) -> bool:
        if entry.status != "written" or entry.change_of(model, words):
            return False
        known = [(state.name, state.size, state.modified_ns) for state in entry.inputs]
        marks = marks_of[entry.output]
        return known == [(Path(file).name, size, changed) for file, size, changed in marks]

    entries = entries_of(Path(settled[0][0].output), marks_of)
    done = {entry.output: is_done(entry) for entry in entries if entry.output in marks_of}
    return [job for job, _ in settled if done.get(job.study)]
