"""Decoders of packed frames, and the process that runs only them.

Run as a script, so this module imports nothing of the program. Requests on its input are answered
on its output, one at a time, until the input ends. A frame that takes more memory than it may
fails; one that takes more processor time has the system end the process.
"""

import os
import select
import signal
import struct
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

REQUEST = struct.Struct("<16sQQd")
"""Request: coding, bytes of the frame that follows, bytes of additional memory, and seconds of
processor time.
"""
ANSWER = struct.Struct("<?cBII")
"""Whether pixels follow; kind and bytes of each, as NumPy names them; rows, columns."""
READY = b"+"
"""Byte sent before the first answer, when all is loaded."""
OUT_OF_TIME = -signal.SIGPROF if hasattr(signal, "SIGPROF") else None
"""Exit status of a process that took more processor time than it may."""
_PIPE_BYTES = 1 << 20
_IDLE_SECONDS = 5.0
"""Interval of checks that the owner still runs: its input may be kept open by another child of the
owner.
"""


def unpacked(coding: str, packed: bytes | bytearray) -> Any:
    """Return the pixels of a frame, [row, column] if it has one sample a pixel.

    Raises RuntimeError, ValueError, TypeError or MemoryError.
    """
    import imagecodecs

    match coding:
        case "jpeg":
            return imagecodecs.jpeg8_decode(packed)
        case "jpeg-ls":
            return imagecodecs.jpegls_decode(packed)
        case "jpeg-2000":
            return imagecodecs.jpeg2k_decode(packed, numthreads=1)  # others cost 14 %
        case _:
            raise ValueError(coding)


def main() -> None:
    """Serve the process whose number is the first argument. The others: module paths."""
    sys.path += sys.argv[2:]
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the owner decides when it ends
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    owner = int(sys.argv[1])
    requests = os.fdopen(0, "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    for pipe in (0, 1):
        _widen(pipe)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # keeps output of libraries out of the answers
    import imagecodecs  # before there are limits

    del imagecodecs
    with suppress(EOFError, BrokenPipeError):
        send(answers, READY)
        while _is_asked(requests, owner):
            coding, length, memory, seconds = REQUEST.unpack(_read(requests, REQUEST.size))
            packed = _read(requests, length)
            _limit(memory, seconds)
            head, content = _answer(coding.rstrip(b"\0").decode(), packed)
            _limit(None, 0)
            send(answers, head)
            send(answers, content)


def _answer(coding: str, packed: bytearray) -> tuple[bytes, bytes | memoryview]:
    """Return head and content of the answer for a frame."""
    try:
        pixels = unpacked(coding, packed)
        head = ANSWER.pack(True, pixels.dtype.kind.encode(), pixels.itemsize, *pixels.shape)
    except (RuntimeError, ValueError, TypeError, MemoryError, struct.error):
        return ANSWER.pack(False, b"u", 1, 0, 0), b""
    return head, memoryview(pixels).cast("B")


def _widen(pipe: int) -> None:
    """Have a pipe hold a whole frame, nearly always, so that neither side waits within one."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _is_asked(requests: FileIO, owner: int) -> bool:
    """Wait for a request; False once no process is left that could make one."""
    if not hasattr(os, "fork"):
        return True
    while not select.select([requests], [], [], _IDLE_SECONDS)[0]:
        if os.getppid() != owner:
            return False
    return True


def _limit(memory: int | None, seconds: float) -> None:
    """Limit additional memory and processor time from here on; None and 0: no limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = most if memory is None else _mapped() + memory
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _mapped() -> int:
    """Return the mapped memory of the process in bytes. Raises OSError if unknown."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read(stream: FileIO, count: int) -> bytearray:
    into = bytearray(count)
    fill(stream, memoryview(into))
    return into


def fill(stream: FileIO, into: memoryview) -> None:
    """Read so many bytes from a pipe. Raises EOFError, OSError."""
    while into:
        count = stream.readinto(into)
        if not count:
            raise EOFError
        into = into[count:]


def send(stream: FileIO, data: bytes | memoryview) -> None:
    """Write all of it to a pipe. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


if __name__ == "__main__":
    main()
