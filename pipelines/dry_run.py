"""Dry run of a batch: its work and cost, without running the network or writing anything."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..engine.cpu.session import session_bytes
from ..engine.cpu.slabs import SlabPlan
from ..engine.cuda.user_cache import cache_folder
from ..engine.devices import choose_device, plan_device, plan_volume, with_half_the_memory
from ..engine.model.calibration import ENOUGH_STUDIES
from ..engine.model.model_file import Model
from ..engine.network.layers import Triple, triple
from ..engine.whole_volume import VolumePlan
from ..io.volume import Study, Volume
from .cycle import host_bytes, plan_back, reverse_options
from .decisions import PipelineState, pipeline_state
from .host.memory import require_memory
from .rates import (
    HostRates,
    NetworkRates,
    RateCache,
    StageConcurrency,
    VerifyRates,
    Work,
    wall_seconds,
)
from .report.report import Failure, failure_of
from .results.manifest import check_usable
from .results.resume import PlannedStudy, with_aliases
from .run.networks import maps_budget, maps_memory
from .run.pipeline import concurrency_of
from .stopwatch import Stopwatch
from .study.inference import window_grid
from .study.patches import PatchLayout
from .study.plan import StudyPlan
from .study.prepare import network_array
from .study.translator import Scans, StudyTranslator
from .study.verify import patches_again, volume_again_bytes
from .study.volumes import StudyVolumes, look_at_study, notes_of_volumes
from .translate import Job
from .whole_check import WholeCheck

if TYPE_CHECKING:
    from ..engine.cuda.patches.device_plan import DevicePlan
    from ..engine.patch_grid import PatchGrid

WholeVolume: TypeAlias = VolumePlan | SlabPlan
"""Plan of whole-volume inference: on a GPU, or on the CPU."""


@dataclass(frozen=True, slots=True)
class DryRow:
    """One study: its plan, its cost if it is pending, and its failure if it would fail.

    notes: notes for the user on how it is read, as far as known. host_bytes: peak host memory,
    models and networks included, in addition to the program itself. device_bytes: GPU memory while
    it is translated alone, the program included; None on the CPU and while unknown. work: estimated
    work; None if nothing of the kind was measured on this machine yet. planned: its plan. grid:
    grid of its patches, None if it is not pending. failure: None if there is no blocker. again:
    patches to compute a second time, on the CPU. back: patches of the back-translation, if any.
    passes: number of times each patch is translated. voxels: voxels of the scan. volume: plan of
    whole-volume inference, if used, and volume_back that of the back-translation; then the grids
    only show where borders would be. count: number of volumes that are translated one by one;
    voxels are those of one of them, again is that of all.
    """

    planned: PlannedStudy
    notes: tuple[str, ...] = ()
    grid: "PatchGrid | None" = None
    host_bytes: int = 0
    device_bytes: int | None = None
    work: Work | None = None
    failure: Failure | None = None
    again: int = 0
    back: "PatchGrid | None" = None
    passes: int = 1
    voxels: int = 0
    volume: WholeVolume | None = None
    volume_back: WholeVolume | None = None
    count: int = 1

    @property
    def patches(self) -> int:
        """Number of patches to translate, or of passes over the volume."""
        return self.passes * self.count * self._parts(self.grid)

    @property
    def patches_back(self) -> int:
        """Number of patches to translate back."""
        return self._parts(self.back)

    def _parts(self, grid: "PatchGrid | None") -> int:
        if grid is None:
            return 0
        return 1 if self.volume else prod(map(len, grid.origins))


@dataclass(frozen=True, slots=True)
class DryRun:
    """Batch that was only planned.

    devices: memory plan of each GPU without arrays, for each of its networks; none for the CPU.
    device_bytes: memory of each, with as many of the largest arrays as may exist at the same time.
    seconds: time of the whole batch; None if not known for each pending study. rows: rows of all
    studies, in order. verifying: seconds of it in which the CPU computes patches a second time;
    None if not known. pipeline: whether the model's card proves these settings from file to file.
    needs_calibration: whether the model could be calibrated, is not, and has enough studies.
    """

    rows: tuple[DryRow, ...]
    devices: "tuple[DevicePlan, ...]"
    device_bytes: tuple[int | None, ...]
    seconds: float | None
    verifying: float | None = None
    pipeline: PipelineState = "unproven"
    needs_calibration: bool = False


def dry_run(job: Job, on_progress: Callable[[int, int], None] = lambda _done, _all: None) -> DryRun:
    """Plan a job; pending studies are read and measured, one at a time, to find those that would
    fail.

    on_progress: called with the number of finished studies and of all.
    Raises DeviceMemoryError if a GPU has no memory for the program, OutputFolderError as a run.
    """
    check_usable(job.request.output)
    plans = _planned(job, job.model, job.options.opened_for)
    back = _planned(job, job.back, _patch_back(job, job.back)) if job.back else ()
    estimator = _CostEstimator(job, plans, back)
    studies, rows = job.plan(), list[DryRow]()
    for planned in with_aliases(studies):
        on_progress(len(rows), len(studies))
        rows += estimator.rows(planned)
    places = {planned.study.name: at for at, planned in enumerate(studies)}
    rows.sort(key=lambda row: places[row.planned.study.name])
    grids = [row.grid for row in rows if row.grid]
    concurrent = concurrency_of(job.devices[0], len(job.devices)).networks
    grids_back = [row.back for row in rows if row.back]
    held = [plan.held(grids, concurrent) for plan in plans]
    held += [plan.held(grids_back, concurrent) for plan in back]
    verifying = estimator.verifying(*rows)
    seconds, state = estimator.wall(rows), pipeline_state(job.model, job.options)
    usable, card = sum(row.failure is None for row in rows), job.model.card
    needs = usable >= ENOUGH_STUDIES and not card.expected and len(card.input_channels) == 1
    return DryRun(tuple(rows), (*plans, *back), tuple(held), seconds, verifying, state, needs)


def _patch_back(job: Job, back: Model) -> Triple | None:
    return reverse_options(job.options, back).opened_for


def _planned(job: Job, model: Model, patch: Triple | None) -> "tuple[DevicePlan, ...]":
    """Return the memory plan of a network on each GPU; none for volumes, planned per study."""
    if patch is None:
        return ()
    devices = map(with_half_the_memory, job.devices) if job.back else job.devices
    precision = job.options.precision
    plans = (plan_device(model.network, device, precision, patch) for device in devices)
    return tuple(plan for plan in plans if plan)


class _CostEstimator:
    """Estimator of the cost of studies, from earlier batches and tactic searches."""

    def __init__(
        self, job: Job, plans: "Sequence[DevicePlan]", back: "Sequence[DevicePlan]"
    ) -> None:
        self._job = job
        self._plans = plans
        self._back = back
        self._cache = RateCache(cache_folder())
        self._network = self._cache.get(NetworkRates, job.network_key)
        self._volumes: dict[tuple[str, Triple], WholeVolume] = {}
        self._network_bytes = _network_bytes(job)
        self._whole_check = WholeCheck(job.model, job.options, maps_memory)
        self._is_checked = False

    def rows(self, planned: PlannedStudy) -> list[DryRow]:
        """Return the rows of a study and its aliases, which only have to be stored."""
        row = self._row(planned)
        work = row.work and replace(row.work, load=0.0, network=0.0)
        return [row, *(replace(row, planned=alias, work=work) for alias in planned.aliases)]

    def _row(self, planned: PlannedStudy) -> DryRow:
        if planned.action != "translate":
            return DryRow(planned, planned.study.notes, failure=planned.refusal)
        job, timer, study, volumes = self._job, Stopwatch(), planned.study, None
        notes, noted = study.notes, list[tuple[int, str]]()
        try:
            reading_bytes = look_at_study(study, job.options).reading_bytes
            volumes = StudyVolumes(study, job.options)
            scans, plan, grid, again = self._foreseen(study, volumes, timer, noted)
            back, peak = self._back_plan(scans.volumes[0], plan)
            if volumes.is_series:
                peak += plan.footprint.stored
            require_memory(peak + volume_again_bytes(plan, job.options.verify))
            volume, volume_back = self._volume_plans(plan, back)
            again_bytes = self._again_bytes(plan)
            checked_bytes = self._checked_bytes(plan)
        except Exception as error:  # as in a batch, a failure affects only its study
            failure = failure_of(error, timer.stage, volumes.current if volumes else "")
            return DryRow(planned, (*notes, *_on_volumes(noted, volumes)), failure=failure)
        notes = *notes, *_on_volumes(noted, volumes)
        if volume is None:
            notes = *notes, *_padding(plan.layout)
        if checked_bytes:
            notes = *notes, _CHECKED
        if volumes.is_series:
            notes = *notes, f"its {volumes.count} volumes are translated one by one"
        row = DryRow(
            planned,
            notes,
            grid,
            self._network_bytes
            + max(
                reading_bytes, peak + _in_memory(volume, volume_back) + again_bytes + checked_bytes
            ),
            _gpu_bytes_of_volumes(volume, volume_back) if volume else self._gpu_bytes(grid, back),
            again=again,
            back=back,
            passes=job.options.passes,
            voxels=scans.volumes[0].voxels.size,
            volume=volume,
            volume_back=volume_back,
            count=volumes.count,
        )
        return replace(row, work=self._work(row))

    def _foreseen(
        self, study: Study, volumes: StudyVolumes, timer: Stopwatch, noted: list[tuple[int, str]]
    ) -> "tuple[Scans, StudyPlan, PatchGrid, int]":
        """Read the volumes of a study one at a time, as a batch would.

        Return the last one, its plan and patches, and the number of patches of all to compute
        again. noted: extended by the notes, each with the number of its volume.
        """
        options, again = self._job.options, 0
        translator = StudyTranslator(self._job.model, options, timer)
        while True:
            scans = translator.read(study, volumes)
            noted += [(volumes.number, note) for note in scans.notes]
            plan = translator.plan(scans)
            noted += [(volumes.number, note) for note in volumes.notes_of(scans.volumes[0], plan)]
            network_input, foreseen = translator.foresee(scans, plan)
            noted += [(volumes.number, note) for note in foreseen]
            again += patches_again(plan, network_input, options.verify, str(study.name))
            if not volumes.left:
                return scans, plan, window_grid(network_input.values, plan.layout), again
            del scans, network_input  # before the next one is read

    def _volume_plans(
        self, plan: StudyPlan, back: "PatchGrid | None"
    ) -> tuple[WholeVolume | None, WholeVolume | None]:
        """Return the plans of whole-volume inference of a study, forward and back."""
        if plan.inference == "patches":
            return None, None
        there = self._volume(self._job.model, plan.layout.extents)
        if back is None or self._job.back is None:
            return there, None
        extents = triple(back.extents[back.axes.index(axis)] for axis in range(3))
        return there, self._volume(self._job.back, extents)

    def _volume(self, model: Model, extents: Triple) -> WholeVolume:
        """Return the plan for these extents, computed only once, as it opens the GPU."""
        key = model.sha256, extents
        if key not in self._volumes:
            job = self._job
            device = with_half_the_memory(job.devices[0]) if job.back else job.devices[0]
            self._volumes[key] = plan_volume(
                model.network, device, job.options.precision, extents, maps_budget(device)
            )
        return self._volumes[key]

    def _again_bytes(self, plan: StudyPlan) -> int:
        """Return the host bytes for a volume that the CPU computes a second time."""
        model = self._job.model
        own_bytes = volume_again_bytes(plan, self._job.options.verify)
        if not own_bytes:
            return 0
        extents = plan.layout.extents
        again = plan_volume(model.network, choose_device("cpu"), "fp32", extents, maps_memory)
        return own_bytes + again.host_bytes

    def _checked_bytes(self, plan: StudyPlan) -> int:
        """Return the host bytes for the whole volume of the first study, if that is compared."""
        if self._is_checked or not self._whole_check.is_due(plan):
            return 0
        self._is_checked = True
        return self._whole_check.host_bytes(plan)

    def _back_plan(self, volume: Volume, plan: StudyPlan) -> "tuple[PatchGrid | None, int]":
        """Return the grid of the back-translation, and the study's host bytes including it."""
        if self._job.back is None:
            return None, plan.footprint.peak
        back = plan_back(volume, self._job.back, self._job.options)
        view = back.orientation.oriented(volume.voxels)
        array = network_array(view, 1, back, np.empty)
        return window_grid(array, back.layout), host_bytes(volume, plan, back, self._job.options)

    def _gpu_bytes(self, grid: "PatchGrid", back: "PatchGrid | None") -> int | None:
        """Return the GPU bytes for a study alone, for all its networks; None if not known."""
        known = [plan.held([grid]) for plan in self._plans]
        largest = max((size for size in known if size is not None), default=None)
        if largest is None or back is None:
            return largest
        returning = [plan.held([back]) for plan in self._back]
        most = max((size for size in returning if size is not None), default=None)
        return None if most is None else largest + most

    def verifying(self, *rows: DryRow) -> float | None:
        """Return the seconds of recomputing parts of rows on the CPU; None if never measured."""
        again = sum(row.again * (row.voxels if row.volume else 1) for row in rows)
        if not again:
            return 0.0
        rates = self._cache.get(VerifyRates, self._job.verify_key)
        return rates and again * rates.tile

    def wall(self, rows: Sequence[DryRow]) -> float | None:
        """Return the seconds of the whole batch; None if not known for each pending study."""
        due = [row for row in rows if row.grid]
        works = [row.work for row in due if row.work]
        if not due or len(works) < len(due):
            return None
        count = len(self._job.devices)
        concurrency = concurrency_of(self._job.devices[0], count)
        last = self._cache.get(NetworkRates, self._job.network_key, self._job.opening_key)
        opening = last.opening if last else 0.0
        return wall_seconds(
            works,
            StageConcurrency(
                concurrency.readers * count, count, concurrency.writers * count, opening
            ),
        )

    def _work(self, row: DryRow) -> Work | None:
        voxels = row.voxels * row.count
        host = self._cache.get(HostRates, *self._job.known_host_keys(row.planned.study))
        network, verifying = self._on_device(row), self.verifying(row)
        if host is None or network is None or verifying is None:
            return None
        return Work(voxels * host.load, network, voxels * host.store + verifying)

    def _of_volume(self, row: DryRow, volume: WholeVolume) -> float | None:
        """Return the seconds by the GPU's plan, or else by the last batch of the kind."""
        there, back = _seconds(volume), _seconds(row.volume_back) if row.volume_back else 0.0
        if there is not None and back is not None:
            return row.patches * there + row.patches_back * back
        return row.patches * row.voxels * self._network.tile if self._network else None

    def _on_device(self, row: DryRow) -> float | None:
        """Return the seconds by the programs' timings, or else by the last batch of the kind."""
        if row.volume:
            return self._of_volume(row, row.volume)
        forward = _program_seconds(self._plans, row.patches)
        back = _program_seconds(self._back, row.patches_back) if row.back else 0.0
        if forward is not None and back is not None:
            return forward + back
        return row.patches * self._network.tile if self._network else None


