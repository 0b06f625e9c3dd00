"""Planning of a job of the queue: finds its study again, and opens its folder and its models."""

import os
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Self

from ...engine.devices import Device
from ...engine.errors import ModelFileError
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model, load_model
from ...engine.network.layers import Triple
from ...io.channels import joined, other_results, with_results
from ...io.discovery import discover, images_sha256
from ...io.errors import UnreadableScanError
from ...io.files.own_files import user_name
from ...io.files.parts import remove_leftovers
from ...io.reading import causes_named
from ...io.volume import Study
from ..cycle import cycle_rule, load_reverse_model, reverse_options
from ..decisions import check_model, with_precision
from ..events import Remark, opening_event
from ..results.bids import BidsDataset
from ..results.earlier_results import synthetic_checked
from ..results.manifest import Manifest, Recipe
from ..results.resume import PlannedStudy, Planner
from ..results.sharers import WORKERS
from ..run.concurrency import StoppedError
from ..run.networks import Networks
from ..run.source import JobKind
from ..settings import CycleCheck, ResolvedOptions
from ..study.figures import CycleRule
from ..study.selection import contrast_checked
from .events import OnEvent
from .queue.job import StudyJob
from .submission import refused_link


@dataclass(frozen=True, slots=True)
class _Models:
    """Model of a job with the patch that it is opened for, None for volumes, and its reverse model,
    if a cycle check is requested.
    """

    path: str
    sha256: str
    patch: Triple | None
    cycle_check: CycleCheck | None
    model: Model
    back: Model | None


@dataclass(frozen=True, slots=True)
class _Known:
    """Identity and model card of a model; empty if its file cannot be read."""

    identity: str = ""
    card: ModelCard | None = None


class JobPlanner:
    """Planner that keeps the models of the last job and its output folder; a context manager.

    name: name of the device, "cpu" or "cuda:N". networks: networks that are open on the device.
    """

    def __init__(self, name: str, device: Device, networks: Networks, on_event: OnEvent) -> None:
        self._name = name
        self._device = device
        self._networks = networks
        self._on_event = on_event
        self._models: _Models | None = None
        self._known: dict[str, _Known] = {}
        self._back_identities: dict[str, str] = {}
        self._manifest: Manifest | None = None
        self._folder_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_folder()

    def close_folder(self) -> None:
        """Close the output folder, so that other programs can use it.

        First remove files that other workers left there when they were killed.
        """
        if self._manifest:
            with suppress(OSError):
                remove_leftovers(self._manifest.output)
        self._manifest = None
        self._folder_stack.close()

    def plan(self, job: StudyJob) -> PlannedStudy:
        """Return the planned work on a job's study.

        Raises ScanError, OutputFolderError or SettingsError; an OSError is about the output folder.
        """
        known = self._known_of(job)
        study = find_study(job, known.card)
        if known.card:
            study = contrast_checked(study, known.card, job.options.takes, is_confirmed=True)
        study = synthetic_checked(study, job.options.takes)
        manifest = self._open_folder(Path(job.output))
        planner = Planner.of(
            manifest.output,
            manifest.entries,
            Recipe(known.identity, self._options(job).fingerprint()),
            job.options,
            known.card,
            job.model_sha256,
            self._cycle_rule(job, known.card),
        )
        [planned] = planner.plan([study])
        if known.card and job.options.layout == "bids":
            dataset = BidsDataset.of(manifest.output, known.card, job.options)
            dataset.describe([study], job.model_sha256)
        if planned.refreshed:
            manifest.append(planned.refreshed)
        return planned

    @property
    def manifest(self) -> Manifest:
        """Manifest of the output folder of the last job."""
        assert self._manifest
        return self._manifest

    def kind(self, job: StudyJob) -> JobKind:
        """Return the kind of a job and of those that are `like` it, with the model open.

        Raises EngineError, OutputFolderError or SettingsError.
        """
        options = self._options(job)
        self._open_folder(Path(job.output))
        models = self._models_of(job, options)
        recipe = Recipe(models.model.identity, options.fingerprint())
        kind = JobKind(models.model, options, recipe, models.back)
        with self._networks.use(*kind.uses, progress=self._report) as (network, *_):
            network.open(kind.precision)  # an error here concerns this job
        return kind

    def tune(self, until: float, is_wanted: Callable[[], bool]) -> None:
        """Let open networks search as `Networks.tune` does, as long as that is wanted."""

        def progress(what: str, share: float | None) -> None:
            if not is_wanted():
                raise StoppedError
            if share is None:
                self._report(what, share)

        with suppress(StoppedError):
            self._networks.tune(until, progress)

    def _report(self, what: str, share: float | None) -> None:
        self._on_event(opening_event(what, share))

    def _options(self, job: StudyJob) -> ResolvedOptions:
        return with_precision(job.options, [self._device], self._name)

    def _open_folder(self, output: Path) -> Manifest:
        if self._manifest and self._manifest.output == output:
            self._manifest.refresh()
            return self._manifest
        self.close_folder()
        self._manifest = self._folder_stack.enter_context(Manifest(output, shared=WORKERS))
        if self._manifest.remark:
            self._on_event(Remark(self._manifest.remark))
        remove_leftovers(output)
        return self._manifest

    def _known_of(self, job: StudyJob) -> _Known:
        """Return identity and model card of the job's model."""
        if job.model_sha256 not in self._known:
            try:
                model = self._load(job)
            except ModelFileError:
                return _Known()
            self._known = {job.model_sha256: _Known(model.identity, model.card)}
        return self._known[job.model_sha256]

    def _load(self, job: StudyJob) -> Model:
        """Load the model with which the job was submitted. Raises ModelFileError."""
        model = load_model(Path(job.model))
        if model.sha256 != job.model_sha256:
            raise ModelFileError(
                f"{job.model} has changed since the job was submitted; submit it again, or restore "
                "the old file."
            )
        return model

    def _models_of(self, job: StudyJob, options: ResolvedOptions) -> _Models:
        """Return the models of a job, reusing those of the previous one. Raises EngineError."""
        known = self._models
        wanted = job.model, job.model_sha256, options.opened_for, job.options.cycle_check
        if known and (known.path, known.sha256, known.patch, known.cycle_check) == wanted:
            return known
        self._models = None
        self._networks.close()
        model = self._load(job)
        check_model(model, options, self._device)
        back = load_reverse_model(model, job.options)
        if back:
            check_model(back, reverse_options(options, back), self._device)
        self._models = _Models(*wanted, model, back)
        return self._models

    def _cycle_rule(self, job: StudyJob, card: ModelCard | None) -> CycleRule | None:
        """Return the rule for the cycle error of a job's result, or None if it needs none.

        If a model's file is missing, no result fits the rule, so that the study is pending, and
        fails.
        """
        asked = job.options.cycle_check
        if asked is None:
            return None
        if card is None:
            return CycleRule("")
        if asked.sha256 not in self._back_identities:
            try:
                identity = load_model(Path(asked.model)).identity
            except ModelFileError:
                return CycleRule("")
            self._back_identities = {asked.sha256: identity}
        return cycle_rule(card, self._back_identities[asked.sha256])


