"""GPUs of this machine: which are visible and usable and why not, a context created early, and
energy counters. Loads no CUDA package.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from uuid import UUID

from .cuda_packages import why_not_these_packages

VARIABLE = "CUDA_VISIBLE_DEVICES"

_NO_GPU = "-1"


def visible_names() -> tuple[str, ...] | None:
    """Return the entries of CUDA_VISIBLE_DEVICES, in CUDA's order: numbers, or UUIDs of GPUs or MIG
    instances; None if it is not set.
    """
    value = os.environ.get(VARIABLE)
    return None if value is None else tuple(name.strip() for name in value.split(","))


def visible_name(index: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES that shows a process one of this process's GPUs."""
    names = visible_names()
    if names is None:
        return str(index)
    is_sound = len(set(names)) == len(names)  # otherwise CUDA shows none
    return names[index] if is_sound and index < len(names) else _NO_GPU


OLDEST_CAPABILITY = (7, 5)

_NO_DEVICE = 100
_INIT_ERRORS = {
    34: "its library is the toolkit's stub; remove the folder stubs from LD_LIBRARY_PATH",
    802: "the system is not ready; start the NVIDIA services, such as the fabric manager",
    803: "its library and its kernel module have different versions; restart the machine",
    804: "the installed forward-compatibility package does not fit this GPU; remove it",
}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU.

    index: CUDA's device number. name: of the product. capability: compute capability, major and
    minor. total_bytes: of its memory. free_bytes: None if NVML does not report it. driver: its
    version. bus: PCI address, by which NVML identifies it. uuid: of the GPU or MIG instance, the
    same in every process; "" if unknown. is_integrated: whether GPU and CPU share their memory, as
    on a Jetson.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int | None
    driver: str
    bus: str = ""
    uuid: str = ""
    is_integrated: bool = False


class _NoCudaError(Exception):
    """Reason why CUDA cannot be used, in words."""


class _DriverFaultError(_NoCudaError):
    """An installed driver does not work; the text is cause, colon, remedy."""


def why_no_cuda() -> str | None:
    """Return one sentence on what is missing and what to install, or None."""
    try:
        library, newest = _driver()
        if sentence := why_not_these_packages(newest):
            return sentence
        if not any(gpu.capability >= OLDEST_CAPABILITY for gpu in _devices(library, newest)):
            raise _NoCudaError(
                "no GPU here has compute capability 7.5 or higher, which the CUDA engine needs"
            )
    except _NoCudaError as error:
        return str(error)
    return None


def driver_fault() -> tuple[str, str] | None:
    """Return fault and remedy of an installed driver; None if it starts, or if there is none.

    A driver that shows no GPU is not faulty.
    """
    try:
        _driver()
    except _DriverFaultError as fault:
        what, _, advice = str(fault).rpartition(": ")
        cause, _, remedy = advice.rpartition("; ")
        return f"{what}: {cause}" if cause else what, remedy
    except _NoCudaError:
        pass
    return None


def cuda_devices() -> tuple[CudaDevice, ...]:
    """Return the GPUs that the driver shows; none without a driver."""
    try:
        library, newest = _driver()
    except _NoCudaError:
        return ()
    return tuple(_devices(library, newest, management_library()))


def usable_gpus() -> list[CudaDevice]:
    """Return the GPUs that the CUDA engine can use, without their free memory."""
    try:
        library, newest = _driver()
    except _NoCudaError:
        return []
    return [c for c in _devices(library, newest) if c.capability >= OLDEST_CAPABILITY]


def only_usable_gpu() -> CudaDevice | None:
    """Return the only GPU of a process, without its free memory; None if it, or a package, is
    missing or cannot be used.
    """
    if why_no_cuda():
        return None
    [gpu, *others] = usable_gpus()
    return None if others else gpu


def visible_gpu_count() -> int:
    """Return the number of GPUs as known without starting the driver; 0 if unknown."""
    if (names := visible_names()) is not None:
        return len(names)
    management, count = management_library(), ctypes.c_uint()
    if management is None or management.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return 0
    return count.value


def driver_library() -> Any | None:
    """Return the driver's library, initialised; None if it is missing or does not start."""
    try:
        return _driver()[0]
    except _NoCudaError:
        return None


