"""Main job: from input paths and a model file to a folder of results and a report."""

import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Generator as Iterated
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ..engine.cuda.user_cache import cache_folder
from ..engine.devices import Device
from ..engine.model.model_file import Model, load_model
from ..engine.probe.gpus import CudaDevice, EnergyMeter
from ..io.discovery import Discovery
from ..io.errors import WriteError
from ..io.files.parts import remove_leftovers
from ..io.volume import Study
from ..io.writing import is_series
from .cycle import cycle_rule, load_reverse_model, with_reverse_hash
from .decisions import decided
from .early_start import EarlyStart
from .events import BatchStarted, DeviceOpened, Event, Listen, Remark
from .rates import (
    HostRates,
    NetworkRates,
    RateCache,
    Rates,
    VerifyRates,
    host_keys,
    network_key,
    new_note,
    opening_key,
    verify_key,
)
from .report.report import BatchReport, ModelName, Skip, StudyReport, failure_of
from .request import Request
from .results.bids import BidsDataset
from .results.manifest import Manifest, ManifestEntry, Recipe, load
from .results.record_folder import OutputPlace, is_inside
from .results.resume import PlannedStudy, Planner, with_aliases
from .results.sharers import Sharers
from .run.batch import batch_on, run_batch
from .run.networks import Networks
from .run.source import JobKind
from .settings import ResolvedOptions
from .timeline import Opening, Timeline
from .timestamps import iso_time

if TYPE_CHECKING:
    from .run.shared_batch import StartedWorkers


@dataclass(frozen=True, slots=True)
class Job:
    """Validated request: its model read, its devices chosen, its studies found.

    options: as requested. discovery: those studies, and skipped paths.
    back: the reverse model, if a cycle check is requested. networks: networks of its only device,
    if one of them is already opening. spares: workers of its GPUs, if they were already started.
    """

    request: Request
    model: Model
    devices: tuple[Device, ...]
    options: ResolvedOptions
    discovery: Discovery
    back: Model | None = None
    networks: Networks | None = None
    spares: "StartedWorkers | None" = None

    @property
    def recipe(self) -> Recipe:
        """Recipe of the results."""
        return Recipe(self.model.identity, self.options.fingerprint())

    @property
    def sharers(self) -> Sharers:
        """Kind of runs that share the output folder: the shards of this batch."""
        request = self.request
        shard, filters = request.shard, request.filters
        found = (
            sorted(map(os.path.abspath, request.inputs)),
            sorted(filters.modalities),
            filters.series and filters.series.pattern,
            filters.channels,
            filters.globs,
        )
        options = replace(self.options, overwrite=False)
        return Sharers(
            "shards",
            {
                "their number": str(shard.count if shard else 1),
                "model": self.model.identity,
                "options": _digest(options),
                "inputs and filters": _digest(found),
            },
        )

    @property
    def network_key(self) -> str:
        """Cache key of the measured network speed."""
        options = self.options
        return network_key(self._models, options.opened_for, options.precision, self._devices)

    @property
    def verify_key(self) -> str:
        """Cache key of the measured time the CPU takes for a patch, or a volume."""
        return verify_key(self.model.sha256, self.options.opened_for)

    @property
    def opening_key(self) -> str:
        """Cache key of the measured opening time of its devices."""
        return opening_key(self._devices)

    @property
    def _models(self) -> str:
        return f"{self.model.sha256} and {self.back.sha256}" if self.back else self.model.sha256

    @property
    def _devices(self) -> str:
        return f"{self.devices[0].kind} of --device {self.request.device}"

    def host_keys(self, study: Study) -> tuple[str, str]:
        """Return the cache keys of the measured speed of reading and writing such studies."""
        options = self.options
        maps = f" with {options.spread} flips" if options.spread else ""
        return host_keys(study, self._models, f"{options.output_format}{maps}")

    def known_host_keys(self, study: Study) -> tuple[str, ...]:
        """Return the cache keys that may have this speed, best first; maps change it little."""
        plain = host_keys(study, self._models, self.options.output_format)
        return tuple(dict.fromkeys((*self.host_keys(study), *plain)))

    def planner(self, entries: Mapping[str, ManifestEntry]) -> Planner:
        """Return the planner for an output folder with these entries in its manifest."""
        model, back = self.model, self.back
        rule = cycle_rule(model.card, back.identity) if back else None
        return Planner.of(
            self.request.output,
            entries,
            self.recipe,
            self.options,
            model.card,
            model.sha256,
            rule,
        )

    def plan(self) -> tuple[PlannedStudy, ...]:
        """Return the planned work of a run on each study; writes nothing."""
        return self.planner(load(self.request.output)).plan(self.discovery.studies)


