"""A whole array through a program on the GPU: cut, translated and blended there, row by row.

The GPU holds a ring of rows of the array and of its result, along the slowest axis in memory, so
the array may be of any length there. While one row of patches is computed, the next is copied in
and the last one copied out, each on a stream of its own. The host waits once per row of patches,
never per patch. Voxels come and go as they are stored: the GPU maps their intensities.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from ...compiler.kernels.sliding_window import (
    CLIPPED_BYTES,
    RingBuffers,
    blend,
    cut,
    patch_bytes,
    ring_layout,
    ring_memory_error,
    rings,
    store_voxels,
)
from ...errors import PrecisionOverflowError
from ...network.layers import FloatArray, Triple
from ...patch_grid import PatchGrid, PatchWindow, Rows, Timing, steps
from ...scaling import Stored
from ..driver import Stream
from ..in_flight import InFlight
from ..streaming import StagedRows

if TYPE_CHECKING:
    from ..kernel_images import Kernels
    from .captured_program import Program

SLOT_BYTES = 16 << 20
"""Bytes of a pinned slot; large enough to copy at full speed."""


@dataclass(frozen=True, slots=True)
class SharedProgram:
    """A program whose input and output all windows share, and what it runs with.

    kernels: of the GPU. stream: in which the program runs. turn: held while a run is queued. batch:
    patches in one run. channels: of a patch and of its translation.
    """

    program: "Program"
    kernels: "Kernels"
    stream: Stream
    turn: threading.Lock
    batch: int
    channels: tuple[int, int]


@contextmanager
def open_window_buffers(shared: SharedProgram) -> Generator["WindowBuffers"]:
    """Open what runs arrays through the shared program, one at a time."""
    with ExitStack() as opened:
        yield WindowBuffers(shared, InFlight(opened, slots=2))


class WindowBuffers:
    """Rings and weights of a window, kept from one array to the next."""

    def __init__(self, shared: SharedProgram, flight: InFlight) -> None:
        self._shared = shared
        self._flight = flight
        self._weights: tuple[int, FloatArray] | None = None

    @property
    def held(self) -> int:
        """Bytes of device memory."""
        return self._flight.memory.size

    def allocate(self, window: PatchGrid, most_bytes: int) -> RingBuffers:
        """Return memory for an array, until the next is placed.

        Raises DeviceMemoryError if it needs more than `most_bytes`.
        """
        channels = self._shared.channels
        found = rings(window, channels, most_bytes)
        if found is None:
            raise ring_memory_error(window, channels, most_bytes)
        if self.held < found.bytes:
            self._weights = None
        base = self._flight.memory.address_of(found.bytes)
        rows = found.addresses.rows
        return replace(found, addresses=ring_layout(window, rows, channels, base))

    def run(
        self,
        source: Stored,
        window: PatchWindow,
        target: Stored,
        placed: RingBuffers,
        on_patches: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_patches: called with how many more are done.

        Raises DeviceMemoryError if the host has no memory to pin, and PrecisionOverflowError if a
        result is not finite.
        """
        flight = self._flight
        flight.pin(max(SLOT_BYTES, prod(window.extents[1:]) * 4))
        flight.phases.restart()
        with flight.drained([self._shared.stream]):
            self._put_weights(placed.addresses.weights, window.weights)
            streamed = _StreamedWindow(self._shared, window, placed, flight, (source, target))
            return streamed.run(on_patches)

    def _put_weights(self, address: int, weights: FloatArray) -> None:
        """Upload weights unless an earlier array of the same kind has left them there."""
        if self._weights is None or self._weights[0] != address or self._weights[1] is not weights:
            self._flight.entering.upload_now(address, weights.tobytes())
            self._weights = address, weights