def _driver() -> tuple[Any, int]:
    """Return the driver's library and its newest CUDA version, as 1000 major + 10 minor."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
        start = library.cuInit
    except (OSError, AttributeError) as error:
        if _is_missing(name, error):
            raise _NoCudaError(f"no NVIDIA driver is installed ({name} was not found)") from None
        raise _DriverFaultError(
            f"the library of the NVIDIA driver cannot be loaded ({error}): reinstall the driver, "
            "or remove what precedes it from LD_LIBRARY_PATH"
        ) from None
    status = start(0)
    if status == _NO_DEVICE:
        raise _NoCudaError(f"the NVIDIA driver shows no GPU{_shown_to_this_process()}")
    if status:
        why = _INIT_ERRORS.get(status, "see the system's log")
        raise _DriverFaultError(
            f"the NVIDIA driver does not start (cuInit returned {status}): {why}"
        )
    newest = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(newest))
    return library, newest.value


def _is_missing(name: str, error: Exception) -> bool:
    """Return whether the library is absent, as on most machines, rather than damaged."""
    return isinstance(error, OSError) and (
        sys.platform != "linux" or str(error).startswith(f"{name}: cannot open shared object file")
    )


def _shown_to_this_process() -> str:
    names = visible_names()
    return "" if names is None else f"; {VARIABLE} is {','.join(names)!r}"


def _devices(library: Any, newest: int, management: Any = None) -> Iterator[CudaDevice]:
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    supported = f"CUDA {newest // 1000}.{newest % 1000 // 10}"
    driver = f"{_driver_release(management)}, {supported}" if management else supported
    for index in range(count.value):
        device = ctypes.c_int()
        library.cuDeviceGet(ctypes.byref(device), index)
        name = ctypes.create_string_buffer(128)
        library.cuDeviceGetName(name, len(name), device)
        total = ctypes.c_size_t()
        library.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        capability = _attribute(library, device, _MAJOR), _attribute(library, device, _MINOR)
        bus = ctypes.create_string_buffer(32)
        library.cuDeviceGetPCIBusId(bus, len(bus), device)
        free = _free_bytes(management, bus)
        yield CudaDevice(
            index,
            name.value.decode(),
            capability,
            total.value,
            free,
            driver,
            bus.value.decode(),
            _uuid(library, device),
            _attribute(library, device, _INTEGRATED) == 1,
        )


def _uuid(library: Any, device: Any) -> str:
    found = (ctypes.c_ubyte * 16)()
    library.cuDeviceGetUuid_v2(found, device)
    return str(UUID(bytes=bytes(found)))


def _attribute(library: Any, device: Any, attribute: int) -> int:
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    return value.value


def management_library() -> Any:
    """Return NVML, which reports free memory without a context, or None."""
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


def _driver_release(management: Any) -> str:
    release = ctypes.create_string_buffer(80)
    management.nvmlSystemGetDriverVersion(release, len(release))
    return release.value.decode()


class _MemoryInfo(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _free_bytes(management: Any, bus: Any) -> int | None:
    if management is None:
        return None
    handle, info = ctypes.c_void_p(), _MemoryInfo()
    if management.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
        return None
    if management.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info)):
        return None
    return int(info.free)


@contextmanager
def early_context(choose: Callable[[], int | None], load: Callable[[], object]) -> Generator[None]:
    """Retain the primary context of a GPU during the block, created in a background thread.

    Creating it takes 0.2 s and more, without holding Python's lock. choose: returns the GPU's
    index, or None for no context; called in a thread. load: imports the modules that open the GPU;
    called in another thread once a GPU is chosen. Errors are ignored here: they recur when the GPU
    is opened, and are reported there.
    """
    kept: list[tuple[Any, int]] = []

    def begin() -> None:
        if (index := choose()) is not None:
            loading = _started("packages", load)
            kept.extend(_retained(index))
            loading.join()

    thread = _started("context", begin)
    try:
        yield
    finally:
        thread.join()
        for library, device in kept:
            library.cuDevicePrimaryCtxRelease_v2(device)


def _started(name: str, work: Callable[[], object]) -> threading.Thread:
    """Start a thread whose errors are ignored."""

    def run() -> None:
        with suppress(Exception):
            work()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _retained(index: int) -> list[tuple[Any, int]]:
    """Retain a GPU's primary context; return the driver and its device number, or nothing."""
    library = driver_library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library is None or library.cuDeviceGet(ctypes.byref(device), index):
        return []
    if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return []
    return [(library, device.value)]


_FEWEST_SECONDS = 1.0
"""Shortest measurement that is exact: the counters are updated ten times a second."""


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy consumed by GPUs, by all programs on them.

    joules: total of the GPUs. seconds: from the first reading to the last.
    """

    joules: float
    seconds: float

    @property
    def watts(self) -> float:
        """Average power."""
        return self.joules / self.seconds if self.seconds else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether the measurement was long compared with the counters' resolution."""
        return self.seconds >= _FEWEST_SECONDS


class EnergyMeter:
    """Energy meter that starts when it is created. buses: PCI addresses of the GPUs."""

    def __init__(self, buses: Sequence[str]) -> None:
        self._buses = buses
        self._since, self._first = perf_counter(), _joules(self._buses)

    def read(self) -> Energy | None:
        """Return the energy consumed so far; None without a GPU, or if one has no counter."""
        last = _joules(self._buses)
        if self._first is None or last is None:
            return None
        return Energy(last - self._first, perf_counter() - self._since)


def _joules(buses: Sequence[str]) -> float | None:
    """Return the sum of the energy counters of the GPUs at these addresses, or None."""
    library = management_library() if buses else None
    if library is None:
        return None
    millijoules = 0
    for bus in buses:
        handle, counted = ctypes.c_void_p(), ctypes.c_ulonglong()
        if library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)):
            return None
        if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(counted)):
            return None
        millijoules += counted.value
    return millijoules / 1000
