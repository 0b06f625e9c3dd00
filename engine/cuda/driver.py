"""The CUDA driver's objects, each with one owner that frees it; every return code is checked."""

import ctypes
import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from itertools import pairwise
from math import prod
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ..compiler.gpu_properties import GpuProperties
from ..errors import CudaError, DeviceMemoryError

driver: Any = import_module(
    "cuda.bindings.driver"
)  # the package's types are generated and incomplete

_MIB = 1 << 20

_STICKY = (
    "CONTAINED",
    "ILLEGAL_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "TENSOR_MEMORY_LEAK",
    "EXTERNAL_DEVICE",
    "MPS_CLIENT_TERMINATED",
    "ECC_UNCORRECTABLE",
    "NVLINK_UNCORRECTABLE",
    "CONTEXT_IS_DESTROYED",
    "ASSERT",
    "UNKNOWN",
)
_ADVICE = {
    "OUT_OF_MEMORY": "free GPU memory or lower setting vram-limit",
    "NO_BINARY_FOR_GPU": "install CUDA packages that support this GPU",
    "UNSUPPORTED_PTX_VERSION": "update the NVIDIA driver",
    "SYSTEM_DRIVER_MISMATCH": "update the NVIDIA driver",
    "SYSTEM_NOT_READY": "restart the NVIDIA services of this machine",
}


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the driver and return its result.

    Raises DeviceMemoryError if the driver is out of memory, else CudaError with the driver's own
    message.
    """
    try:
        status, *results = function(*arguments)
    except ValueError as error:  # a driver newer than the bindings may return what they cannot name
        advice = (
            "update the CUDA packages, which are older than the driver and do not know this error"
        )
        raise CudaError(function.__name__, str(error), advice, is_sticky=True) from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise _error(function.__name__, status)
    return results[0] if len(results) == 1 else tuple(results)


def _error(name: str, status: Any) -> CudaError | DeviceMemoryError:
    _, text = driver.cuGetErrorString(status)
    code = str(status.name).removeprefix("CUDA_ERROR_")
    reason = f"{code}, {text.decode() if text else 'no explanation'}"
    is_sticky = code in _STICKY
    advice = "start this program again" if is_sticky else "run again with setting device=cpu"
    error = CudaError(name, reason, _ADVICE.get(code, advice), is_sticky=is_sticky)
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        return DeviceMemoryError(str(error))
    return error


class Context:
    """The primary context of one device, current in the thread that creates it or calls `use`.

    properties: those that the driver reports for the device.
    """

    def __init__(self, index: int) -> None:
        call(driver.cuInit, 0)
        self._device: Any = call(driver.cuDeviceGet, index)
        self._context: Any = call(driver.cuDevicePrimaryCtxRetain, self._device)
        try:
            self.use()
            self.properties = _gpu_properties(self._device)
        except BaseException:
            driver.cuDevicePrimaryCtxRelease(self._device)
            raise

    def __enter__(self) -> Self:
        return self

    def use(self) -> None:
        """Make the context current in this thread."""
        call(driver.cuCtxSetCurrent, self._context)

    def __exit__(self, *_: object) -> None:
        driver.cuDevicePrimaryCtxRelease(self._device)

    @property
    def driver_version(self) -> int:
        """The newest CUDA version that the driver supports, as 1000 major + 10 minor."""
        return call(driver.cuDriverGetVersion)

    @property
    def name(self) -> str:
        """Name of the GPU."""
        name: bytes = call(driver.cuDeviceGetName, 128, self._device)
        return name.split(b"\0")[0].decode()

    @property
    def bus(self) -> str:
        """PCI address of the GPU."""
        bus: bytes = call(driver.cuDeviceGetPCIBusId, 32, self._device)
        return bus.split(b"\0")[0].decode()

    @property
    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        return call(driver.cuMemGetInfo)


def _gpu_properties(device: Any) -> GpuProperties:
    attribute = driver.CUdevice_attribute

    def read(number: Any) -> int:
        return call(driver.cuDeviceGetAttribute, number, device)

    return GpuProperties(
        capability=(
            read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            read(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        ),
        multiprocessors=read(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        l2_bytes=read(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        shared_per_block=read(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared_per_multiprocessor=read(
            attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        ),
    )


class Stream:
    """A queue of work."""

    def __init__(self) -> None:
        flag = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.handle: Any = call(driver.cuStreamCreate, flag)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuStreamDestroy(self.handle)

    def wait(self) -> None:
        """Wait until all work in the queue is done; errors of earlier work appear here."""
        call(driver.cuStreamSynchronize, self.handle)

    def after(self, event: "CudaEvent") -> None:
        """Queue waiting for the work that precedes an event in the event's own queue."""
        call(driver.cuStreamWaitEvent, self.handle, event.handle, 0)

    def upload(self, target: int, source: int, size: int) -> None:
        """Queue a copy from host to device memory."""
        call(driver.cuMemcpyHtoDAsync, target, source, size, self.handle)

    def download(self, target: int, source: int, size: int) -> None:
        """Queue a copy from device to host memory."""
        call(driver.cuMemcpyDtoHAsync, target, source, size, self.handle)

    def copy(self, target: int, source: int, size: int) -> None:
        """Queue a copy within device memory."""
        call(driver.cuMemcpyDtoDAsync, target, source, size, self.handle)

    def upload_now(self, target: int, content: bytes | memoryview) -> None:
        """Copy contiguous bytes to device memory and wait for it."""
        source = np.frombuffer(content, np.uint8)
        self.upload(target, source.ctypes.data, source.nbytes)
        self.wait()

    def fill(self, target: int, byte: int, size: int) -> None:
        """Queue setting device memory to one byte."""
        call(driver.cuMemsetD8Async, target, byte, size, self.handle)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        arguments: ctypes.Structure,
        *,
        cooperative: bool = False,
    ) -> None:
        """Queue a kernel that takes one structure by value.

        shared: bytes of dynamic shared memory per block. cooperative: whether its blocks wait for
        each other, so that all must be resident.
        """
        # The driver copies the arguments before it returns, so they may die with this frame.
        pointers = np.array([ctypes.addressof(arguments)], np.uint64)
        launch = driver.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = grid
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = block
        launch.sharedMemBytes, launch.hStream = shared, self.handle
        if cooperative:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            launch.attrs, launch.numAttrs = [attribute], 1
        call(driver.cuLaunchKernelEx, launch, kernel, pointers.ctypes.data, 0)

    def times(self, queue: Callable[[], None], repeats: int) -> list[float]:
        """Return seconds of each of many runs on the GPU, queued without a pause between them.

        One more run goes first: while the GPU computes it, the host queues the others. Else the
        host's time would be in theirs and, as a GPU that idles is given to others, their turns too.
        """
        with ExitStack() as opened:
            marks = [opened.enter_context(CudaEvent()) for _ in range(repeats + 1)]
            queue()
            marks[0].record(self)
            for mark in marks[1:]:
                queue()
                mark.record(self)
            marks[-1].wait()
            return [after.seconds_since(before) for before, after in pairwise(marks)]


