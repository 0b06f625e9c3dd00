"""Memory of the GPU and the host that a generator of volumes keeps from one volume to the next.

The host's is pinned, for offloaded maps, while other work goes on.
"""

import mmap
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress

import numpy as np

from ...errors import CudaError, DeviceMemoryError
from ...whole_volume import HostBudget
from ..driver import Context, PinnedBuffer, call, driver
from ..in_flight import GrowingBuffer

PINNED_BYTES = 128 << 20
"""Bytes pinned per call: no other call to the driver gets through meanwhile, and a study's first
pass is running.
"""

_SHARE = 32 << 20
"""Bytes that a thread touches at a time."""

_THREADS = 8
"""Threads that touch pages: the system clears 5 GB/s in each, and a study waits for gigabytes."""

_FLAGS = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP


class HeldMemory:
    """Memory of the GPU and the host, kept from one volume to the next, and grown when needed."""

    def __init__(self, host_budget: HostBudget) -> None:
        """host_budget: bytes available for maps in pinned memory."""
        self._host_budget = host_budget
        self._opened = ExitStack()
        self._maps, self._constants = (GrowingBuffer(self._opened) for _ in range(2))
        self._host: Future[tuple[int, ExitStack]] | None = None
        self._host_size = 0
        self._pinning = ThreadPoolExecutor(1, "pinning")

    def __enter__(self) -> "HeldMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_host()
        self._pinning.shutdown()
        self._opened.close()

    def release(self) -> None:
        """Free the GPU memory."""
        self._maps.release()

    def device_for(self, size: int) -> int:
        """Return the address of so many bytes of GPU memory. Raises DeviceMemoryError."""
        return self._maps.address_of(size)

    def begin_host(self, size: int, context: Context) -> None:
        """Start to pin so many bytes, replacing the earlier ones if these are fewer.

        Raises DeviceMemoryError if they may not be pinned.
        """
        if self._host is not None and self._host.done() and self._host.exception():
            self._close_host()
        if size <= self._host_size:
            return
        self._close_host()
        check_host_budget(size, self._host_budget())
        self._host_size = size

        def pinned() -> tuple[int, ExitStack]:
            context.use()
            with ExitStack() as opened:
                address = opened.enter_context(pinned_maps(size))
                return address, opened.pop_all()

        self._host = self._pinning.submit(pinned)

    def host_for(self, size: int, context: Context) -> Callable[[], int]:
        """Return a function that waits for so many pinned bytes and returns their address, 0 for
        none.

        Raises DeviceMemoryError, as the returned function does if the driver finds no more memory.
        """
        self.begin_host(size, context)
        host = self._host if size else None
        return (lambda: 0) if host is None else (lambda: host.result()[0])

    def _close_host(self) -> None:
        if self._host is not None:
            with suppress(DeviceMemoryError, CudaError):  # it was not pinned
                self._host.result()[1].close()
        self._host, self._host_size = None, 0

    def constants_for(self, size: int) -> int:
        """Return the address of so many bytes of GPU memory, replacing the earlier ones."""
        self._constants.release()
        return self._constants.address_of(size)


def check_host_budget(size: int, budget: int) -> None:
    """Raise DeviceMemoryError if maps of so many bytes may not be pinned."""
    if size > budget:
        raise DeviceMemoryError(
            f"Feature maps of this volume need {-(-size >> 20)} MiB of pinned host memory, but "
            f"only {budget >> 20} MiB may be pinned; use a larger setting vram-limit or setting "
            "inference=patches, end other programs or allow this one more host memory.",
            wanted=size,
            free=budget,
        )


@contextmanager
def pinned_maps(size: int) -> Generator[int]:
    """Allocate pinned bytes for host and GPU and yield their address; see `parts_of` for copies.

    No copy may pass the end of a part. Raises DeviceMemoryError. The driver alone allocates them at
    2 GB/s, most of which goes to pages of 4 KiB.
    """
    with ExitStack() as opened:
        address = _in_large_pages(size, opened)
        if address is None:
            address = opened.enter_context(PinnedBuffer(size)).address
        yield address


def parts_of(begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of pinned maps that were pinned by one call: start and bytes of
    each.
    """
    end = begin + size
    while begin < end:
        stop = min(end, (begin // PINNED_BYTES + 1) * PINNED_BYTES)
        yield begin, stop - begin
        begin = stop


def _in_large_pages(size: int, opened: ExitStack) -> int | None:
    """Return the address of so many bytes in large pages; None if system or driver have no such
    pages.
    """
    pages = _large_pages(size)
    if pages is None:
        return None

    def take(first: int) -> None:
        pages[first : first + _SHARE : mmap.PAGESIZE] = 0

    address = pages.ctypes.data
    with ExitStack() as pinned, ThreadPoolExecutor(_THREADS, "taking pages") as threads:
        taken = [threads.submit(take, first) for first in range(0, size, _SHARE)]
        for first, count in parts_of(0, size):
            wait(taken[first // _SHARE : -(-(first + count) // _SHARE)])
            if not _is_pinned(address + first, count):
                return None
            pinned.callback(_unpin, pages, first)
        opened.push(pinned.pop_all())
    return address


def _unpin(pages: "np.ndarray[tuple[int], np.dtype[np.uint8]]", first: int) -> None:
    """Unpin a part of the pages, which are freed with their array."""
    driver.cuMemHostUnregister(pages.ctypes.data + first)


def _large_pages(size: int) -> "np.ndarray[tuple[int], np.dtype[np.uint8]] | None":
    """Return memory whose pages become large when first touched; None if there are none."""
    if sys.platform != "linux":
        return None
    # A shared map, Python's default, has large pages only if an administrator allows it.
    try:
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(mmap.MADV_DONTFORK)  # else each pinned page is copied for a child at once
    except OSError:  # a kernel built without them, or a limit of addresses
        return None
    return np.frombuffer(memory, np.uint8)


def _is_pinned(address: int, size: int) -> bool:
    """Pin pages, if the driver can; return whether the GPU then has them at the same address."""
    status, *_ = driver.cuMemHostRegister(address, size, _FLAGS)
    if status != driver.CUresult.CUDA_SUCCESS:
        return False
    if int(call(driver.cuMemHostGetDevicePointer, address, 0)) == address:
        return True
    driver.cuMemHostUnregister(address)
    return False
