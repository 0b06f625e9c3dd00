"""The main job: from input paths and a model file to a folder of results and a report."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Generator as Iterated
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime

from ..engine.cores import usable_cores
from ..engine.cuda.user_cache import cache_folder
from ..engine.devices import Device, in_a_process_of_its_own, with_half_the_memory
from ..engine.model.model_file import Model, load_model
from ..engine.probe.gpus import CudaDevice, EnergyMeter
from ..io.discovery import Discovery
from ..io.errors import WriteError
from ..io.files.parts import remove_leftovers
from ..io.volume import Study
from .cycle import back_model, back_options, check_read, cycle_rule
from .decisions import decided
from .events import BatchStarted, DeviceOpened, Event, Listen, Remark
from .execution.batch import Execution, run_batch
from .execution.network_opening import EarlyOpening, early_opening
from .execution.study_pipeline import Concurrency, StudyPipeline
from .host.memory import available_memory
from .opening import Opener
from .rates import (
    HostRates,
    NetworkRates,
    RateCache,
    VerifyRates,
    host_keys,
    network_key,
    new_note,
    opening_key,
    verify_key,
)
from .report.report import BatchReport, ModelName, Skip, StudyReport, failure_of
from .request import Request
from .results.aliases import with_aliases
from .results.bids_dataset import BidsDataset
from .results.manifest import Manifest, ManifestEntry, Recipe, load
from .results.record_folder import OutputPlace
from .results.remarks import remarks
from .results.resume import PlannedStudy, Planner
from .results.sidecar import SidecarMaker
from .settings import TranslateOptions, TranslateSettings
from .study.maps import maps_asked_for
from .timeline import Opening, Timeline
from .timestamps import iso_time
from .worker_processes.batch_worker import Setup
from .worker_processes.failover import Failover
from .worker_processes.shared_batch import SharedBatch
from .worker_processes.spare_workers import SpareWorkers


@dataclass(frozen=True, slots=True)
class Job:
    """A request that was found sound: its model read, its devices chosen, its studies found.

    options: as requested, with nothing left open. discovery: those studies, and what is none.
    back: the model that leads results back, if that is asked for. opening: its network, where that
    was begun to open. spares: workers of its cards, where they were started already.
    """

    request: Request
    model: Model
    devices: tuple[Device, ...]
    options: TranslateOptions
    discovery: Discovery
    back: Model | None = None
    opening: EarlyOpening | None = None
    spares: SpareWorkers | None = None

    @property
    def settings(self) -> TranslateSettings:
        """What changes the results."""
        return self.options.settings()

    @property
    def recipe(self) -> Recipe:
        """What the results are made with."""
        return Recipe(self.model.identity, self.settings.sha256())

    @property
    def network_key(self) -> str:
        """Under which the speed of this job's network is remembered."""
        settings = self.settings
        return network_key(self._models, settings.opened_for, settings.precision, self._devices)

    @property
    def verify_key(self) -> str:
        """Under which it is remembered how long the CPU takes for a tile, or a volume."""
        return verify_key(self.model.sha256, self.settings.opened_for)

    @property
    def opening_key(self) -> str:
        """Under which it is remembered how long its devices take to open."""
        return opening_key(self._devices)

    @property
    def _models(self) -> str:
        return f"{self.model.sha256} and {self.back.sha256}" if self.back else self.model.sha256

    @property
    def _devices(self) -> str:
        return f"{self.devices[0].kind} of --device {self.request.device}"

    def host_keys(self, study: Study) -> tuple[str, str]:
        """Under which the speed of reading and writing such studies is remembered."""
        options = self.options
        maps = f" with {options.spread} flips" if options.spread else ""
        return host_keys(study, self._models, f"{options.output_format}{maps}")

    def known_host_keys(self, study: Study) -> tuple[str, ...]:
        """Under which it may be known, the best first: without maps it is nearly the same."""
        plain = host_keys(study, self._models, self.options.output_format)
        return tuple(dict.fromkeys((*self.host_keys(study), *plain)))

    def planner(self, entries: Mapping[str, ManifestEntry]) -> Planner:
        """What judges studies against an output folder with these entries in its manifest."""
        options = self.options
        return Planner(
            self.request.output,
            entries,
            self.recipe,
            options.overwrite,
            options.preview,
            cycle_rule(self.model.card, self.back.identity) if self.back else None,
            maps_asked_for(options),
            self.model.card.words,
            SidecarMaker.of(self.model.card, self.model.sha256, options),
        )

    def plan(self) -> tuple[PlannedStudy, ...]:
        """What a run would do about each study; writes nothing."""
        return self.planner(load(self.request.output)).plan(self.discovery.studies)


