"""A whole array through a program on the card: cut, translated and blended there, row by row.

Of the array, and of what is made of it, the card holds a ring of rows along the axis that is the
slowest in memory, so it may be of any length there. While one row of tiles is computed, the next is
copied in and the last one copied out, each on a stream of its own. The host waits once a row of
tiles, never once a patch. Voxels come and go as they are stored: the card maps their intensities.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Self

import numpy as np

from ...compiler.launches.voxels.sliding_window import blend, cut, patch_bytes, store_voxels
from ...compiler.ring_buffers import RingBuffers
from ...errors import PrecisionOverflowError
from ...network.layers import Triple
from ...patch_grid import PatchWindow, Phase, Rows, Timing, steps
from ...scaling import Stored, VoxelArray
from ..driver import CudaEvent, PinnedBuffer, Stream

if TYPE_CHECKING:
    from ..kernel_images import Kernels
    from .program import Program

SLOT_BYTES = 16 << 20
"""Bytes of a pinned slot; large enough to copy at full speed."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program and what it runs with. turn: held while a run is queued, as its input and output
    are shared by all windows.

    kernels: on the same card. stream: in which the program runs. batch: patches in one run.
    channels: of a patch and of its translation.
    """

    program: "Program"
    kernels: "Kernels"
    stream: Stream
    turn: threading.Lock
    batch: int
    channels: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Own:
    """What one window has for itself: streams in and out, two pinned slots for each, events.

    into, out_of: streams of the copies. slots: two for copies in, two for copies out.
    """

    into: Stream
    out_of: Stream
    slots: list[PinnedBuffer]
    events: ExitStack


class StreamedWindow:
    """One array on its way, and where what is made of it goes."""

    def __init__(
        self,
        compiled: Compiled,
        window: PatchWindow,
        placed: RingBuffers,
        own: Own,
        ends: tuple[Stored, Stored],
    ) -> None:
        self._compiled, self._window = compiled, window
        self._places, self._lag = placed.places, placed.lag
        self._source, self._target = ends
        self._into, self._out_of = own.into, own.out_of
        self._slots_in, self._slots_out = own.slots[:2], own.slots[2:]
        self._events = own.events
        self._steps = steps(window)
        self._plane = prod(window.extents[1:])
        self._marks: list[tuple[Phase, CudaEvent, CudaEvent]] = []
        self._uploaded, self._computed = ([self._event() for _ in self._steps] for _ in range(2))
        self._free: list[CudaEvent | None] = [None, None]
        self._due: list[tuple[int, Triple]] = []
        self._next_slot = 0

    def run(self, on_tiles: Callable[[int], None]) -> list[Timing]:
        """Fill the target; on_tiles: told how many more tiles are done.

        Raises PrecisionOverflowError if a result is not finite.
        """
        places, lag = self._places, self._lag
        if self._window.needs_lowest:
            self._into.upload_now(places.lowest, self._source.lowest().tobytes())
        self._into.upload_now(places.overflowed, bytes(4))
        last = len(self._steps) - 1
        tiles = len(self._window.origins[1]) * len(self._window.origins[2])
        self._upload(0)
        for step in range(last + 1):
            self._compute(step, waits=lag > 1 and step < last)
            if step < last:
                self._upload(step + 1)
            if step + 1 - lag >= 0:
                self._download(step + 1 - lag)
                on_tiles(tiles)
        for step in range(last + 2 - lag, last + 1):
            self._download(step)
            on_tiles(tiles)
        end = self._event()
        self._check_overflow(end)
        return self._timings(end, perf_counter())

    def _event(self) -> CudaEvent:
        return self._events.enter_context(CudaEvent())

    def _mark(self, part: Phase, stream: Stream) -> "_Mark":
        return _Mark(self._marks, part, stream, self._event(), self._event())

    def _upload(self, step: int) -> None:
        before = self._steps[step - 1][0].stop if step else 0
        if step >= self._lag:
            self._into.after(self._computed[step - self._lag])
        voxels, size = self._source.values, self._source.values.itemsize
        coming = Rows(before, self._steps[step][0].stop)
        for channel, rows in self._pieces(coming, len(voxels), size):
            index = self._next_slot
            self._next_slot = 1 - index
            if (free := self._free[index]) is not None:
                free.wait()
            staged = self._slots_in[index].array(self._shape_of(rows), voxels.dtype)
            staged[...] = voxels[channel, rows.start : rows.stop]
            with self._mark("copy in", self._into) as mark:
                address = self._row(self._places.source, channel, rows.start, size)
                self._into.upload(address, staged.ctypes.data, staged.nbytes)
            self._free[index] = mark.stop
        self._uploaded[step].record(self._into)

    def _compute(self, step: int, *, waits: bool) -> None:
        """Queue the tiles of a step; waits: whether too few for a batch wait for the next step."""
        stream, window = self._compiled.stream, self._window
        touched = self._steps[step][0]
        with self._compiled.turn:
            stream.after(self._uploaded[step])
            before = self._steps[step - 1][0].stop if step else 0
            for base, channels in (
                (self._places.mean, self._compiled.channels[1]),
                (self._places.total, 1),
            ):
                for channel, rows in self._pieces(Rows(before, touched.stop), channels):
                    size = len(rows) * self._plane * 4
                    stream.fill(self._row(base, channel, rows.start), 0, size)
        origins = product([window.origins[0][step]], *window.origins[1:])
        self._due += [(step, origin) for origin in origins]
        batch = self._compiled.batch
        while self._due and (not waits or len(self._due) >= batch or self._due[0][0] < step):
            group, self._due = self._due[:batch], self._due[batch:]
            left = {number for number, _ in self._due}
            with self._compiled.turn:
                self._translate([origin for _, origin in group])
                for number in {number for number, _ in group} - left:
                    self._computed[number].record(stream)

    def _translate(self, origins: list[Triple]) -> None:
        """Queue one run of the program; the caller has the turn.

        What is left of the batch repeats the last patch, so that nothing but this array's patches
        decides whether a result is finite.
        """
        compiled, window, places = self._compiled, self._window, self._places
        into, out_of = compiled.channels
        spare = [origins[-1]] * (compiled.batch - len(origins))
        with self._mark("cut", compiled.stream):
            for slot, origin in enumerate([*origins, *spare]):
                patch = compiled.program.patches + slot * patch_bytes(window, into)
                launch = cut(window, places, self._source, origin, patch)
                compiled.kernels.launch(compiled.stream, launch)
        with self._mark("compute", compiled.stream):
            compiled.program.launch()
        with self._mark("blend", compiled.stream):
            overflow = compiled.program.overflow
            for slot, origin in enumerate(origins):
                patch = compiled.program.translated + slot * patch_bytes(window, out_of)
                launch = blend(window, places, out_of, origin, patch, overflow)
                compiled.kernels.launch(compiled.stream, launch)

    def _download(self, step: int) -> None:
        """Copy the finished rows of a step out, one piece while the one before is put in place.

        Waits for the last, so that later work may use the rows of the ring again. Voxels leave from
        where the weights of their rows were summed, which nothing needs any more.
        """
        self._out_of.after(self._computed[step])
        waiting: list[tuple[CudaEvent, VoxelArray, VoxelArray]] = []
        voxels = self._target.values
        pieces = self._pieces(self._steps[step][1], len(voxels))
        for number, (channel, rows) in enumerate(pieces):
            if len(waiting) == 2:
                _put(*waiting.pop(0))
            staged = self._slots_out[number % 2].array(self._shape_of(rows), voxels.dtype)
            with self._mark("copy out", self._out_of) as mark:
                mean = self._row(self._places.mean, channel, rows.start)
                stored = self._row(self._places.total, 0, rows.start)
                flag = self._places.overflowed
                launch = store_voxels(mean, staged.size, self._target, stored, flag)
                self._compiled.kernels.launch(self._out_of, launch)
                self._out_of.download(staged.ctypes.data, stored, staged.nbytes)
            waiting.append((mark.stop, staged, voxels[channel, rows.start : rows.stop]))
        for piece in waiting:
            _put(*piece)
        self._target.on_rows(self._steps[step][1].stop)

    def _shape_of(self, rows: Rows) -> tuple[int, ...]:
        return len(rows), *self._window.extents[1:]

    def _pieces(self, rows: Rows, channels: int, size: int = 4) -> Iterator[tuple[int, Rows]]:
        """Channels and rows that are contiguous in a ring and fit into a slot; size: of a voxel."""
        most = max(1, SLOT_BYTES // (self._plane * size))
        return product(range(channels), list(rows.pieces(self._places.rows, most)))

    def _row(self, base: int, channel: int, row: int, size: int = 4) -> int:
        rows = self._places.rows
        return base + (channel * rows + row % rows) * self._plane * size

    def _check_overflow(self, end: CudaEvent) -> None:
        """Waits for the end of everything."""
        flag = self._slots_out[0].array((1,), np.int32)
        self._out_of.download(flag.ctypes.data, self._places.overflowed, 4)
        end.record(self._out_of)
        end.wait()
        if flag[0]:
            raise PrecisionOverflowError(
                "A value left the range of the program's precision; use a wider one."
            )

    def _timings(self, end: CudaEvent, now: float) -> list[Timing]:
        """On the host's clock, on which it is `now` at the end."""
        return [
            Timing(part, now - end.seconds_since(start), now - end.seconds_since(stop))
            for part, start, stop in self._marks
        ]


@dataclass(frozen=True, slots=True)
class _Mark:
    """Puts events around what is queued inside the block."""

    marks: list[tuple[Phase, CudaEvent, CudaEvent]]
    part: Phase
    stream: Stream
    start: CudaEvent
    stop: CudaEvent

    def __enter__(self) -> Self:
        self.start.record(self.stream)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.record(self.stream)
        self.marks.append((self.part, self.start, self.stop))


def _put(copied: CudaEvent, staged: VoxelArray, target: VoxelArray) -> None:
    copied.wait()
    target[...] = staged
