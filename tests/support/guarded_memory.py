"""Device memory that ends where mapped memory ends and begins behind memory that is not mapped.

To read or write past either end is an illegal address then, where a GPU's own allocations lie side
by side. What nobody has written is NaN.
"""

from typing import Any

import pytest
from cuda.bindings import driver

from cuda_cyclegan.engine.cuda.driver import DeviceBuffer, call

_PAGE = 2 << 20  # to which a GPU maps
_ALIGNMENT = 256  # as of the driver's own allocations
_NAN = 0xFF


def guard_device_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put guards around whatever the program allocates on a GPU from here on."""
    monkeypatch.setattr(DeviceBuffer, "__init__", _allocate)
    monkeypatch.setattr(DeviceBuffer, "__exit__", _free)


def _allocate(self: Any, size: int) -> None:
    self.size = size
    self.mapped = -(-size // _PAGE) * _PAGE
    place: Any = driver.CUmemAllocationProp()
    place.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.location.id = int(call(driver.cuCtxGetDevice))
    access: Any = driver.CUmemAccessDesc()
    access.location = place.location
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    self.reserved = int(call(driver.cuMemAddressReserve, self.mapped + 2 * _PAGE, 0, 0, 0))
    self.handle = call(driver.cuMemCreate, self.mapped, place, 0)
    first = self.reserved + _PAGE
    call(driver.cuMemMap, first, self.mapped, 0, self.handle, 0)
    call(driver.cuMemSetAccess, first, self.mapped, [access], 1)
    call(driver.cuMemsetD8, first, _NAN, self.mapped)
    call(driver.cuCtxSynchronize)  # streams of the program do not wait for the default one
    self.address = first + self.mapped - -(-size // _ALIGNMENT) * _ALIGNMENT


def _free(self: Any, *_: object) -> None:
    driver.cuCtxSynchronize()  # which the driver's own does before it frees
    driver.cuMemUnmap(self.reserved + _PAGE, self.mapped)
    driver.cuMemRelease(self.handle)
    driver.cuMemAddressFree(self.reserved, self.mapped + 2 * _PAGE)