def open_job(request: Request, model: Model | None = None) -> Job:
    """Check a request against model and device, and find its studies; reads no scan.

    model: the request's, if it was read already. Raises ModelFileError, PatchShapeError,
    DeviceUnavailableError, SettingsError or ScanError.
    """
    job = _checked(request, model or load_model(request.model))
    return replace(job, discovery=request.search(job.model))


@contextmanager
def begun_job(
    request: Request, read_model: Callable[[], Model], spares: SpareWorkers | None = None
) -> Iterated[Job]:
    """As `open_job`; where one card computes, the network opens while studies are looked for.

    `run_job` takes both from there. read_model: the request's, which is being read. spares: workers
    of its cards, which tell of them; without, the driver is started here.
    """
    model = read_model()
    job = _checked(request, model, spares.cards() if spares else ())
    with _opening(job) as opening:
        yield replace(job, discovery=request.search(model), opening=opening, spares=spares)


def _checked(request: Request, model: Model, cards: Collection[CudaDevice] = ()) -> Job:
    """The job of a request before its studies are known."""
    back = back_model(model, request.options)
    asked = check_read(request.options, back)
    devices, options = decided(model, request.device, request.limits, asked, back, cards)
    return Job(request, model, devices, options, Discovery((), ()), back)


def _opening(job: Job) -> AbstractContextManager[EarlyOpening | None]:
    """Of a card, which need not share its memory with another network."""
    device = job.devices[0]
    if device.kind != "cuda" or len(job.devices) > 1 or job.back:
        return nullcontext()
    settings = job.settings
    opener = Opener(job.model.network, device, settings.opened_for)
    return early_opening(opener, settings.precision)


def run_job(job: Job, listen: Listen, confirm: Callable[[], None] = lambda: None) -> BatchReport:
    """Translate what is due. A KeyboardInterrupt ends the batch early, with a report all the same.

    confirm: called before the first study if results of another model or of other settings are to
    be replaced; what it raises leaves them as they are. Raises OutputFolderError or EngineError,
    before the first study.
    """
    started, start = datetime.now().astimezone(), time.perf_counter()
    request = job.request
    with Manifest(request.output) as manifest:
        remove_leftovers(request.output)
        planned = job.planner(manifest.entries).plan(job.discovery.studies)
        if job.options.layout == "bids":
            dataset = BidsDataset.of(request.output, job.model.card, job.options)
            named = [each.study for each in planned if not each.study.obstacle]
            dataset.describe(named, job.model.sha256)
        for study in planned:
            if study.refreshed:
                manifest.append(study.refreshed)
        timeline = Timeline(start)
        opening = Opening()

        def hear(event: Event) -> None:
            timeline.hear(event)
            opening.hear(event)
            if isinstance(event, DeviceOpened):
                event = DeviceOpened(event.device, job.devices[0].note)
            listen(event)

        for remark in remarks(manifest, planned):
            listen(Remark(remark))
        if any(study.differs for study in planned):
            confirm()
        listen(BatchStarted(planned))
        meter = EnergyMeter([device.bus for device in job.devices if device.kind == "cuda"])
        rows = run_batch(planned, _execution(job, with_aliases(planned), manifest), hear)
        energy = meter.read()
        rows = _without_lost(rows, manifest.place)
    _remember(job, planned, rows, opening)
    return BatchReport(
        model=ModelName(
            job.model.card.name,
            request.model,
            job.model.sha256,
            job.model.card.established.in_words,
        ),
        options=job.options,
        device=", ".join(timeline.devices),
        output=request.output,
        started=iso_time(started),
        seconds=time.perf_counter() - start,
        use=timeline.use(),
        studies=timeline.dated(rows),
        skipped=tuple(
            Skip(skip.path, skip.reason, skip.missed, skip.kind) for skip in job.discovery.skipped
        ),
        ignored=job.discovery.ignored,
        not_reached=len(planned) - len(rows),
        energy=energy,
    )


