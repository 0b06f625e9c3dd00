"""Streams, pinned slots and device memory for sweeps of arrays, kept from one to the next."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import prod
from typing import Self

from ..compiler.ring_buffers import Rings, rings
from ..errors import CudaError, DeviceMemoryError
from ..network.graph import FloatArray
from ..scaling import Stored
from ..sliding_window import Grid, Timing, Window
from .driver import DeviceBuffer, PinnedBuffer, Stream
from .streamed_window import SLOT_BYTES, Compiled, Own, Sweep


class Sweeper:
    """Owns streams, pinned slots and device memory for one sweep at a time."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._opened = ExitStack()
        self._device: tuple[ExitStack, DeviceBuffer | None] = ExitStack(), None
        self._pinned: tuple[ExitStack, list[PinnedBuffer]] = ExitStack(), []
        self._weights: tuple[int, FloatArray] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._into, self._out_of = (opening.enter_context(Stream()) for _ in range(2))
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._device[0].close()
        self._pinned[0].close()
        self._opened.close()

    @property
    def held(self) -> int:
        """Bytes of device memory."""
        return self._device[1].size if self._device[1] else 0

    def place(self, window: Grid, most_bytes: int) -> Rings:
        """Memory for an array, until the next is placed.

        Raises DeviceMemoryError if it needs more than `most_bytes`.
        """
        found = rings(window, self._compiled.channels, most_bytes)
        if found is None:
            raise DeviceMemoryError("The card has no room for the rows of one row of tiles.")
        stack, buffer = self._device
        if buffer is None or buffer.size < found.bytes:
            stack.close()
            self._device, self._weights = (stack, None), None
            stack = ExitStack()
            buffer = stack.enter_context(DeviceBuffer(found.bytes))
            self._device = stack, buffer
        return replace(found, places=found.places.at(buffer.address))

    def run(
        self,
        source: Stored,
        window: Window,
        target: Stored,
        placed: Rings,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_tiles: told how many more tiles are done.

        Raises PrecisionOverflowError if a result is not finite.
        """
        slots = self._slots(prod(window.extents[1:]) * 4)
        with ExitStack() as owned:
            own = Own(self._into, self._out_of, slots, owned)
            try:
                self._put_weights(placed.places.weights, window.weights)
                sweep = Sweep(self._compiled, window, placed, own, (source, target))
                return sweep.run(on_tiles)
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

    def _slots(self, row: int) -> list[PinnedBuffer]:
        stack, slots = self._pinned
        if not slots or slots[0].size < row:
            stack.close()
            stack = ExitStack()
            size = max(SLOT_BYTES, row)
            slots = [stack.enter_context(PinnedBuffer(size)) for _ in range(4)]
            self._pinned = stack, slots
        return slots
