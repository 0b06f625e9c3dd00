"""Packed frames: their markers and boxes are checked, then a separate process unpacks them. A
damaged number costs a decoder gigabytes and minutes of filling them; a box without a length makes
some loop forever. Damaged bytes that crash a decoder end that process and no more. The process ends
with the series, or with this one.
"""

import math
import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, Self, TypeAlias, cast

import numpy as np
from pydicom import uid

from ...volume import AnyArray
from . import frame_codecs

Coding: TypeAlias = Literal["jpeg", "jpeg-ls", "jpeg-2000"]

CODINGS: dict[str, Coding] = {
    **dict.fromkeys(
        (uid.JPEGBaseline8Bit, uid.JPEGExtended12Bit, uid.JPEGLossless, uid.JPEGLosslessSV1), "jpeg"
    ),
    **dict.fromkeys((uid.JPEGLSLossless, uid.JPEGLSNearLossless), "jpeg-ls"),
    **dict.fromkeys((uid.JPEG2000Lossless, uid.JPEG2000), "jpeg-2000"),
    **dict.fromkeys((uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL, uid.HTJ2K), "jpeg-2000"),
}
"""Codings by transfer syntax."""

_START, _END = b"\xff\xd8", b"\xff\xd9"
"""First and last marker of an image of JPEG and JPEG-LS."""
_BEHIND_END = b"\xff\0"
"""Bytes that scanners pad a frame with to whole words: NUL, as in DICOM, or JPEG's fill bytes."""
_SEGMENT = struct.Struct(">BBH")
"""JPEG marker (ISO 10918-1 B.1.1.4), and the length of its segment, itself included."""
_ALONE = (0x01, *range(0xD0, 0xD8))
"""Markers that nothing follows."""
_FRAMES: dict[Coding, tuple[int, ...]] = {
    "jpeg": tuple(at for at in range(0xC0, 0xD0) if at not in (0xC4, 0xC8, 0xCC)),
    "jpeg-ls": (0xF7,),
}
"""Markers of frames. The range of JPEG also has markers of tables and reserved ones."""
_START_OF_SCAN, _FILLING = 0xDA, 0xFF
_FRAME = struct.Struct(">BHH")
"""Bits of a sample, lines, samples a line."""

_BOXES, _CODESTREAM_BOX = b"\0\0\0\x0cjP  ", b"jp2c"
_BOX, _LONG = struct.Struct(">I4s"), struct.Struct(">Q")
_HAS_LONG_LENGTH = 1
"""Value in place of a box's length (ISO 15444-1 I.4); 0 there means all the rest."""
_CODESTREAM = b"\xff\x4f\xff\x51"
_IMAGE_SIZES = struct.Struct(">4xIIII16xxxB")
"""Sizes of JPEG 2000 (ISO 15444-1 A.5.1): ends of the image along both axes, then its starts; bits
of a sample, less one, and whether it has a sign.
"""


@dataclass(frozen=True, slots=True)
class Codestream:
    """Packed frame without its container.

    coding: which decoder it is for. packed: the frame. rows, columns, bits, is_signed: of its
    pixels, as it claims.
    """

    coding: Coding
    packed: memoryview
    rows: int
    columns: int
    bits: int
    is_signed: bool = False


def codestream_in(packed: bytes, coding: Coding) -> Codestream:
    """Return the frame in a fragment of DICOM. Raises ValueError for a damaged one."""
    try:
        found = _jpeg_2000(packed) if coding == "jpeg-2000" else _jpeg(packed, coding)
    except struct.error as error:
        raise ValueError("it ends within a header") from error
    if min(found.rows, found.columns) <= 0:
        raise ValueError("it has no pixels")
    return found


def _jpeg(packed: bytes, coding: Coding) -> Codestream:
    whole = packed.rstrip(_BEHIND_END)
    if not (whole.startswith(_START) and whole.endswith(_END)):
        # libjpeg would fill up the rest with grey
        raise ValueError("it has no start or end marker")
    at = len(_START)
    while True:
        first, marker, length = _SEGMENT.unpack_from(whole, at)
        if first != _FILLING:
            raise ValueError("a marker is missing")
        if marker == _FILLING:
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES[coding]:
            bits, rows, columns = _FRAME.unpack_from(whole, at + _SEGMENT.size)
            return Codestream(coding, memoryview(whole), rows, columns, bits)
        elif marker == _START_OF_SCAN or length < 2:
            raise ValueError("it has no frame")
        else:
            at += 2 + length


