"""Peak host memory of this process, by the kernel's own account."""

import ctypes
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from pathlib import Path

from ...io.files.machine_limits import address_space_limit, memory_left, most_memory
from ..errors import PreparationError

LEAST_ADDRESS_SPACE = 768 << 20
"""In which Python, NumPy, SimpleITK and ONNX Runtime can be loaded; some abort in less."""

LEAST_FREE = 256 << 20
"""What the largest of the libraries, with its threads, asks for at once."""

_GIVEN_BACK_BYTES = 4 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_STATM = Path("/proc/self/statm")
"""Its first figure: pages of address space."""

_CLEAR_PEAK = "5"  # proc(5): writing it to clear_refs resets the peak resident set size


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Largest resident set of the process, in bytes.

    of_run: whether it counts from the start of the process, because the kernel would not reset
    the mark when the study began.
    """

    bytes: int
    of_run: bool


class PeakMeter:
    """Measures the peak from the moment it was made."""

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._process = process
        try:
            (process / "clear_refs").write_text(_CLEAR_PEAK)
            self._was_reset = True
        except OSError:
            self._was_reset = False

    def read(self) -> PeakMemory:
        """The peak so far."""
        if self._was_reset:
            for line in (self._process / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return PeakMemory(int(line.split()[1]) * 1024, of_run=False)
        return PeakMemory(_peak_of_run(), of_run=True)


class PeakMeters:
    """The peak while each of several studies is under way, whatever is worked on beside it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _settle_heap()
        self._meter = PeakMeter()
        self._peaks: dict[str, PeakMemory] = {}

    def enter(self, study: str) -> None:
        """A study begins."""
        with self._lock:
            self._take_note()
            self._peaks[study] = self._meter.read()

    def leave(self, study: str) -> PeakMemory | None:
        """A study is over: the largest resident set since it entered; None if nobody tells."""
        with self._lock:
            self._take_note()
            peak = self._peaks.pop(study)
        return peak if peak.bytes else None

    def _take_note(self) -> None:
        """Credit the peak since the last note to all studies under way, and begin a new one."""
        peak = self._meter.read()
        for study, before in self._peaks.items():
            self._peaks[study] = max(before, peak, key=lambda one: one.bytes)
        self._meter = PeakMeter()


def available_memory() -> int:
    """Bytes that this process could get now: the system's, or its container's or job's rest, or
    what `ulimit -v` leaves it.

    All that there is counts as free where the system does not tell.
    """
    left = memory_left(), _address_space_left(), _free_in_system()
    return min(each for each in left if each is not None)


def require_memory(needed: int) -> None:
    """Raise PreparationError if this process can never have so many bytes at once.

    Where it asked for them, the system would kill it, and a batch with it.
    """
    if needed > (most := most_memory()):
        raise PreparationError(
            f"It needs {needed / 2**30:.1f} GiB of memory at once, and this program may have "
            f"{most / 2**30:.1f} GiB; use a larger machine, or crop the scan."
        )


def check_address_space() -> None:
    """Raise MemoryError if the libraries that every command loads do not fit.

    Some of them end the process when they get no memory. OpenBLAS raises SIGINT instead when it
    gets no threads, for want of memory or by a limit on them, which looks like Ctrl-C; so it may
    have one only, which is enough for the small matrices here.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    limit = address_space_limit()
    if limit is not None and limit < LEAST_ADDRESS_SPACE:
        raise MemoryError


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error comes of too little memory, whatever it is called.

    A library that finds no room, or a thread that cannot start, raises an ImportError or a
    RuntimeError; then a map of some size is refused as well.
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, (ImportError, RuntimeError, OSError)):
        return False
    try:
        mmap(-1, LEAST_FREE).close()
    except (OSError, MemoryError):
        return True
    return False


def return_free_memory() -> None:
    """Hand what was freed back to the system, where glibc keeps it for later.

    Who measures how much more is needed would not see what is taken from there.
    """
    _call_of_glibc("malloc_trim", 0)


def _free_in_system() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return most_memory()


def _address_space_left() -> int | None:
    limit = address_space_limit()
    if limit is None:
        return None
    try:
        pages = int(_STATM.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return limit
    return max(limit - pages * PAGESIZE, 0)


def _peak_of_run() -> int:
    """Bytes, since the process began; 0 where the system does not tell."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def _settle_heap() -> None:
    """Have glibc give back large arrays when they are freed, and keep the memory of smaller ones.

    Of itself it moves both limits while a program runs, until arrays of up to 32 MiB stay and count
    into the peak of the next study.
    """
    _call_of_glibc("mallopt", _M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
    _call_of_glibc("mallopt", _M_TRIM_THRESHOLD, 4 * _GIVEN_BACK_BYTES)


def _call_of_glibc(name: str, *arguments: int) -> None:
    """Call one of its functions; nothing where there is another C library."""
    with suppress(TypeError, AttributeError):  # Windows has no library of the process itself
        getattr(ctypes.CDLL(None), name)(*arguments)
