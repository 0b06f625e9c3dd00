"""Packed frames, unpacked in a process of their own: what a stranger's bytes do to a decoder ends
that process, and no more. The process ends with the series, or with this one.
"""

import math
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any, Self, cast

import numpy as np

from ...volume import AnyArray
from . import frame_codecs
from .codestreams import Codestream

_SPARE_BYTES, _BYTES_OF_A_PIXEL = 256 << 20, 64
"""Of memory: decoders of JPEG 2000 hold several numbers a pixel, and as much for each block."""
_SECONDS, _SECONDS_OF_A_PIXEL = 2.0, 4e-6
"""Of processor time: twenty times what JPEG 2000 takes on an AMD EPYC."""
_MOST_WAITING = 20
"""Times that, by the clock on the wall, after which a process is ended that waits or is stopped."""
_SECONDS_TO_START, _WATCH_SECONDS = 120.0, 0.5
_TRIALS = 2
"""A process may have been ended by somebody else."""
_KINDS, _SIZES = (b"u", b"i"), (1, 2, 4)


class UnpackingError(RuntimeError):
    """A frame cannot be unpacked."""


class UnpackingTimeError(UnpackingError):
    """A frame was not unpacked in its time. seconds: of the processor, that it had."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took more than {seconds:.0f} s")
        self.seconds = seconds


class FrameUnpacker:
    """Unpacks frames for one thread; a context manager. Its process starts with the first frame,
    and again after one that ended it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._end_at = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._end()

    def __call__(self, frame: Codestream) -> AnyArray:
        """The pixels of a frame [row, column]. Raises UnpackingError, and OSError where no process
        starts that could unpack it.
        """
        pixels = frame.rows * frame.columns
        seconds = _SECONDS + _SECONDS_OF_A_PIXEL * pixels
        memory = _SPARE_BYTES + _BYTES_OF_A_PIXEL * pixels
        packed = frame.packed
        request = frame_codecs.REQUEST.pack(frame.coding.encode(), len(packed), memory, seconds)
        for _ in range(_TRIALS):
            process = self._started()
            self._end_at = end_at = time.monotonic() + _MOST_WAITING * seconds
            with suppress(BrokenPipeError, EOFError):
                return _answered(process, request, frame)
            self._end()
            if time.monotonic() > end_at or process.returncode == frame_codecs.OUT_OF_TIME:
                raise UnpackingTimeError(seconds)
        raise UnpackingError("its decoder crashed")

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            paths = [path for path in sys.path if path]
            alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, "-IS", frame_codecs.__file__, str(os.getpid()), *paths],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **alone},
                start_new_session=True,  # no Ctrl-C of a terminal reaches it
            )
            watch = threading.Thread(target=self._watch, args=(self._process,), daemon=True)
            watch.start()
            self._end_at = time.monotonic() + _SECONDS_TO_START
            if cast("IO[bytes]", self._process.stdout).read(len(frame_codecs.READY)) == b"":
                self._end()
                raise ChildProcessError("its decoders do not load")
        return self._process

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """End a process that takes too long by the clock; its own has it ended sooner."""
        while process.poll() is None and not self._is_over.wait(_WATCH_SECONDS):
            if time.monotonic() > self._end_at:
                process.kill()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                cast("IO[bytes]", pipe).close()
        process.wait()


def _answered(process: "subprocess.Popen[bytes]", request: bytes, frame: Codestream) -> AnyArray:
    """What the process makes of a frame.

    Raises UnpackingError where it refuses it, BrokenPipeError and EOFError where it is gone, or
    answers what is no frame of these extents.
    """
    requests, answers = cast("Any", process.stdin), cast("Any", process.stdout)
    for part in (memoryview(request), frame.packed):
        frame_codecs.send(requests, part)
    head = bytearray(frame_codecs.ANSWER.size)
    frame_codecs.fill(answers, memoryview(head))
    is_done, kind, size, rows, columns = frame_codecs.ANSWER.unpack(head)
    if not is_done:
        raise UnpackingError("its decoder refuses it")
    extents = frame.rows, frame.columns
    if (rows, columns) != extents or kind not in _KINDS or size not in _SIZES:
        raise EOFError
    pixels = np.empty((rows, columns), f"{kind.decode()}{size}")
    frame_codecs.fill(answers, pixels.data.cast("B"))
    return pixels