def find_study(job: StudyJob, card: ModelCard | None) -> Study:
    """Find the study of a job again among its files, which are in the order of the channels.

    card: model card of its model, if that can be read. Raises ScanError, also for a series that has
    grown since it was submitted.
    """
    for file in job.files:
        _check_there(file)
    if refused := refused_link(job):
        raise UnreadableScanError(
            f"{refused.path} changed since it was submitted: {refused.reason}; submit it again."
        )
    found = discover([Path(file) for file in job.files], None, job.options.choice())
    study = _study_of(found.studies, job, card)
    if study:
        name = PurePosixPath(job.study)
        others = other_results(name, card.output_channels) if card else ()
        study = replace(study, name=name, other_results=others)
        if job.mirrored:
            others, mirrored = (tuple(map(PurePosixPath, at)) for at in (job.others, job.mirrored))
            study = replace(study, other_results=others, mirrored=mirrored)
        if job.incomplete:
            notes = (*study.notes, job.incomplete)
            study = replace(study, incomplete=job.incomplete, notes=notes)
        return _as_listed(study, job)
    why = f" ({found.skipped[0].reason})" if found.skipped else ""
    raise UnreadableScanError(f"{job.files[0]} is no longer a study{why}; submit it again.")


def _as_listed(study: Study, job: StudyJob) -> Study:
    """Return the study with its folders as submitted. Raises UnreadableScanError if images were
    added since, as part of a series is no study.
    """
    if not job.listed:
        return study
    from ...io.dicom.series import added_since

    listed = tuple((Path(folder), when) for folder, when in job.listed)
    scans = tuple(replace(scan, listed=listed) for scan in study.scans)
    study = replace(study, scans=scans, listed=listed)
    with causes_named(study.files[0]):
        new = added_since(study)
    if new:
        raise UnreadableScanError(
            f"{study.files[0].parent} holds {len(new)} more images of this series than when it was "
            f"submitted ({new[0].name}); submit it again when it is complete."
        )
    return study


def _check_there(file: str) -> None:
    """Raise UnreadableScanError if this worker does not see a file of a job."""
    host, again = platform.node(), "then 'jobs retry'"
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnreadableScanError(
            f"{file} does not exist on {host}; restore it, or mount it there if other hosts have "
            f"it, {again}."
        ) from error
    except OSError as error:
        raise UnreadableScanError(
            f"{file} cannot be reached by {user_name()} on {host} ({error.strerror}); give this "
            f"user access to its folders, or check its disk, {again}."
        ) from error


def _study_of(scans: Sequence[Study], job: StudyJob, card: ModelCard | None) -> Study | None:
    """Return the scan that has all files of a job, or the study of several scans that have them.

    Jobs of older programs do not contain hashes of their images; if several scans have the same
    files, the name of the result decides.
    """
    names = card.input_channels if card else ("",) * max(len(job.images), 1)
    if job.images:
        by_images = {images_sha256(scan): scan for scan in scans}
        chosen = [by_images[each] for each in job.images if each in by_images]
    elif _files_of(scans) == sorted(job.files):
        chosen = sorted(scans, key=lambda scan: job.files.index(str(scan.files[0])))
        names = names if card else ("",) * len(chosen)
    else:
        chosen = [scan for scan in scans if {*map(str, scan.files)} == {*job.files}]
        if len(chosen) > 1:
            chosen = [scan for scan in chosen if _is_named(job, scan, card)]
    if len(chosen) == 1 and len(job.images) < 2:
        return chosen[0]
    is_whole = len(chosen) == len(names) and _files_of(chosen) == sorted(job.files)
    return joined(chosen, names) if chosen and is_whole else None


def _files_of(scans: Sequence[Study]) -> list[str]:
    return sorted(str(file) for scan in scans for file in scan.files)


def _is_named(job: StudyJob, scan: Study, card: ModelCard | None) -> bool:
    outputs = card.output_channels if card else ("",)
    return with_results(scan, outputs).name.name == PurePosixPath(job.mirrored_name).name