class CudaEvent:
    """An event in a queue of work."""

    def __init__(self) -> None:
        self.handle: Any = call(driver.cuEventCreate, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuEventDestroy(self.handle)

    def record(self, stream: Stream) -> None:
        """Record the event after all work that is queued now."""
        call(driver.cuEventRecord, self.handle, stream.handle)

    def wait(self) -> None:
        """Wait until the event is reached."""
        call(driver.cuEventSynchronize, self.handle)

    def seconds_since(self, earlier: "CudaEvent") -> float:
        """Return the time between two events that were reached."""
        return float(call(driver.cuEventElapsedTime, earlier.handle, self.handle)) / 1000


class DeviceBuffer:
    """A block of device memory. Raises DeviceMemoryError if none of that size is available."""

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.address = int(call(driver.cuMemAlloc, size))
        except DeviceMemoryError as error:
            free, _ = call(driver.cuMemGetInfo)
            raise DeviceMemoryError(
                f"The GPU has no free block of {size / _MIB:.0f} MiB ({free / _MIB:.0f} MiB are "
                "free in all); end other programs on it or use a lower setting vram-limit.",
                wanted=size,
                free=free,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuMemFree(self.address)


class PinnedBuffer:
    """A block of pinned host memory, from which copies need no detour.

    Raises DeviceMemoryError if the host has no more memory that can be pinned.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.address = int(call(driver.cuMemHostAlloc, size, 0))
        except DeviceMemoryError as error:
            free = free_host_bytes()
            left = "" if free is None else f" ({free / _MIB:.0f} MiB are free)"
            raise DeviceMemoryError(
                f"The host cannot pin {size / _MIB:.0f} MiB for copies to the GPU{left}; end other "
                "programs or allow this one more host memory.",
                wanted=size,
                free=free,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuMemFreeHost(self.address)

    def array(self, shape: tuple[int, ...], kind: npt.DTypeLike = np.float32) -> Any:
        """Return an array at the start of the memory; valid while the buffer is open."""
        memory: Any = (ctypes.c_byte * self.size).from_address(self.address)
        return np.frombuffer(memory, kind, prod(shape)).reshape(shape)


def free_host_bytes() -> int | None:
    """Return the bytes of free host memory; None if the system does not report it."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


class CudaModule:
    """Compiled kernels; gpu: the GPU of the current context."""

    def __init__(self, image: bytes, gpu: GpuProperties) -> None:
        self._module = call(driver.cuModuleLoadData, image)
        self._gpu = gpu

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuModuleUnload(self._module)

    def kernel(self, name: str) -> Any:
        """Return a kernel by name, with all shared memory per block that the GPU offers allowed."""
        function = call(driver.cuModuleGetFunction, self._module, name.encode())
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        fixed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        most = self._gpu.shared_per_block - call(driver.cuFuncGetAttribute, fixed, function)
        call(driver.cuFuncSetAttribute, function, attribute, most)
        return function


def concurrent_blocks(
    kernel: Any, block: tuple[int, int, int], shared: int, gpu: GpuProperties
) -> int:
    """Return how many blocks of a kernel the GPU of the current context runs concurrently.

    Raises CudaError if not one fits.
    """
    threads, occupancy = prod(block), driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
    each: int = call(occupancy, kernel, threads, shared)
    if not each:
        raise CudaError(
            occupancy.__name__,
            f"no block of {threads} threads and {shared} bytes of shared memory fits this GPU",
            "use setting device=cpu, and report this message",
        )
    return each * gpu.multiprocessors


class CapturedGraph:
    """The work that a function queues on a stream, kept to be launched as one.

    The capture is relaxed: the interpreter may collect garbage meanwhile, such as plans of cuDNN
    with their memory, and freeing that ends any other capture with an error.
    """

    def __init__(self, stream: Stream, queue_work: Callable[[], None]) -> None:
        self._stream = stream
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call(driver.cuStreamBeginCapture, stream.handle, mode)
        try:
            queue_work()
        except BaseException:
            driver.cuStreamEndCapture(stream.handle)  # fails too, with a less specific error
            raise
        graph = call(driver.cuStreamEndCapture, stream.handle)
        try:
            self._executable = call(driver.cuGraphInstantiate, graph, 0)
        finally:
            driver.cuGraphDestroy(graph)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuGraphExecDestroy(self._executable)

    def launch(self) -> None:
        """Queue the captured work on its stream."""
        call(driver.cuGraphLaunch, self._executable, self._stream.handle)
