"""Whether this machine can run the CUDA engine, and on which cards; loads no CUDA package."""

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .packages import why_not_these_packages
from .visible_cards import VARIABLE, visible_names

OLDEST_CAPABILITY = (7, 5)

_NO_DEVICE = 100
_INIT_ERRORS = {
    34: "its library is the toolkit's stub; take the folder stubs out of LD_LIBRARY_PATH",
    802: "the system is not ready; start the NVIDIA services, such as the fabric manager",
    803: "its library and its kernel module are of different versions; restart the machine",
    804: "the installed forward-compatibility package does not fit this card; remove it",
}
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A card. free_bytes is None where the driver's management library does not tell. bus: its
    PCI address, by which that library knows it. uuid: of the card, or of the part of one (MIG),
    the same for whoever may see it; "" if it is not known.

    index: as CUDA counts. name: of the product. capability: compute capability, major and minor.
    total_bytes: of its memory. driver: its version.
    """

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int | None
    driver: str
    bus: str = ""
    uuid: str = ""


class _ObstacleError(Exception):
    """Why there is no CUDA, in words."""


class _DriverFaultError(_ObstacleError):
    """A driver is installed and does not work; what and why, a colon, and what to do."""


def why_no_cuda() -> str | None:
    """One sentence on what is missing and what to install, or None if nothing is."""
    try:
        library, newest = _driver()
        if sentence := why_not_these_packages(newest):
            return sentence
        if not any(card.capability >= OLDEST_CAPABILITY for card in _devices(library, newest)):
            raise _ObstacleError(
                "no card here has compute capability 7.5 or higher, which the CUDA engine needs"
            )
    except _ObstacleError as obstacle:
        return str(obstacle)
    return None


def driver_fault() -> tuple[str, str] | None:
    """What is wrong with an installed driver, and what to do; None if it starts, or there is none.

    A driver that shows no card is in order.
    """
    try:
        _driver()
    except _DriverFaultError as fault:
        what, _, remedy = str(fault).rpartition(": ")
        return what, remedy
    except _ObstacleError:
        pass
    return None


def cuda_devices() -> tuple[CudaDevice, ...]:
    """The cards that the driver shows; none where there is no driver."""
    try:
        library, newest = _driver()
    except _ObstacleError:
        return ()
    return tuple(_devices(library, newest, management_library()))


def usable_cards() -> list[CudaDevice]:
    """Those that the driver shows and the CUDA engine can use, without their free memory."""
    try:
        library, newest = _driver()
    except _ObstacleError:
        return []
    return [c for c in _devices(library, newest) if c.capability >= OLDEST_CAPABILITY]


def lone_card() -> CudaDevice | None:
    """The card of a process that sees no other, without its free memory; None where it, or a
    package, is not there or cannot be used.
    """
    if why_no_cuda():
        return None
    [card, *others] = usable_cards()
    return None if others else card


def shown_cards() -> int:
    """How many cards there are, as far as is known without the driver; 0 where it is not."""
    if (names := visible_names()) is not None:
        return len(names)
    management, count = management_library(), ctypes.c_uint()
    if management is None or management.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return 0
    return count.value


def driver_library() -> Any | None:
    """The driver's library, started; None where there is none or it does not start."""
    try:
        return _driver()[0]
    except _ObstacleError:
        return None


def _driver() -> tuple[Any, int]:
    """The driver's library, and the newest CUDA version it supports, as 1000 major + 10 minor."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
        start = library.cuInit
    except (OSError, AttributeError) as error:
        if _is_missing(name, error):
            raise _ObstacleError(f"no NVIDIA driver is installed ({name} was not found)") from None
        raise _DriverFaultError(
            f"the library of the NVIDIA driver cannot be loaded ({error}): install the driver "
            "again, or take what stands before it out of LD_LIBRARY_PATH"
        ) from None
    status = start(0)
    if status == _NO_DEVICE:
        raise _ObstacleError(f"the NVIDIA driver shows no card{_shown_to_this_process()}")
    if status:
        why = _INIT_ERRORS.get(status, "see the system's log")
        raise _DriverFaultError(
            f"the NVIDIA driver does not start (cuInit returned {status}): {why}"
        )
    newest = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(newest))
    return library, newest.value


def _is_missing(name: str, error: Exception) -> bool:
    """Whether there is no such library, as on most machines, and not a damaged one."""
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
    """NVML, which knows free memory without a context; None where it is not there."""
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
