"""Streams, pinned slots and device memory for sliding windows, kept from one array to the next."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import prod

from ...compiler.ring_buffers import RingBuffers, no_room, rings
from ...errors import CudaError
from ...network.layers import FloatArray
from ...patch_grid import PatchGrid, PatchWindow, Timing
from ...scaling import Stored
from ..driver import DeviceBuffer, PinnedBuffer, Stream
from .streamed_window import SLOT_BYTES, Compiled, Own, StreamedWindow


@contextmanager
def open_window_buffers(compiled: Compiled) -> Generator["WindowBuffers"]:
    """What runs arrays through the program that is compiled, one at a time."""
    with Stream() as into, Stream() as out_of, ExitStack() as device, ExitStack() as pinned:
        yield WindowBuffers(compiled, (into, out_of), device, pinned)


class WindowBuffers:
    """Streams for copies in and out, and the owners of device memory and of pinned slots."""

    def __init__(
        self,
        compiled: Compiled,
        streams: tuple[Stream, Stream],
        device: ExitStack,
        pinned: ExitStack,
    ) -> None:
        self._compiled = compiled
        self._into, self._out_of = streams
        self._device, self._pinned = device, pinned
        self._buffer: DeviceBuffer | None = None
        self._slots: list[PinnedBuffer] = []
        self._weights: tuple[int, FloatArray] | None = None

    @property
    def held(self) -> int:
        """Bytes of device memory."""
        return self._buffer.size if self._buffer else 0

    def place(self, window: PatchGrid, most_bytes: int) -> RingBuffers:
        """Memory for an array, until the next is placed.

        Raises DeviceMemoryError if it needs more than `most_bytes`.
        """
        channels = self._compiled.channels
        found = rings(window, channels, most_bytes)
        if found is None:
            raise no_room(window, channels, most_bytes)
        buffer = self._buffer
        if buffer is None or buffer.size < found.bytes:
            self._buffer = self._weights = None
            self._device.close()
            buffer = self._buffer = self._device.enter_context(DeviceBuffer(found.bytes))
        return replace(found, places=found.places.at(buffer.address))

    def run(
        self,
        source: Stored,
        window: PatchWindow,
        target: Stored,
        placed: RingBuffers,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_tiles: told how many more tiles are done.

        Raises DeviceMemoryError if the host has no memory to pin, and PrecisionOverflowError if a
        result is not finite.
        """
        self._pin(prod(window.extents[1:]) * 4)
        with ExitStack() as owned:
            own = Own(self._into, self._out_of, self._slots, owned)
            try:
                self._put_weights(placed.places.weights, window.weights)
                streamed = StreamedWindow(self._compiled, window, placed, own, (source, target))
                return streamed.run(on_tiles)
            except BaseException:
                with suppress(CudaError):  # of a lost context, which the caller hears of anyway
                    for stream in (self._into, self._compiled.stream, self._out_of):
                        stream.wait()
                raise

    def _put_weights(self, address: int, weights: FloatArray) -> None:
        """Unless they are there already, as they are from one study to the next that is like it."""
        if self._weights is None or self._weights[0] != address or self._weights[1] is not weights:
            self._into.upload_now(address, weights.tobytes())
            self._weights = address, weights

    def _pin(self, row: int) -> None:
        """Have slots for rows of so many bytes."""
        if self._slots and self._slots[0].size >= row:
            return
        self._slots = []
        self._pinned.close()
        size = max(SLOT_BYTES, row)
        with ExitStack() as opening:
            slots = [opening.enter_context(PinnedBuffer(size)) for _ in range(4)]
            self._pinned.push(opening.pop_all())
        self._slots = slots
