"""A result that is written while it is made: its voxels as they come, its name last."""

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from ...io.files.parts import Gate
from ...io.volume import Volume
from ...io.writing import write

LEAST_BYTES = 64 << 20
"""Of a volume for which this pays: a smaller one is written in less time than a thread disturbs."""

_PATIENCE = 1.0
"""Seconds that who leaves a result waits for its part to be removed; a hung disk must not hold it.
"""


class _LeftError(Exception):
    """Nobody wants the result any more."""


class WrittenAhead:
    """Writes a volume beside its place in a thread of its own, as its slices become final.

    It begins with the first of them. Nothing appears under the result's name before `put`.
    """

    def __init__(self, volume: Volume, target: Path, parts: Gate) -> None:
        """parts: what is passed when the part is made."""
        self.volume = volume
        self._parts = parts
        self._slices, self._is_left = 0, False
        self._changed = threading.Condition()
        self._gate: Future[Gate] = Future()
        self._hashes: Future[dict[str, str]] = Future()
        self._thread = threading.Thread(
            target=self._write, args=(target,), name="write ahead", daemon=True
        )
        self._thread.start()

    def on_rows(self, slices: int) -> None:
        """So many slices, from the first on, are final."""
        with self._changed:
            self._slices = slices
            self._changed.notify_all()

    def put(self, gate: Gate) -> dict[str, str]:
        """Write what is left, pass the gate and put the result in its place, as `write` does."""
        self.on_rows(self.volume.shape[2])
        self._gate.set_result(gate)
        return self._hashes.result()

    def leave(self) -> None:
        """Remove what was written of a result that was not put."""
        with self._changed:
            if self._is_left or self._gate.done():
                return
            self._is_left = True
            self._changed.notify_all()
        self._gate.set_exception(_LeftError())
        self._thread.join(_PATIENCE)

    def _write(self, target: Path) -> None:
        gate = Gate(self._passed, self._parts.root)
        try:
            self._wait_for(1)
            self._hashes.set_result(write(self.volume, target, None, gate, self._wait_for))
        except BaseException as error:
            self._hashes.set_exception(error)

    def _wait_for(self, slices: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_left or self._slices >= slices)
            if self._is_left:
                raise _LeftError

    @contextmanager
    def _passed(self, coming: Sequence[Path]) -> Generator[None]:
        gate = self._gate.result() if coming else self._parts
        with gate.passed(coming):
            yield
