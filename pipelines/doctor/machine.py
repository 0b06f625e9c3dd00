"""Cores, memory and disk available to this process, and the speed of the disk."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...engine.cores import allowed_cores
from ...engine.cuda.user_cache import cache_folder
from ...io.files.disk import drop_cached, free_bytes, read_at
from ...io.files.locks import lock
from ...io.files.machine_limits import cores_granted, physical_memory
from ..host.memory import available_memory
from .findings import Finding, failure, ok, warning

_ENOUGH_MEMORY = 2 << 30
_ENOUGH_FREE = 10 << 30
_SLOW_DISK = 50e6
_LONGEST_SECONDS = 0.4
_BLOCK = 8 << 20
_MOST_BLOCKS = 32
_GIB = 1 << 30

FULL_BYTES = 2 * _BLOCK
"""Free space in bytes below which a disk counts as full."""
_NOT_KEPT = "each start on a GPU tunes again, and durations cannot be predicted"
_CACHE = "set XDG_CACHE_HOME to a writable folder"
_FREE_SPACE = "make room, or choose another folder with setting folder"


def examine_machine(folder: Path) -> Iterator[Finding]:
    """Examine cores, memory, and the disk of a folder for results."""
    yield _cores()
    yield _memory()
    yield from _disk(folder.absolute())
    yield _cache()


def _cores() -> Finding:
    there = os.cpu_count() or 1
    usable = allowed_cores()
    words = f"{usable} of {there} usable"
    quota = cores_granted()
    if quota is not None and quota < usable:
        return warning(
            "Cores",
            f"{words}, but this container may use only {quota:g} of them at a time",
            f"start it with more, or bind it to {max(int(quota), 1)} (taskset, --cpuset-cpus)",
        )
    return ok("Cores", words)


def _memory() -> Finding:
    total = physical_memory()
    if total is None:
        words = "the system does not report its size"
        return warning(
            "Memory", words, "scans that need too much memory are therefore not rejected in advance"
        )
    free = available_memory()
    words = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
    if free < _ENOUGH_MEMORY:
        return warning(
            "Memory",
            f"{words}; a scan of 512 x 512 x 400 voxels needs 1.3 GiB and the network more",
            "close other programs, or translate small scans with a small setting patch only",
        )
    return ok("Memory", words)


def _disk(folder: Path) -> Iterator[Finding]:
    free = free_bytes(folder)
    if folder.is_dir() and free < FULL_BYTES:
        yield failure("Disk", f"{folder}: {free_space_text(free)} free", _FREE_SPACE)
        return
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".cuda-cyclegan-", suffix=".part") as f:
            yield _lock(f.fileno(), folder)
            written, read = _write_speed(f.fileno(), free // 2), _read_speed(f.fileno())
    except OSError as error:
        words = f"{folder} cannot be written ({error.strerror})"
        yield failure(
            "Disk", words, "choose another folder with setting folder, or make it writable"
        )
        return
    speeds = f"writes {written / 1e6:.0f} and reads {read / 1e6:.0f} MB/s"
    words = f"{folder}: {speeds}, {free_space_text(free)} free"
    if free < _ENOUGH_FREE:
        yield warning("Disk", words, "make room before a large batch")
    elif min(written, read) < _SLOW_DISK:
        yield warning("Disk", words, "use a faster disk; reading and writing will take longest")
    else:
        yield ok("Disk", words)


def _cache() -> Finding:
    """Examine the cache folder of GPU tactics and speeds; create nothing there."""
    folder = cache_folder()
    if folder is None:
        return warning("Cache", f"there is no home folder for one: {_NOT_KEPT}", _CACHE)
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return warning("Cache", f"{folder} cannot be written: {_NOT_KEPT}", _CACHE)
    if free_bytes(there) < FULL_BYTES:
        words = f"the disk of {folder} is full: {_NOT_KEPT}"
        return warning("Cache", words, f"make room, or {_CACHE}")
    return ok("Cache", str(folder))


def _lock(descriptor: int, folder: Path) -> Finding:
    try:
        lock(descriptor)
    except OSError as error:
        return failure(
            "File locks",
            f"do not work in {folder} ({error.strerror}), so no batch can write there",
            "choose a folder on another file system, or mount this one with locks",
        )
    return ok("File locks", "work")


def free_space_text(free: int) -> str:
    """Format the free bytes of a disk."""
    return f"{free / _GIB:.1f} GiB" if free >= _GIB else f"{free >> 20} MiB"


def _write_speed(descriptor: int, most: int) -> float:
    """Return the write speed of the disk itself in bytes/s; most: bytes that may be written."""
    block = os.urandom(_BLOCK)
    begin, written = time.perf_counter(), 0
    most = min(most, _MOST_BLOCKS * _BLOCK)
    while time.perf_counter() - begin < _LONGEST_SECONDS and written < most:
        written += os.write(descriptor, block)
        os.fsync(descriptor)
    return written / (time.perf_counter() - begin)


def _read_speed(descriptor: int) -> float:
    """Return the read speed in bytes/s, after dropping the system's cached pages."""
    drop_cached(descriptor)
    begin, place = time.perf_counter(), 0
    while time.perf_counter() - begin < _LONGEST_SECONDS:
        found = read_at(descriptor, _BLOCK, place)
        if not found:
            break
        place += len(found)
    return place / (time.perf_counter() - begin)
