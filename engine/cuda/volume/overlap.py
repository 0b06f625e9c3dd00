"""Overlap of the first pass with the input copy, and of the last pass with the output copy."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from ...compiler.blocks import BlockGrid, BlockRun
from ...compiler.steps import AddPatches, Conv, Pack
from ...compiler.volume.passes import Pass
from .program import PassInRuns


@dataclass(frozen=True, slots=True)
class AxisRows:
    """Rows of a volume along one of its axes.

    axis: 0 for D. start, stop: rows [start, stop).
    """

    axis: int
    start: int
    stop: int

    def hold(self, other: "AxisRows") -> bool:
        """Return whether these rows contain all of the others, of the same axis."""
        return self.start <= other.start and other.stop <= self.stop

    def meet(self, other: "AxisRows") -> bool:
        """Return whether these rows overlap the others, of the same axis."""
        return self.start < other.stop and other.start < self.stop


QueueWork: TypeAlias = Callable[[Hashable, Callable[[], None]], None]
"""Queue work, named by the first argument, by calling the second, or as a graph captured before."""


class RunsByRows:
    """A pass whose runs are queued by their position. left: those that are not queued yet."""

    def __init__(
        self,
        queued: PassInRuns,
        on_first: Callable[[], None],
        on_last: Callable[[], None],
        queue_work: QueueWork,
    ) -> None:
        """on_first, on_last: called before the first run is queued, and after the last one."""
        self.queued = queued
        self.left = list(queued.runs)
        self._on_first, self._on_last, self._queue_work = on_first, on_last, queue_work
        self._rows: dict[int, AxisRows] = {}

    def queue_those_that_read(self, rows: AxisRows) -> None:
        """Queue all runs that need no other rows of the input volume."""
        if _reads_rows(self.queued.one):
            read = self._rows_of_runs(self._read_by, rows.axis)
            self._queue_if(lambda run: rows.hold(read[run.first]))

    def queue_those_that_write(self, rows: AxisRows) -> None:
        """Queue all runs that write some of these rows of the output volume."""
        if _writes_rows(self.queued.one):
            written = self._rows_of_runs(self._written_by, rows.axis)
            self._queue_if(lambda run: rows.meet(written[run.first]))
        else:
            self.queue_all()

    def queue_all(self) -> None:
        """Queue the remaining runs."""
        self._queue_if(lambda _: True)

    def _queue_if(self, is_due: Callable[[BlockRun], bool]) -> None:
        due = tuple(run for run in self.left if is_due(run))
        if not due:
            return
        if len(self.left) == len(self.queued.runs):
            self._on_first()
        self.left = [run for run in self.left if run not in due]
        is_last = not self.left
        queue = partial(self.queued.queue_together, due, is_last=is_last)
        self._queue_work((self.queued.one.first, due), queue)
        if is_last:
            self._on_last()

    def _rows_of_runs(
        self, rows_of: Callable[[BlockRun, int], AxisRows], axis: int
    ) -> Mapping[int, AxisRows]:
        """Return the rows of each run by its first block; cached for hundreds of pieces."""
        if not self._rows:
            self._rows = {run.first: rows_of(run, axis) for run in self.queued.runs}
        return self._rows

    def _written_by(self, run: BlockRun, axis: int) -> AxisRows:
        grid = self.queued.grid
        positions = [_position(grid, number, axis) for number in run.numbers]
        size = grid.block[axis]
        return AxisRows(axis, min(positions) * size, (max(positions) + 1) * size)

    def _read_by(self, run: BlockRun, axis: int) -> AxisRows:
        """Return the input rows of a run, clipped to the volume.

        The padding beyond the volume repeats rows that are at most as far inside it.
        """
        own = self._written_by(run, axis)
        start, stop = own.start, own.stop
        for step in self.queued.one.steps:
            if isinstance(step, Conv | Pack) and step.flow.from_patches:
                first, count = step.reach.origin[axis], step.reach.extents[axis]
                start = min(start, own.start + first)
                stop = max(stop, own.stop - self.queued.grid.block[axis] + first + count)
        end = self.queued.grid.extents[axis]
        return AxisRows(axis, max(0, start), min(end, stop))


def _position(grid: BlockGrid, number: int, axis: int) -> int:
    """Return the index of a block along an axis."""
    _, height, width = grid.counts
    return (number // (height * width), number // width % height, number % width)[axis]


def _reads_rows(one: Pass) -> bool:
    """Return whether the blocks of a pass need only nearby rows of the input volume."""
    [first, *_] = one.steps
    if not isinstance(first, Conv):
        return False
    return first.patches is not None and first.geometry.stride == (1, 1, 1)


def _writes_rows(one: Pass) -> bool:
    """Return whether the blocks of a pass alone write their rows of the output volume."""
    last = one.steps[-1]
    return last.flow.to_patches and not isinstance(last, AddPatches)
