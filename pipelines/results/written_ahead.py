"""Results that are written while they are computed, and named last."""

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...io.files.parts import Gate
from ...io.volume import AnyArray, Volume
from ...io.writing import write
from ..errors import PreparationError

LEAST_BYTES = 64 << 20
"""Least size of a volume, in bytes, for which this pays: writing a smaller one takes less time than
a thread costs.
"""

_PATIENCE = 1.0
"""Seconds to wait for the part of a dropped result to be removed; a hung disk must not block.
"""


class _CancelledError(Exception):
    """Raised if the result is no longer needed."""


class WrittenAhead:
    """Writer of a volume next to its path, in a thread of its own, as its slices become final.

    It begins with the first slice. No file appears under the result's name before `put`.

    target: path of the result.
    """

    def __init__(self, volume: Volume, target: Path, parts: Gate) -> None:
        """Start the thread. parts: gate that is passed when the part is made."""
        self.volume = volume
        self.target = target
        self._parts = parts
        self._slices, self._is_left = 0, False
        self._changed = threading.Condition()
        self._gate: Future[Gate] = Future()
        self._hashes: Future[dict[str, str]] = Future()
        self._thread = threading.Thread(target=self._write, name="write ahead", daemon=True)
        self._thread.start()

    def on_rows(self, slices: int) -> None:
        """Mark the first `slices` slices as final."""
        with self._changed:
            self._slices = slices
            self._changed.notify_all()

    def put(self, gate: Gate) -> dict[str, str]:
        """Write the rest, pass the gate and move the result into place, as `write` does."""
        self.on_rows(self.volume.shape[2])
        self._gate.set_result(gate)
        return self._hashes.result()

    def cancel(self) -> None:
        """Remove the written part of a result for which `put` was not called."""
        with self._changed:
            if self._is_left or self._gate.done():
                return
            self._is_left = True
            self._changed.notify_all()
        self._gate.set_exception(_CancelledError())
        self._thread.join(_PATIENCE)

    def _write(self) -> None:
        try:
            self._hashes.set_result(self._written(Gate(self._passed, self._parts.root)))
        except BaseException as error:
            self._hashes.set_exception(error)
        with self._changed:
            self._changed.notify_all()

    def _written(self, gate: Gate) -> dict[str, str]:
        self._wait_for(1)
        return write(self.volume, self.target, None, gate, self._wait_for)

    def _wait_for(self, slices: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_left or self._slices >= slices)
            if self._is_left:
                raise _CancelledError

    @contextmanager
    def _passed(self, coming: Sequence[Path]) -> Generator[None]:
        gate = self._gate.result() if coming else self._parts
        with gate.passed(coming):
            yield


class WrittenSeries(WrittenAhead):
    """Writer of the volumes of a series, one after another, as they are computed."""

    def __init__(self, volume: Volume, target: Path, parts: Gate) -> None:
        """Start the thread. volume: a volume like all that follow; its voxels are not kept."""
        self._next: Volume | None = None
        self._is_idle, self._is_complete = False, False
        blank = np.broadcast_to(np.zeros((), volume.voxels.dtype), volume.shape)
        super().__init__(replace(volume, voxels=blank), target, parts)

    def add(self, volume: Volume) -> None:
        """Write the next volume, once the previous one is written.

        Raises the error of the writing thread, and PreparationError for a volume of another voxel
        type, which one file cannot hold.
        """
        first = self.volume
        if _voxel_type(volume) != _voxel_type(first):
            raise PreparationError(
                f"It would be stored as {_voxel_type(volume)}, and the volumes before it as "
                f"{_voxel_type(first)}, which one file cannot hold; use setting "
                "output-type=float32."
            )
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle or self._hashes.done())
            if self._hashes.done():
                self._hashes.result()
            self._is_idle, self._next = False, volume
            self._changed.notify_all()

    def put(self, gate: Gate) -> dict[str, str]:
        """Write the rest, pass the gate and move the result into place, as `write` does."""
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()
        return super().put(gate)

    def _written(self, gate: Gate) -> dict[str, str]:
        return write(self.volume, self.target, None, gate, series=self._coming())

    def _coming(self) -> Iterator[AnyArray]:
        while (volume := self._taken()) is not None:
            voxels = volume.voxels
            del volume
            yield voxels
            del voxels

    def _taken(self) -> Volume | None:
        with self._changed:
            self._is_idle = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_left or self._is_complete or self._next is not None
            )
            if self._is_left:
                raise _CancelledError
            volume, self._next = self._next, None
            return volume


def _voxel_type(volume: Volume) -> str:
    scale = "" if (volume.slope, volume.intercept) == (1, 0) else f" times {volume.slope:g}"
    offset = f" plus {volume.intercept:g}" if volume.intercept else ""
    return f"{volume.voxels.dtype}{scale}{offset}"
