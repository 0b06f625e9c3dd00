"""A whole volume through a program on the GPU: copied in, computed pass by pass, copied out.

Copies and passes of volumes in flight overlap: each has a lane of its own, and passes take turns on
one stream. Runs of the first pass start while the rest of the volume is copied in, and rows leave
as soon as the last pass has computed them.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial

from ...errors import PrecisionOverflowError
from ...patch_grid import Timing
from ...scaling import Stored
from ..driver import CudaEvent
from ..streaming import PhaseMark
from .lanes import Lane
from .overlap import AxisRows, RunsByRows
from .preparation import Ready
from .transfer import download_voxels, rows_to_download, slot_voxels, slowest_axis, upload_voxels


class StreamedVolume:
    """One volume in flight, and where its result goes."""

    def __init__(
        self, ready: Ready, lane: Lane, computing: threading.Lock, ends: tuple[Stored, Stored]
    ) -> None:
        """computing: held by the volume whose passes are queued. ends: source and target."""
        self._ready, self._lane = ready, lane
        self._placed = replace(ready.placed, own=lane.own)
        self._stream = ready.placed.program.stream
        self._source, self._target = ends
        self._flight, self._phases = lane.flight, lane.flight.phases
        self._most = slot_voxels(self._placed.grid.extents)
        self._turn = _Turn(computing)

    def run(self, on_share: Callable[[float], None]) -> tuple[list[Timing], float]:
        """Fill the target; return when the phases ran, and the seconds of all passes.

        on_share: called with the share of the work done. Raises DeviceMemoryError if the host has
        no memory to pin, and PrecisionOverflowError if a result is not finite.
        """
        flight, phases = self._flight, self._phases
        phases.restart()
        entering, computing, leaving = map(phases.mark, ("copy in", "compute", "copy out"))
        entering.start.record(flight.entering)
        self._placed.queue_start(flight.entering)
        with self._turn:
            first = self._first_pass(computing)
            self._copy_in(first)
            entering.stop.record(flight.entering)
            self._turn.take()
            self._wait_for_copies()
            first.queue_all()
            self._compute(on_share)
            computed = self._compute_rows(computing)
        flight.leaving.after(computed[0])
        leaving.start.record(flight.leaving)
        [slots], stream = flight.slots, flight.leaving
        is_finite = download_voxels(self._placed, self._target, slots, self._most, stream, computed)
        leaving.stop.record(flight.leaving)
        timings = phases.timings(flight.leaving)
        if not is_finite:
            raise PrecisionOverflowError.of(self._placed.program.lowered.layout.precision)
        on_share(1.0)
        return timings, computing.seconds

    def _first_pass(self, computing: PhaseMark) -> RunsByRows:
        """Return the runs of the first pass, at which the phase begins."""
        return RunsByRows(
            self._placed.in_runs(self._placed.memory.passes[0]),
            lambda: computing.start.record(self._stream),
            lambda: computing.stop.record(self._stream),
            self._queue_work,
        )

    def _copy_in(self, first: RunsByRows) -> None:
        """Queue copies of the input, and runs of the first pass that need no more of it.

        The latter only if no other volume is being computed.
        """

        def came(rows: AxisRows) -> None:
            if self._turn.take_if_free():
                self._wait_for_copies()
                first.queue_those_that_read(rows)

        report = came if self._placed.takes_runs_early else _nothing
        [slots], stream = self._flight.slots, self._flight.entering
        upload_voxels(self._placed, self._source, slots, self._most, stream, report)

    def _wait_for_copies(self) -> None:
        """Let what is queued from now on wait for what was copied in so far."""
        self._lane.arrived.record(self._flight.entering)
        self._stream.after(self._lane.arrived)

    def _compute(self, on_share: Callable[[float], None]) -> None:
        """Queue all passes but the first and the last, several at a time in a small volume.

        The host stays one part ahead of the GPU, to report progress.
        """
        ready, passes = self._ready, self._placed.memory.passes
        total, done, before = sum(ready.costs), 0.0, None
        for part in ready.parts:
            queue = partial(self._placed.queue_passes, passes[part.start : part.stop])
            if ready.may_capture:
                self._lane.queue_captured(self._stream, part, queue)
            else:
                queue()
            if before is not None:
                before.wait()
                on_share(done / total)
            done += sum(ready.costs[part.start : part.stop])
            before = self._phases.event()
            before.record(self._stream)

    def _compute_rows(self, computing: PhaseMark) -> list[CudaEvent]:
        """Queue the last pass, at which the phase ends; return events after each piece to copy."""
        first, *others = self._placed.memory.passes
        last = RunsByRows(
            self._placed.in_runs(others[-1] if others else first, slowest_axis(self._target)),
            _nothing,
            lambda: computing.stop.record(self._stream),
            self._queue_work,
        )
        computed: list[CudaEvent] = []
        for rows in rows_to_download(self._target, self._most):
            if others:
                last.queue_those_that_write(rows)
            computed.append(self._phases.event())
            computed[-1].record(self._stream)
        return computed

    def _queue_work(self, work: Hashable, queue: Callable[[], None]) -> None:
        """Queue runs of the first or the last pass.

        They are captured for small volumes, whose rows come in a few pieces, always alike.
        """
        if len(self._ready.parts) > 1 or not self._ready.may_capture:
            queue()
        else:
            self._lane.queue_captured(self._stream, work, queue)


class _Turn:
    """One volume's turn to queue its passes; a context manager that ends it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_taken = lock, False

    def take_if_free(self) -> bool:
        """Take the turn unless another volume has it; return whether it is this one's."""
        self._is_taken = self._is_taken or self._lock.acquire(blocking=False)
        return self._is_taken

    def take(self) -> None:
        """Wait for the turn, unless it is this volume's already."""
        if not self._is_taken:
            self._lock.acquire()
            self._is_taken = True

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self._is_taken:
            self._lock.release()


def _nothing(*_: object) -> None:
    pass
