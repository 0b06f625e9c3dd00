"""What a batch would do and cost: everything short of the network, and nothing is written."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ..engine.cuda.plan_cache import cache_folder
from ..engine.devices import plan_device
from .progress.rates import (
    HostRates,
    NetworkRates,
    RateCache,
    StageConcurrency,
    VerifyRates,
    Work,
    wall_seconds,
)
from .report.failures import failure_of
from .report.report import Failure
from .results.aliases import with_aliases
from .results.resume import PlannedStudy
from .stopwatch import Stopwatch
from .study.sliding_window import window_grid
from .study.tiling import Tiling
from .study.translation import PreparedStudy, plan_read_study, prepare_study, read_study
from .study.verification import chosen_places
from .translate import Job, concurrency_of

if TYPE_CHECKING:
    from ..engine.cuda.device_plan import DevicePlan
    from ..engine.sliding_window import PatchGrid


@dataclass(frozen=True, slots=True)
class DryRow:
    """One study: its plan, what it would take if it is due, and why it would fail if it would.

    notes: what a user should know about how it is taken, as far as that is known.
    host_bytes: held at its largest, besides the program itself. device_bytes: held on a card while
    it is translated alone, the program included; None on the CPU and where nobody knows yet. work:
    None if nothing of the kind was measured on this machine yet. planned: its plan. grid: where its
    tiles lie, None if it is not due. failure: None if nothing is in its way. again: tiles to be
    computed a second time, on the CPU. passes: how many times each tile is translated.
    """

    planned: PlannedStudy
    notes: tuple[str, ...] = ()
    grid: "PatchGrid | None" = None
    host_bytes: int = 0
    device_bytes: int | None = None
    work: Work | None = None
    failure: Failure | None = None
    again: int = 0
    passes: int = 1

    @property
    def tiles(self) -> int:
        return self.passes * prod(map(len, self.grid.origins)) if self.grid else 0


@dataclass(frozen=True, slots=True)
class DryRun:
    """A batch that was only planned.

    devices: what each card would hold besides arrays; none for the CPU. device_bytes: of each, with
    as many arrays as may be there at the same time, the largest. seconds: of the whole batch; None
    if not known for each study that is due. rows: of all studies, in order. verifying: seconds of
    it in which the CPU computes tiles a second time; None if not known.
    """

    rows: tuple[DryRow, ...]
    devices: "tuple[DevicePlan, ...]"
    device_bytes: tuple[int | None, ...]
    seconds: float | None
    verifying: float | None = None


def dry_run(job: Job, tell: Callable[[int, int], None] = lambda _done, _all: None) -> DryRun:
    """Plan a job; studies that are due are read and prepared, one at a time.

    tell: is told how many of all studies are done.
    Raises DeviceMemoryError if a card has no room for the program.
    """
    settings = job.settings
    plans = [
        plan_device(job.model.network, device, settings.precision, settings.patch)
        for device in job.devices
    ]
    cards = tuple(plan for plan in plans if plan)
    foresight = _Foresight(job, cards)
    studies, rows = job.plan(), list[DryRow]()
    for planned in with_aliases(studies):
        tell(len(rows), len(studies))
        rows += foresight.rows(planned)
    places = {planned.study.name: at for at, planned in enumerate(studies)}
    rows.sort(key=lambda row: places[row.planned.study.name])
    grids = [row.grid for row in rows if row.grid]
    at_once = concurrency_of(job.devices[0], len(job.devices)).networks
    held = tuple(card.held(grids, at_once) for card in cards)
    verifying = foresight.verifying(sum(row.again for row in rows))
    return DryRun(tuple(rows), cards, held, foresight.wall(rows), verifying)


class _Foresight:
    """Judges studies by what earlier batches and the search for plans have measured."""

    def __init__(self, job: Job, cards: "Sequence[DevicePlan]") -> None:
        self._job = job
        self._cards = cards
        self._cache = RateCache(cache_folder())
        self._network = self._cache.get(NetworkRates, job.network_key)

    def rows(self, planned: PlannedStudy) -> list[DryRow]:
        """Of a study and its aliases, which only have to be stored."""
        row = self._row(planned)
        work = row.work and replace(row.work, load=0.0, network=0.0)
        return [row, *(replace(row, planned=alias, work=work) for alias in planned.aliases)]

    def _row(self, planned: PlannedStudy) -> DryRow:
        if planned.action != "translate":
            return DryRow(planned, planned.study.notes, failure=planned.refusal)
        job, watch, notes = self._job, Stopwatch(), planned.study.notes
        try:
            scans = read_study(planned.study, job.options, watch)
            notes = *notes, *scans.notes
            plan = plan_read_study(scans, job.model, job.options, watch)
            study = prepare_study(scans, plan, job.model, job.options, watch)
            grid = window_grid(study.prepared.given.values, plan.tiling)
        except Exception as error:  # as in a batch, a study's trouble is its own
            return DryRow(planned, notes, failure=failure_of(error, watch.stage))
        on_card = [card.held([grid]) for card in self._cards]
        known = [size for size in on_card if size is not None]
        notes = *notes, *_padding(plan.tiling)
        again = self._again(planned, study)
        passes, voxels = job.options.passes, scans.volumes[0].voxels.size
        work = self._work(planned, voxels, passes * len(plan.tiling), again)
        device_bytes = max(known, default=None)
        peak = plan.footprint.peak
        return DryRow(planned, notes, grid, peak, device_bytes, work, again=again, passes=passes)

    def _again(self, planned: PlannedStudy, study: PreparedStudy) -> int:
        prepared, count = study.prepared, self._job.options.verify
        name = str(planned.study.name)
        places = chosen_places(prepared.given, prepared.plan.tiling, count, name) if count else ()
        return sum(len(place.tiles) for place in places)

    def verifying(self, tiles: int) -> float | None:
        """Seconds for so many tiles on the CPU; None if that was never measured."""
        if not tiles:
            return 0.0
        rates = self._cache.get(VerifyRates, self._job.verify_key)
        return rates and tiles * rates.tile

    def wall(self, rows: Sequence[DryRow]) -> float | None:
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

    def _work(self, planned: PlannedStudy, voxels: int, tiles: int, again: int) -> Work | None:
        host = self._cache.get(HostRates, *self._job.known_host_keys(planned.study))
        network, verifying = self._on_device(tiles), self.verifying(again)
        if host is None or network is None or verifying is None:
            return None
        return Work(voxels * host.load, network, voxels * host.store + verifying)

    def _on_device(self, tiles: int) -> float | None:
        """By the measured time of the very program, or else by the last batch of the kind."""
        for card in self._cards:
            if card.program and (seconds := card.program.seconds(tiles)) is not None:
                return seconds
        return tiles * self._network.tile if self._network else None


def _padding(tiling: Tiling) -> Iterator[str]:
    if tiling.padded != tiling.extents:
        small, padded = ("x".join(map(str, size)) for size in (tiling.extents, tiling.padded))
        yield f"it is smaller than a patch, and padded from {small} to {padded} voxels"