def open_job(request: Request, model: Model | None = None) -> Job:
    """Check a request against model and device, and find its studies; reads no scan.

    model: the request's, if it was read already. Raises ModelFileError, PatchShapeError,
    DeviceUnavailableError, SettingsError or ScanError.
    """
    job = checked_job(request, model or load_model(request.model))
    return replace(job, discovery=request.search(job.model))


@contextmanager
def begun_job(request: Request, early: EarlyStart | None) -> Iterated[Job]:
    """Open a job as `open_job` does; after an early start on a single GPU, open the network while
    studies are searched.

    `run_job` uses the job's networks and spares. early: of the request's model and devices. Its
    spare workers report the GPUs; without them, the driver is started here.
    """
    if early is None:
        yield open_job(request)
        return
    model, spares = early.read_model(), early.spares
    job = checked_job(request, model, spares.gpus() if spares else ())
    with _networks_of(job) as networks:
        # Only where the memory of a GPU is not shared with another network.
        if job.devices[0].kind == "cuda" and len(job.devices) == 1 and not job.back:
            networks.open_early(model, job.options)
        job = replace(job, networks=networks, spares=spares)
        yield replace(job, discovery=request.search(model))


def checked_job(request: Request, model: Model, gpus: Collection[CudaDevice] = ()) -> Job:
    """Return the job of a request before its studies are known. Raises as `open_job` does."""
    back = load_reverse_model(model, request.options)
    asked = with_reverse_hash(request.options, back)
    devices, options = decided(model, request.device, request.limits, asked, back, gpus)
    return Job(request, model, devices, options, Discovery((), ()), back)


def _networks_of(job: Job) -> Networks:
    return Networks(job.devices[0])


def run_job(
    job: Job,
    listen: Listen,
    confirm: Callable[[], None] = lambda: None,
    *,
    isolated: bool = False,
) -> BatchReport:
    """Translate pending studies. A KeyboardInterrupt ends the batch early, still with a report.

    confirm: called before the first study if results of another model or of other settings would be
    replaced; an exception that it raises leaves them as they are. isolated: whether even a single
    device has a process of its own. Raises OutputFolderError or EngineError, before the first
    study.
    """
    started, start = datetime.now().astimezone(), time.perf_counter()
    with _opened(job) as manifest:
        planned = _planned(job, manifest)
        timeline, opening = Timeline(start), Opening()

        def handle(event: Event) -> None:
            timeline.handle(event)
            opening.handle(event)
            if isinstance(event, DeviceOpened):
                event = DeviceOpened(event.device, job.devices[0].note)
            listen(event)

        _announce(manifest, planned, listen, confirm)
        buses = dict.fromkeys(device.bus for device in job.devices if device.kind == "cuda")
        meter = EnergyMeter([*buses])
        with nullcontext(job.networks) if job.networks else _networks_of(job) as networks:
            opens = any(study.action == "translate" for study in planned)
            kind = JobKind(job.model, job.options, job.recipe, job.back, opens)
            batch = batch_on(
                job.devices,
                kind,
                with_aliases(planned),
                manifest,
                networks,
                job.spares,
                isolated=isolated,
            )
            rows = run_batch(planned, batch, handle)
        energy = meter.read()
        rows = _without_lost(rows, manifest.place)
        report = replace(
            empty_report(job, started),
            device=", ".join(timeline.devices),
            seconds=time.perf_counter() - start,
            use=timeline.use(),
            studies=timeline.dated(rows),
            not_reached=len(planned) - len(rows),
            energy=energy,
        )
        _keep(job, report, planned, manifest)
    _remember(job, planned, rows, opening)
    return report


def empty_report(job: Job, started: datetime) -> BatchReport:
    """Return the report of a job of which no study was reached."""
    return BatchReport(
        model=_named_model(job),
        options=job.options,
        device="",
        output=job.request.output,
        started=iso_time(started),
        seconds=0.0,
        use=Timeline(0.0).use(),
        studies=(),
        skipped=tuple(
            Skip(skip.path, skip.reason, skip.missed, skip.kind) for skip in job.discovery.skipped
        ),
        ignored=job.discovery.ignored,
        not_reached=len(job.discovery.studies),
    )


def announced(
    job: Job, manifest: Manifest, listen: Listen, confirm: Callable[[], None]
) -> tuple[PlannedStudy, ...]:
    """Return the planned work on each study, after it was announced and confirmed.

    For a run whose shards bring the output folder up to date. listen, confirm: as for `run_job`.
    """
    planned = job.planner(manifest.entries).plan(job.discovery.studies)
    _announce(manifest, planned, listen, confirm)
    return planned


def _announce(
    manifest: Manifest,
    planned: tuple[PlannedStudy, ...],
    listen: Listen,
    confirm: Callable[[], None],
) -> None:
    for remark in _remarks(manifest, planned):
        listen(Remark(remark))
    if any(study.differs for study in planned):
        confirm()
    listen(BatchStarted(planned))