def _network_bytes(job: Job) -> int:
    """Return the host bytes of the models, and of their CPU networks with a patch of each.

    The memory of whole-volume inference is added to its study.
    """
    on_cpu = job.devices[0].kind != "cuda"
    opened = [(job.model, job.options.opened_for if on_cpu else None, on_cpu)]
    if job.back:
        opened.append((job.back, _patch_back(job, job.back) if on_cpu else None, on_cpu))
    if job.options.verify and job.options.opened_for:
        opened.append((job.model, job.options.opened_for, True))
    models = {model.sha256: model for model, _, _ in opened}.values()
    weights = (array.nbytes for model in models for array in model.network.weights.values())
    sessions = (session_bytes(model.network, patch) for model, patch, opens in opened if opens)
    return sum(weights) + sum(sessions)


def _gpu_bytes_of_volumes(*volumes: WholeVolume | None) -> int | None:
    """Return the GPU bytes for a study whose networks are all open at the same time."""
    sizes = [volume.device_bytes for volume in volumes if isinstance(volume, VolumePlan)]
    return sum(sizes) if sizes else None


def _in_memory(*volumes: WholeVolume | None) -> int:
    """Return the host bytes for feature maps: pinned ones are kept, others exist in turn."""
    pinned = [volume.host_bytes for volume in volumes if isinstance(volume, VolumePlan)]
    slabs = [volume.host_bytes for volume in volumes if isinstance(volume, SlabPlan)]
    return sum(pinned) + max(slabs, default=0)


def _seconds(volume: WholeVolume) -> float | None:
    return volume.seconds if isinstance(volume, VolumePlan) else None


def _program_seconds(plans: "Sequence[DevicePlan]", patches: int) -> float | None:
    for plan in plans:
        if plan.program and (seconds := plan.program.seconds(patches)) is not None:
            return seconds
    return None


def _on_volumes(noted: Sequence[tuple[int, str]], volumes: StudyVolumes | None) -> Iterator[str]:
    """Return notes on a study's only volume unchanged, and on a series' with volume numbers."""
    if volumes and volumes.is_series:
        return notes_of_volumes(noted, volumes.count)
    return (note for _, note in noted)


_CHECKED = (
    "its whole volume will be computed, too, once for this model and these patches, to measure the "
    "difference"
)


def _padding(layout: PatchLayout) -> Iterator[str]:
    if layout.padded != layout.extents:
        small, padded = ("x".join(map(str, size)) for size in (layout.extents, layout.padded))
        yield f"it is smaller than a patch, and padded from {small} to {padded} voxels"
