"""Peak and available host memory of this process, as reported by the kernel."""

import ctypes
import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from mmap import PAGESIZE, mmap
from pathlib import Path

from ...io.files.disk import read_at
from ...io.files.machine_limits import address_space_limit, memory_left, most_memory
from ..errors import PreparationError

LEAST_ADDRESS_SPACE = 768 << 20
"""Address space in bytes for loading Python, NumPy, SimpleITK and ONNX Runtime; some abort with
less.
"""

LEAST_FREE = 256 << 20
"""Bytes that the largest of the libraries, with its threads, allocates at a time."""

_GIVEN_BACK_BYTES = 4 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_STATM = Path("/proc/self/statm")
"""File whose first figure is the number of pages of address space."""

_CLEAR_PEAK = b"5"  # proc(5): writing it to clear_refs resets the peak resident set size
_STATUS_BYTES = 1 << 16
"""More than a process's status has: its longest line lists the user's groups."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Largest resident set of the process. bytes: its size.

    of_run: whether it counts from the start of the process, because the kernel did not reset the
    peak when the study began.
    """

    bytes: int
    of_run: bool


class PeakMeter:
    """Meter of the peak since its creation or its last reset."""

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        # Kept open: each system call waits for the interpreter's lock in a batch.
        self._status = self._clear_refs = -1
        with suppress(OSError):
            self._status = _kept_open(process / "status", os.O_RDONLY, self)
            self._clear_refs = _kept_open(process / "clear_refs", os.O_WRONLY, self)
        self.reset()

    def reset(self) -> None:
        """Start again, if the system can do so."""
        try:
            os.write(self._clear_refs, _CLEAR_PEAK)
            self._was_reset = True
        except OSError:
            self._was_reset = False

    def read(self) -> PeakMemory:
        """Return the peak so far."""
        if self._was_reset:
            _, found, rest = read_at(self._status, _STATUS_BYTES, 0).partition(b"VmHWM:")
            if found:
                return PeakMemory(int(rest.split(None, 1)[0]) * 1024, of_run=False)
        return PeakMemory(_peak_of_run(), of_run=True)


class PeakMeters:
    """Peaks while each of several studies is in flight, including concurrent work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _settle_heap()
        self._meter = PeakMeter()
        self._peaks: dict[str, PeakMemory] = {}

    def start(self, study: str) -> None:
        """Start measuring a study."""
        with self._lock:
            self._take_note()
            self._peaks[study] = PeakMemory(0, of_run=False)

    def finish(self, study: str) -> PeakMemory | None:
        """End a study and return its largest resident set; None if the system has no figure."""
        with self._lock:
            self._take_note()
            peak = self._peaks.pop(study)
        return peak if peak.bytes else None

    def _take_note(self) -> None:
        """Apply the peak since the last reading to all studies in flight, and start a new one."""
        peak = self._meter.read()
        for study, before in self._peaks.items():
            self._peaks[study] = max(before, peak, key=lambda one: one.bytes)
        self._meter.reset()


def _kept_open(path: Path, flags: int, owner: object) -> int:
    """Open a file for as long as an object exists. Raises OSError."""
    descriptor = os.open(path, flags)
    weakref.finalize(owner, os.close, descriptor).atexit = False
    return descriptor


def available_memory() -> int:
    """Return the bytes that this process could allocate now, limited by the system, by its
    container or job, and by `ulimit -v`.

    If the system does not report free memory, all of its memory counts as free.
    """
    left = memory_left(), _address_space_left(), _free_in_system()
    return min(each for each in left if each is not None)


def require_memory(needed: int) -> None:
    """Raise PreparationError if this process can never have so many bytes at a time.

    If it allocated them, the system would kill it, and a batch with it.
    """
    if needed > (most := most_memory()):
        raise PreparationError(
            f"It needs {needed / 2**30:.1f} GiB of memory, and this program may use only "
            f"{most / 2**30:.1f} GiB; use a larger machine, or crop the scan."
        )


def check_address_space() -> None:
    """Raise MemoryError if the libraries that every command loads do not fit.

    Some of them end the process when they get no memory. OpenBLAS raises SIGINT instead when it
    gets no threads, for lack of memory or because of a limit on them, which looks like Ctrl-C; so
    it gets only one, which is enough for the small matrices here.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    limit = address_space_limit()
    if limit is not None and limit < LEAST_ADDRESS_SPACE:
        raise MemoryError


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error was caused by too little memory, whatever its class.

    A library without memory, or a thread that cannot start, raises an ImportError or a
    RuntimeError; then mapping LEAST_FREE bytes fails as well.
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
    """Return freed memory to the system, which glibc would keep.

    Otherwise a measurement of further memory would miss allocations from that reserve.
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
    """Return the peak in bytes since the process began; 0 if the system does not report it."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:  # Windows
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss * 1024


def _settle_heap() -> None:
    """Make glibc return large arrays when they are freed, and keep the memory of smaller ones.

    By default it raises both limits while a program runs, until arrays of up to 32 MiB stay and
    count towards the peak of the next study.
    """
    _call_of_glibc("mallopt", _M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
    _call_of_glibc("mallopt", _M_TRIM_THRESHOLD, 4 * _GIVEN_BACK_BYTES)


def _call_of_glibc(name: str, *arguments: int) -> None:
    """Call a function of glibc; do nothing with another C library."""
    with suppress(TypeError, AttributeError):  # Windows has no library of the process itself
        getattr(ctypes.CDLL(None), name)(*arguments)
