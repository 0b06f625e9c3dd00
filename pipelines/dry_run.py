"""Dry run of a batch: its work and cost, without running the network or writing anything."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..engine.errors import EngineError
from ..engine.model.calibration import ENOUGH_STUDIES
from ..engine.options import Inference
from ..io.volume import Study
from .cycle import reverse_options
from .decisions import PipelineState, check_model, pipeline_state
from .errors import SettingsError
from .mode_cost import ForeseenStudy, ModeEstimator, StudyCost, in_other_mode
from .report.report import Failure, failure_of
from .results.manifest import check_usable
from .results.resume import PlannedStudy, with_aliases
from .run.pipeline import concurrency_of
from .stopwatch import Stopwatch
from .study.inference import window_grid
from .study.patches import PatchLayout
from .study.translator import StudyTranslator
from .study.verify import patches_again
from .study.volumes import StudyVolumes, look_at_study, notes_of_volumes
from .translate import Job

if TYPE_CHECKING:
    from ..engine.cuda.patches.device_plan import DevicePlan
    from ..engine.patch_grid import PatchGrid


@dataclass(frozen=True, slots=True)
class DryRow:
    """One study: its plan, its cost if it is pending, and its failure if it would fail.

    notes: notes for the user on how it is read, as far as known. planned: its plan. grid: grid of
    its patches, None if it is not pending. cost: cost in the batch's mode of inference. other: cost
    in the other mode, or its failure there; None if that was not estimated. failure: None if there
    is no blocker. passes: number of times each patch is translated. voxels: voxels of the scan.
    count: number of volumes that are translated one by one; voxels are those of one of them.
    """

    planned: PlannedStudy
    notes: tuple[str, ...] = ()
    grid: "PatchGrid | None" = None
    cost: StudyCost = field(default_factory=StudyCost)
    other: StudyCost | Failure | None = None
    failure: Failure | None = None
    passes: int = 1
    voxels: int = 0
    count: int = 1

    @property
    def patches(self) -> int:
        """Number of patches to translate, or of passes over the volume."""
        return self.passes * self.count * self.cost.inputs(self.grid)


@dataclass(frozen=True, slots=True)
class OtherMode:
    """The batch in the other mode of inference.

    inference: that mode. is_same: whether both modes compute the same function, apart from borders
    of patches. seconds: time of the whole batch; None if not known for each pending study.
    host_bytes, device_bytes: memory of the study that needs most; device_bytes is None on the CPU
    and while unknown. failures: of the pending studies that would fail.
    """

    inference: Inference
    is_same: bool
    seconds: float | None
    host_bytes: int
    device_bytes: int | None
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """Batch that was only planned.

    devices: memory plan of each GPU without arrays, for each of its networks; none for the CPU.
    device_bytes: memory of each, with as many of the largest arrays as may exist at the same time.
    seconds: time of the whole batch; None if not known for each pending study. rows: rows of all
    studies, in order. verifying: seconds of it in which the CPU computes patches a second time;
    None if not known. pipeline: whether the model's card proves these settings from file to file.
    other: the batch in the other mode of inference; None if there is no choice.
    needs_calibration: whether the model could be calibrated, is not, and has enough studies.
    """

    rows: tuple[DryRow, ...]
    devices: "tuple[DevicePlan, ...]"
    device_bytes: tuple[int | None, ...]
    seconds: float | None
    verifying: float | None = None
    pipeline: PipelineState = "unproven"
    other: OtherMode | None = None
    needs_calibration: bool = False


def dry_run(job: Job, on_progress: Callable[[int, int], None] = lambda _done, _all: None) -> DryRun:
    """Plan a job; pending studies are read and measured, one at a time, to find those that would
    fail.

    on_progress: called with the number of finished studies and of all.
    Raises DeviceMemoryError if a GPU has no memory for the program, OutputFolderError as a run.
    """
    check_usable(job.request.output)
    estimator, other = ModeEstimator(job), _other_mode(job)
    plans, back = estimator.plans, estimator.plans_back
    reader = _Reader(job, estimator, other)
    studies, rows = job.plan(), list[DryRow]()
    for planned in with_aliases(studies):
        on_progress(len(rows), len(studies))
        rows += reader.rows(planned)
    places = {planned.study.name: at for at, planned in enumerate(studies)}
    rows.sort(key=lambda row: places[row.planned.study.name])
    due = [row for row in rows if row.grid]
    concurrent = concurrency_of(job.devices[0], len(job.devices)).networks
    grids = [row.grid for row in due if row.grid]
    grids_back = [row.cost.back for row in due if row.cost.back]
    held = [plan.held(grids, concurrent) for plan in plans]
    held += [plan.held(grids_back, concurrent) for plan in back]
    return DryRun(
        tuple(rows),
        (*plans, *back),
        tuple(held),
        estimator.wall([row.cost for row in due]),
        _sum_of_known([row.cost.verifying for row in due]),
        pipeline_state(job.model, job.options),
        other and _of_other_mode(job, other, due),
        _needs_calibration(job, rows),
    )


def _needs_calibration(job: Job, rows: Sequence[DryRow]) -> bool:
    usable, card = sum(row.failure is None for row in rows), job.model.card
    return usable >= ENOUGH_STUDIES and not card.expected and len(card.input_channels) == 1


def _other_mode(job: Job) -> ModeEstimator | None:
    """Return the estimator of the other mode of inference; None if there is no choice.

    There is one if both modes compute the same function or the model's card prefers one, and if the
    device supports both.
    """
    if not (job.model.modes_agree or job.model.card.inference):
        return None
    other = in_other_mode(job)
    try:
        check_model(job.model, other.options, job.devices[0])
        if job.back:
            check_model(job.back, reverse_options(other.options, job.back), job.devices[0])
    except (EngineError, SettingsError):
        return None
    return ModeEstimator(other)


def _of_other_mode(job: Job, other: ModeEstimator, due: Sequence[DryRow]) -> OtherMode | None:
    """Return the pending studies in the other mode; None if there are none."""
    if not due:
        return None
    costs = [row.other for row in due if isinstance(row.other, StudyCost)]
    failures = (row.other for row in due if isinstance(row.other, Failure))
    return OtherMode(
        other.inference,
        job.model.modes_agree,
        other.wall(costs),
        max((cost.host_bytes for cost in costs), default=0),
        _largest([cost.device_bytes for cost in costs]),
        tuple(failures),
    )


def _sum_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _largest(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


class _Reader:
    """Reader of pending studies, as a batch reads them; each is read once for all estimates.

    estimator: of the job's mode of inference. other: of the other mode, if there is a choice.
    """

    def __init__(self, job: Job, estimator: ModeEstimator, other: ModeEstimator | None) -> None:
        self._job, self._estimator, self._other = job, estimator, other

    def rows(self, planned: PlannedStudy) -> list[DryRow]:
        """Return the rows of a study and its aliases, which only have to be stored."""
        row = self._row(planned)
        other = row.other.of_copy if isinstance(row.other, StudyCost) else row.other
        copy = replace(row, cost=row.cost.of_copy, other=other)
        return [row, *(replace(copy, planned=alias) for alias in planned.aliases)]

    def _row(self, planned: PlannedStudy) -> DryRow:
        if planned.action != "translate":
            return DryRow(planned, planned.study.notes, failure=planned.refusal)
        job, timer, study, volumes = self._job, Stopwatch(), planned.study, None
        notes, noted = study.notes, list[tuple[int, str]]()
        try:
            reading_bytes = look_at_study(study, job.options).reading_bytes
            volumes = StudyVolumes(study, job.options)
            seen = self._foreseen(study, volumes, reading_bytes, timer, noted)
            cost = self._estimator.cost(seen)
        except Exception as error:  # as in a batch, a failure affects only its study
            failure = failure_of(error, timer.stage, volumes.current if volumes else "")
            return DryRow(planned, (*notes, *_on_volumes(noted, volumes)), failure=failure)
        notes = *notes, *_on_volumes(noted, volumes)
        if cost.volume is None:
            notes = *notes, *_padding(seen.plan.layout)
        if cost.is_checked:
            notes = *notes, _CHECKED
        if volumes.is_series:
            notes = *notes, f"its {volumes.count} volumes are translated one by one"
        return DryRow(
            planned,
            notes,
            seen.grid,
            cost,
            self._in_other_mode(seen),
            passes=job.options.passes,
            voxels=seen.volumes[0].voxels.size,
            count=volumes.count,
        )

    def _in_other_mode(self, seen: ForeseenStudy) -> StudyCost | Failure | None:
        if self._other is None:
            return None
        try:
            return self._other.cost(seen)
        except Exception as error:  # as above
            return failure_of(error, "prepare")

    def _foreseen(
        self,
        study: Study,
        volumes: StudyVolumes,
        reading_bytes: int,
        timer: Stopwatch,
        noted: list[tuple[int, str]],
    ) -> ForeseenStudy:
        """Read the volumes of a study one at a time, as a batch would, and return the last one.

        noted: extended by the notes, each with the number of its volume.
        """
        options = self._job.options
        again: dict[Inference, int] = {"patches": 0, "volume": 0}
        translator = StudyTranslator(self._job.model, options, timer)
        while True:
            scans = translator.read(study, volumes)
            noted += [(volumes.number, note) for note in scans.notes]
            plan = translator.plan(scans)
            noted += [(volumes.number, note) for note in volumes.notes_of(scans.volumes[0], plan)]
            network_input, foreseen = translator.foresee(scans, plan)
            noted += [(volumes.number, note) for note in foreseen]
            for inference in again:
                in_mode = replace(plan, inference=inference)
                again[inference] += patches_again(
                    in_mode, network_input, options.verify, str(study.name)
                )
            if not volumes.left:
                grid = window_grid(network_input.values, plan.layout)
                return ForeseenStudy(
                    study,
                    scans.volumes,
                    plan,
                    grid,
                    volumes.count,
                    volumes.is_series,
                    reading_bytes,
                    again,
                )
            del scans, network_input  # before the next one is read


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