class _StreamedWindow:
    """One array in flight, and where its result goes."""

    def __init__(
        self,
        shared: SharedProgram,
        window: PatchWindow,
        placed: RingBuffers,
        flight: InFlight,
        ends: tuple[Stored, Stored],
    ) -> None:
        """ends: source and target."""
        self._shared, self._window = shared, window
        self._addresses, self._lag = placed.addresses, placed.lag
        self._source, self._target = ends
        self._into, self._out_of = flight.entering, flight.leaving
        self._slots_in, self._slots_out = flight.slots
        self._phases = phases = flight.phases
        self._steps = steps(window)
        self._plane = prod(window.extents[1:])
        self._uploaded, self._computed = ([phases.event() for _ in self._steps] for _ in range(2))
        self._due: list[tuple[int, Triple]] = []

    def run(self, on_patches: Callable[[int], None]) -> list[Timing]:
        """Fill the target; on_patches: called with how many more are done.

        Raises PrecisionOverflowError if a result is not finite.
        """
        addresses, lag = self._addresses, self._lag
        window = self._window
        fill = self._source.beyond(window.padding) if window.is_padded else None
        if fill is not None:
            self._into.upload_now(addresses.lowest, fill.tobytes())
        self._into.upload_now(addresses.overflowed, bytes(4))
        self._into.upload_now(addresses.clipped, bytes(CLIPPED_BYTES))
        last = len(self._steps) - 1
        patches = len(self._window.origins[1]) * len(self._window.origins[2])
        self._upload(0)
        for step in range(last + 1):
            self._compute(step, waits=lag > 1 and step < last)
            if step < last:
                self._upload(step + 1)
            if step + 1 - lag >= 0:
                self._download(step + 1 - lag)
                on_patches(patches)
        for step in range(last + 2 - lag, last + 1):
            self._download(step)
            on_patches(patches)
        flags = addresses.overflowed, addresses.clipped
        if not self._slots_out.is_finite(self._out_of, self._target, *flags):
            raise PrecisionOverflowError.of(self._shared.kernels.precision)
        return self._phases.timings(self._out_of)

    def _upload(self, step: int) -> None:
        """Queue the copy of the rows that a step reads and none before it has."""
        before = self._steps[step - 1][0].stop if step else 0
        if step >= self._lag:
            self._into.after(self._computed[step - self._lag])
        voxels, size = self._source.values, self._source.values.itemsize
        coming = Rows(before, self._steps[step][0].stop)
        pieces = list(self._pieces(coming, len(voxels), size))

        def queue(number: int, staged: StagedRows) -> None:
            channel, rows = pieces[number]
            with self._phases.around("copy in", self._into):
                address = self._row(self._addresses.source, channel, rows.start, size)
                staged.upload(self._into, address)

        self._slots_in.upload([voxels[c, rows.start : rows.stop] for c, rows in pieces], queue)
        self._uploaded[step].record(self._into)

    def _compute(self, step: int, *, waits: bool) -> None:
        """Queue the patches of a step; waits: whether fewer than a batch wait for the next step."""
        stream, window = self._shared.stream, self._window
        touched = self._steps[step][0]
        with self._shared.turn:
            stream.after(self._uploaded[step])
            before = self._steps[step - 1][0].stop if step else 0
            for base, channels in (
                (self._addresses.mean, self._shared.channels[1]),
                (self._addresses.total, 1),
            ):
                for channel, rows in self._pieces(Rows(before, touched.stop), channels):
                    size = len(rows) * self._plane * 4
                    stream.fill(self._row(base, channel, rows.start), 0, size)
        origins = product([window.origins[0][step]], *window.origins[1:])
        self._due += [(step, origin) for origin in origins]
        batch = self._shared.batch
        while self._due and (not waits or len(self._due) >= batch or self._due[0][0] < step):
            group, self._due = self._due[:batch], self._due[batch:]
            left = {number for number, _ in self._due}
            with self._shared.turn:
                self._translate([origin for _, origin in group])
                for number in {number for number, _ in group} - left:
                    self._computed[number].record(stream)

    def _translate(self, origins: list[Triple]) -> None:
        """Queue one run of the program; the caller has the turn.

        The rest of the batch repeats the last patch, so that only this array's patches decide
        whether a result is finite.
        """
        shared, window, addresses = self._shared, self._window, self._addresses
        into, out_of = shared.channels
        spare = [origins[-1]] * (shared.batch - len(origins))
        with self._phases.around("cut", shared.stream):
            for slot, origin in enumerate([*origins, *spare]):
                patch = shared.program.patches + slot * patch_bytes(window, into)
                launch = cut(window, addresses, self._source, origin, patch)
                shared.kernels.launch(shared.stream, launch)
        with self._phases.around("compute", shared.stream):
            shared.program.launch()
        with self._phases.around("blend", shared.stream):
            overflow = shared.program.overflow
            for slot, origin in enumerate(origins):
                patch = shared.program.translated + slot * patch_bytes(window, out_of)
                launch = blend(window, addresses, out_of, origin, patch, overflow)
                shared.kernels.launch(shared.stream, launch)

    def _download(self, step: int) -> None:
        """Copy the finished rows of a step out, one piece while the one before is put in place.

        Waits for the last, so that later work may use the rows of the ring again. Voxels leave from
        where the weights of their rows were summed, which nothing needs any more.
        """
        self._out_of.after(self._computed[step])
        voxels, finished = self._target.values, self._steps[step][1]
        pieces = list(self._pieces(finished, len(voxels)))

        def queue(number: int, staged: StagedRows) -> None:
            channel, rows = pieces[number]
            with self._phases.around("copy out", self._out_of):
                mean = self._row(self._addresses.mean, channel, rows.start)
                stored = self._row(self._addresses.total, 0, rows.start)
                flags = self._addresses.overflowed, self._addresses.clipped
                launch = store_voxels(mean, staged.voxels.size, self._target, stored, *flags)
                self._shared.kernels.launch(self._out_of, launch)
                staged.download(self._out_of, stored)

        targets = (voxels[channel, rows.start : rows.stop] for channel, rows in pieces)
        self._slots_out.download(targets, queue, lambda _number: None)
        self._target.on_rows(finished.stop)

    def _pieces(self, rows: Rows, channels: int, size: int = 4) -> Iterator[tuple[int, Rows]]:
        """Yield channels and rows that are contiguous in a ring and fit a slot.

        size: bytes of a voxel.
        """
        most = max(1, SLOT_BYTES // (self._plane * size))
        return product(range(channels), list(rows.pieces(self._addresses.rows, most)))

    def _row(self, base: int, channel: int, row: int, size: int = 4) -> int:
        rows = self._addresses.rows
        return base + (channel * rows + row % rows) * self._plane * size
