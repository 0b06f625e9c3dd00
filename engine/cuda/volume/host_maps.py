"""Pinned memory of the host for maps, gigabytes of which are to be there soon."""

import mmap
import sys
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from ...cores import beside_each_other
from ...errors import DeviceMemoryError
from ..driver import PinnedBuffer, call, driver

_SHARE = 32 << 20
"""Bytes that a thread takes at a time."""

_THREADS = 8
"""That take pages: the system clears 5 GB a second for each, and a study waits for gigabytes."""

_FLAGS = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP


def check_host_room(size: int, room: int) -> None:
    """Raise DeviceMemoryError if maps of so many bytes may not be pinned."""
    if size > room:
        raise DeviceMemoryError(
            f"Maps of this volume need {-(-size >> 20)} MiB of the host's memory, and of what is "
            f"free {room >> 20} MiB may be pinned for the card; use a larger setting vram-limit or "
            "setting inference=patches, end other programs or allow this one more host memory.",
            wanted=size,
            free=room,
        )


@contextmanager
def pinned_maps(size: int) -> Generator[int]:
    """Address of so many bytes, for host and card.

    Raises DeviceMemoryError. The driver alone takes them at 2 GB/s, most of which goes to pages of
    4 KiB.
    """
    pages = _large_pages(size)
    if pages is not None and not _is_pinned(pages):
        pages = None  # given back, before the driver takes as many
    if pages is None:
        with PinnedBuffer(size) as buffer:
            yield buffer.address
        return
    try:
        yield pages.ctypes.data
    finally:
        driver.cuMemHostUnregister(pages.ctypes.data)


def _large_pages(size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]] | None":
    """So many bytes that several threads have taken, in large pages; None where there are none."""
    if sys.platform != "linux":
        return None
    # A shared map, as Python makes of itself, has large pages only where an administrator says so.
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)  # else each pinned page is copied for a child at once
    except OSError:  # a kernel built without them, or a limit of addresses
        return None
    pages = np.frombuffer(memory, np.uint8)

    def take(first: int) -> None:
        pages[first : first + _SHARE : mmap.PAGESIZE] = 0

    beside_each_other(take, range(0, size, _SHARE), _THREADS)
    return pages


def _is_pinned(pages: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> bool:
    """Pin pages, if the driver can and the card then finds them at the same address."""
    address = pages.ctypes.data
    status, *_ = driver.cuMemHostRegister(address, pages.nbytes, _FLAGS)
    if status != driver.CUresult.CUDA_SUCCESS:
        return False
    if int(call(driver.cuMemHostGetDevicePointer, address, 0)) == address:
        return True
    driver.cuMemHostUnregister(address)
    return False