def _without_lost(rows: tuple[StudyReport, ...], place: OutputPlace) -> tuple[StudyReport, ...]:
    """The rows, in which nothing is done if the output folder went away with it."""
    try:
        place.check()
    except WriteError as error:
        failure = failure_of(error, "write")
        return tuple(
            replace(row, status="failed", failure=failure) if row.is_done else row for row in rows
        )
    return rows


def new_device_note(job: Job) -> str:
    """Why no GPU is used, or "" if an earlier batch on this machine had the same note."""
    if job.request.device == "cpu":
        return ""
    return new_note(job.devices[0].note or "", RateCache(cache_folder()))


def _remember(
    job: Job, planned: Sequence[PlannedStudy], rows: Sequence[StudyReport], opening: Opening
) -> None:
    """Keep how fast this batch went, for plans of the next."""
    cache = RateCache(cache_folder())
    at_once = job.settings.inference == "volume"
    if verify := VerifyRates.measured(rows, at_once=at_once):
        cache.put(verify, job.verify_key)
    if opening.seconds is not None and (
        network := NetworkRates.measured(rows, opening.seconds, at_once=at_once)
    ):
        cache.put(network, job.network_key, job.opening_key)
    keys = {str(plan.study.name): job.host_keys(plan.study) for plan in planned}
    by_keys: dict[tuple[str, str], list[StudyReport]] = {}
    for row in rows:
        by_keys.setdefault(keys[row.name], []).append(row)
    for of_kind, alike in by_keys.items():
        if host := HostRates.measured(alike):
            # What a back-translation prepares and finishes is of use to no other batch.
            cache.put(host, *(of_kind[:1] if job.back else of_kind))


def _execution(job: Job, planned: Sequence[PlannedStudy], manifest: Manifest) -> Execution:
    """One device in this process as long as it works, or several in a process each.

    None is opened where nothing is to be translated.
    """
    setup = _setup(job, job.devices[0], manifest.place)
    if all(study.action != "translate" for study in planned):
        return StudyPipeline(setup.task(manifest, None), planned, setup.concurrency)
    of_workers = [
        _setup(job, device, manifest.place, in_a_process_of_its_own) for device in job.devices
    ]
    if len(job.devices) > 1:
        return SharedBatch(of_workers, planned, manifest, spares=job.spares)
    task = setup.task(manifest, job.opening or setup.open_generator)
    return Failover(
        planned,
        StudyPipeline(task, planned, setup.concurrency),
        lambda left, outcomes: SharedBatch(of_workers, left, manifest, outcomes),
    )


def _setup(
    job: Job,
    device: Device,
    place: OutputPlace,
    seen: Callable[[Device], Device] = lambda device: device,
) -> Setup:
    """seen: the device as the process has it that opens it."""
    back = job.back
    opened_on = seen(with_half_the_memory(device) if back else device)
    return Setup(
        name=device.name,
        model=job.model,
        options=job.options,
        open_generator=Opener(job.model.network, opened_on, job.settings.opened_for),
        precisions=device.precisions,
        place=place,
        recipe=job.recipe,
        concurrency=concurrency_of(device, sharing=len(job.devices)),
        back=back,
        open_back=back
        and Opener(back.network, opened_on, back_options(job.options, back).settings().opened_for),
    )


def concurrency_of(device: Device, sharing: int = 1) -> Concurrency:
    """How much of this machine goes to one of `sharing` devices.

    Half of the memory that is free, at most. In ONNX Runtime the network needs all
    cores, so one study is read and one stored beside it. A card is fed by many threads, most of
    them readers: one thread unpacks a file, several pack one.
    """
    memory = available_memory() // (2 * sharing)
    if device.kind != "cuda":
        return Concurrency(memory)
    cores = usable_cores() // sharing
    readers, writers = min(6, cores * 3 // 8), min(4, cores // 4)
    return Concurrency(memory, readers=max(1, readers), networks=2, writers=max(1, writers))
