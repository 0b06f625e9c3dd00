"""Memory of the stand-in: poisoned, and followed by a page that nobody may touch."""

import ctypes
import mmap
import os
from functools import cache
from math import prod
from tempfile import TemporaryFile
from typing import Any, Self

import numpy as np

NAN = 0xFF
"""Byte of which fp16, bf16 and float make NaN."""

_ALIGNMENT = 256
"""Alignment of what the driver allocates."""

_MAP_FIXED = 0x10
_POISONED_BYTES = 1 << 24
"""Bytes of the file that is mapped again and again."""

_library = ctypes.CDLL(None)
_protect, _map = _library.mprotect, _library.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)


def poisoned(size: int, byte: int = NAN) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return memory full of a byte, aligned as on a GPU; a kernel that goes past its end faults."""
    used = -(-size // _ALIGNMENT) * _ALIGNMENT
    pages = _whole_pages(used)
    block = np.frombuffer(mmap.mmap(-1, pages + mmap.PAGESIZE), np.uint8)
    _poison(block.ctypes.data, pages, byte)
    status = _protect(ctypes.c_void_p(block.ctypes.data + pages), mmap.PAGESIZE, 0)
    assert status == 0
    return block[pages - used : pages]


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _poison(address: int, size: int, byte: int) -> None:
    """Fill pages with a byte.

    Only pages that are written to afterwards take memory and time: of the 64 MB of a volume's
    workspace, hardly any.
    """
    kept, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
    for first in range(address, address + size, _POISONED_BYTES):
        length = min(_POISONED_BYTES, address + size - first)
        assert _map(first, length, kept, how, _file_full_of(byte), 0) == first


@cache
def _file_full_of(byte: int) -> int:
    """Return the descriptor of a file of _POISONED_BYTES, which stays open for all mappings."""
    with TemporaryFile() as file:
        file.write(bytes([byte]) * _POISONED_BYTES)
        file.flush()
        return os.dup(file.fileno())


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
        _poison(self.address // mmap.PAGESIZE * mmap.PAGESIZE, _whole_pages(self.size), self._byte)

    def array(self, shape: tuple[int, ...], kind: Any = np.float32) -> Any:
        return array_at(self.address, kind, *shape)


def used_buffer(size: int) -> Buffer:
    """Return memory as another program left it: numbers, where a test must not lean on NaN."""
    return Buffer(size, 0x5A)