@contextmanager
def _opened(job: Job) -> Iterated[Manifest]:
    """Open the manifest, for this run alone or for a shard together with others.

    Raises OutputFolderError, also if the same shard is at work already.
    """
    output, shard = job.request.output, job.request.shard
    if shard is None:
        with Manifest(output) as manifest:
            yield manifest
        return
    with (
        Manifest(output, shared=job.sharers, begins_anew=job.options.overwrite) as manifest,
        manifest.sole(f"shard-{shard.number}-of-{shard.count}.lock", f"Shard {shard}"),
    ):
        yield manifest


def _keep(
    job: Job, report: BatchReport, planned: Sequence[PlannedStudy], manifest: Manifest
) -> None:
    """Keep the report in the record, joined with those of earlier runs and of other shards."""
    from .results.kept_report import keep_report, keep_shard_report  # late: after the results

    names = [str(each.study.name) for each in planned]
    if shard := job.request.shard:
        with manifest.alone():
            keep_shard_report(report, names, shard, job.discovery.elsewhere)
    else:
        keep_report(report, names)


def _planned(job: Job, manifest: Manifest) -> tuple[PlannedStudy, ...]:
    """Return the planned work on each study, and bring the output folder up to date for it."""
    output = job.request.output
    remove_leftovers(output)
    planned = job.planner(manifest.entries).plan(job.discovery.studies)
    if job.options.layout == "bids":
        named = [each.study for each in planned if not each.study.blocker]
        with manifest.alone():
            BidsDataset.of(output, job.model.card, job.options).describe(named, job.model.sha256)
    for study in planned:
        if study.refreshed:
            manifest.append(study.refreshed)
    return planned


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def _named_model(job: Job) -> ModelName:
    card, sha256 = job.model.card, job.model.sha256
    path, established = job.request.model, card.established.in_words
    return ModelName(card.name, path, sha256, established, card.results)


def _remarks(manifest: Manifest, planned: Sequence[PlannedStudy]) -> Iterator[str]:
    """Yield remarks of one sentence each.

    manifest: manifest of the output folder, open. planned: studies planned in its folder.
    """
    output, record = manifest.output, manifest.record
    if manifest.remark:
        yield manifest.remark
    if is_inside(record) and any(is_series(each.study.format, each.target) for each in planned):
        yield (
            f"{output} contains the record of the results, {record}, too; exclude it when you send "
            "the folder."
        )
    if not manifest.entries and any(_is_occupied(study) for study in planned):
        yield (
            f"There is no record of the files in {output}, so none of them counts as written by "
            "this program; if the folder was moved or renamed, move the record that was next to "
            f"it to {record}."
        )
    if count := sum(study.differs for study in planned):
        results = f"{count} results" if count > 1 else "1 result"
        yield (
            f"{results} in {output}, of another model or other settings, will be replaced, with "
            "previews and maps; to keep them, stop now and choose another output folder."
        )


def _is_occupied(planned: PlannedStudy) -> bool:
    """Return whether a study is refused because of the output folder, not because of its inputs."""
    return planned.action == "refuse" and planned.study.blocker is None


def _without_lost(rows: tuple[StudyReport, ...], place: OutputPlace) -> tuple[StudyReport, ...]:
    """Return the rows, with finished ones failed if the output folder was moved or removed."""
    try:
        place.check()
    except WriteError as error:
        failure = failure_of(error, "write")
        return tuple(
            replace(row, status="failed", failure=failure) if row.is_done else row for row in rows
        )
    return rows


def new_device_note(job: Job) -> str:
    """Return why no GPU is used, or "" if an earlier batch on this machine had the same note."""
    if job.request.device == "cpu":
        return ""
    return new_note(job.devices[0].note or "", RateCache(cache_folder()))


def _remember(
    job: Job, planned: Sequence[PlannedStudy], rows: Sequence[StudyReport], opening: Opening
) -> None:
    """Store the measured speeds of this batch, for plans of the next."""
    whole_volume = job.options.inference == "volume"
    found: dict[str, Rates] = {}
    if verify := VerifyRates.measured(rows, whole_volume=whole_volume):
        found[job.verify_key] = verify
    if opening.seconds is not None and (
        network := NetworkRates.measured(rows, opening.seconds, whole_volume=whole_volume)
    ):
        found |= dict.fromkeys((job.network_key, job.opening_key), network)
    keys = {str(plan.study.name): job.host_keys(plan.study) for plan in planned}
    by_keys: dict[tuple[str, str], list[StudyReport]] = {}
    for row in rows:
        by_keys.setdefault(keys[row.name], []).append(row)
    for of_kind, alike in by_keys.items():
        if host := HostRates.measured(alike):
            # The preparation and finishing times of a back-translation fit no other batch.
            found |= dict.fromkeys(of_kind[:1] if job.back else of_kind, host)
    RateCache(cache_folder()).put(found)
