"""Memory of the stand-in: poisoned, and followed by a page that nobody may touch."""

import ctypes
import mmap
from math import prod
from typing import Any, Self

import numpy as np

NAN = 0xFF
"""Byte of which fp16, bf16 and float make NaN."""

_ALIGNMENT = 256
"""Alignment of what the driver allocates."""

_protect = ctypes.CDLL(None).mprotect


def poisoned(size: int, byte: int = NAN) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return memory full of a byte, aligned as on a GPU; a kernel that goes past its end faults."""
    used = -(-size // _ALIGNMENT) * _ALIGNMENT
    pages = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
    block = np.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), np.uint8)
    block[:pages] = byte
    status = _protect(ctypes.c_void_p(block.ctypes.data + pages), mmap.PAGESIZE, 0)
    assert status == 0
    return block[pages - used : pages]


def array_at(address: int, kind: Any, *shape: int) -> np.ndarray[Any, Any]:
    """Return what lies at an address, as an array."""
    memory = (ctypes.c_char * (prod(shape) * np.dtype(kind).itemsize)).from_address(address)
    return np.frombuffer(memory, kind).reshape(shape)


class Buffer:
    """A block of device memory or of pinned memory; it holds poison again once it is freed."""

    def __init__(self, size: int, byte: int = NAN) -> None:
        self.size = size
        self._byte = byte
        self._memory = poisoned(size, byte)
        self.address = self._memory.ctypes.data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory[:] = self._byte

    def array(self, shape: tuple[int, ...], kind: Any = np.float32) -> Any:
        return array_at(self.address, kind, *shape)


def used_buffer(size: int) -> Buffer:
    """Return memory as another program left it: numbers, where a test must not lean on NaN."""
    return Buffer(size, 0x5A)