def _jpeg_2000(packed: bytes) -> Codestream:
    at = _codestream_at(packed)
    if not packed.startswith(_CODESTREAM, at):
        raise ValueError("it has no codestream")
    inner = memoryview(packed)[at:]
    right, bottom, left, top, kind = _IMAGE_SIZES.unpack_from(inner, len(_CODESTREAM))
    return Codestream(
        "jpeg-2000", inner, bottom - top, right - left, (kind & 0x7F) + 1, bool(kind & 0x80)
    )


def _codestream_at(packed: bytes) -> int:
    """Return where the codestream begins in a file of boxes, as some writers store a whole one."""
    at = 0
    if not packed.startswith(_BOXES):
        return at
    while True:
        length, kind = _BOX.unpack_from(packed, at)
        header = _BOX.size
        if length == _HAS_LONG_LENGTH:
            (length,) = _LONG.unpack_from(packed, at + header)
            header += _LONG.size
        if kind == _CODESTREAM_BOX:
            return at + header
        if not header <= length <= len(packed) - at:
            raise ValueError("it has no codestream")
        at += length


_SPARE_BYTES, _BYTES_OF_A_PIXEL = 256 << 20, 64
"""Memory limit: decoders of JPEG 2000 hold several numbers per pixel, and as much per block."""
_SECONDS, _SECONDS_OF_A_PIXEL = 2.0, 4e-6
"""Limit of processor time: twenty times what JPEG 2000 takes on an AMD EPYC."""
_MOST_WAITING = 20
"""Times that, in elapsed time, after which a process is ended that waits or is stopped."""
_SECONDS_TO_START, _WATCH_SECONDS = 120.0, 0.5
"""Elapsed time is counted in looks at the process, so that it stops while this process is stopped,
as by Ctrl-Z: the decoder may have answered long before it goes on.
"""
_TRIALS = 2
"""Maximum tries: a process may be ended from outside."""
_KINDS, _SIZES = (b"u", b"i"), (1, 2, 4)


class UnpackingError(RuntimeError):
    """A frame cannot be unpacked."""


class UnpackingTimeError(UnpackingError):
    """A frame was not unpacked in its time. seconds: of the processor, that it had."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"decompression took more than {seconds:.0f} s")
        self.seconds = seconds


class FrameUnpacker:
    """Unpacks frames for one thread; a context manager. Its process starts with the first frame,
    and again after one that ended it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = threading.Event()
        self._looks = 0
        self._last_look = math.inf

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
            last = self._allow(_MOST_WAITING * seconds)
            try:
                with suppress(BrokenPipeError, EOFError):
                    return _answered(process, request, frame)
            finally:
                self._last_look = math.inf  # between frames it may wait
            self._end()
            if self._looks > last or process.returncode == frame_codecs.OUT_OF_TIME:
                raise UnpackingTimeError(seconds)
        raise UnpackingError("its decoder crashed")

    def _allow(self, seconds: float) -> float:
        """Let the process take so long from now on; return the look that it must not outlast."""
        self._last_look = self._looks + seconds / _WATCH_SECONDS
        return self._last_look

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._allow(_SECONDS_TO_START)  # before somebody looks
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
            if cast("IO[bytes]", self._process.stdout).read(len(frame_codecs.READY)) == b"":
                self._end()
                raise ChildProcessError("its decoders cannot be loaded")
        return self._process

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """End a process that takes too long; one that computes is ended sooner by its own limit."""
        while process.poll() is None and not self._is_over.wait(_WATCH_SECONDS):
            self._looks += 1
            if self._looks > self._last_look:
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
    """Request a frame from the decoding process.

    Raises UnpackingError if it refuses the frame, BrokenPipeError and EOFError if it has ended or
    its answer is no frame of these extents.
    """
    requests, answers = cast("Any", process.stdin), cast("Any", process.stdout)
    for part in (memoryview(request), frame.packed):
        frame_codecs.send(requests, part)
    head = bytearray(frame_codecs.ANSWER.size)
    frame_codecs.fill(answers, memoryview(head))
    is_done, kind, size, rows, columns = frame_codecs.ANSWER.unpack(head)
    if not is_done:
        raise UnpackingError("its decoder rejects it")
    extents = frame.rows, frame.columns
    if (rows, columns) != extents or kind not in _KINDS or size not in _SIZES:
        raise EOFError
    pixels = np.empty((rows, columns), f"{kind.decode()}{size}")
    frame_codecs.fill(answers, pixels.data.cast("B"))
    return pixels
