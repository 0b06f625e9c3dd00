"""Memory of the GPU and the host that a generator of volumes keeps from one volume to the next."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

from ...errors import CudaError, DeviceMemoryError
from ...whole_volume import HostBudget
from ..driver import Context, DeviceBuffer
from .host_maps import check_host_budget, pinned_maps


class HeldMemory:
    """Memory of the GPU and the host, kept from one volume to the next, and grown when needed."""

    def __init__(self, host_budget: HostBudget) -> None:
        """host_budget: bytes available for maps in pinned memory."""
        self._host_budget = host_budget
        self._parts = {name: ExitStack() for name in ("device", "constants")}
        self._device: DeviceBuffer | None = None
        self._host: Future[tuple[int, ExitStack]] | None = None
        self._host_size = 0
        self._pinning = ThreadPoolExecutor(1, "pinning")

    def __enter__(self) -> "HeldMemory":
        return self

    def __exit__(self, *_: object) -> None:
        self._close_host()
        self._pinning.shutdown()
        for part in self._parts.values():
            part.close()

    def release(self) -> None:
        """Free the GPU memory."""
        self._device = None
        self._parts["device"].close()

    def device_for(self, size: int) -> int:
        """Return the address of so many bytes of GPU memory. Raises DeviceMemoryError."""
        if self._device is None or self._device.size < size:
            self.release()
            self._device = self._parts["device"].enter_context(DeviceBuffer(size))
        return self._device.address

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
        self._parts["constants"].close()
        return self._parts["constants"].enter_context(DeviceBuffer(size)).address
