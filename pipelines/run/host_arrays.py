"""Memory of large host arrays, reused by the following studies."""

import math
import threading
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

from ...io.volume import AnyArray

GRAIN_BYTES = 2 << 20
"""Blocks are multiples of a huge page; smaller arrays are left to NumPy."""

LARGEST_EXCESS = 1.5
"""Largest ratio of a block's size to its array's."""


class _Lease:
    """Owner of a block's arrays; the block is free again once nothing refers to this object."""

    def __init__(self, block: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = block.__array_interface__


class HostArrays:
    """Arrays whose memory is reclaimed automatically when their last view is gone.

    Fresh memory is expensive: the system clears each page when it is first touched, and unmaps it
    on every core when it is freed. If no reclaimed block fits the next array, the blocks idle
    longest are freed first, so that never more memory is kept than was in use at one time. Any
    thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[npt.NDArray[np.uint8]] = deque()  # by whichever thread lets go
        self._idle: list[npt.NDArray[np.uint8]] = []
        self._lent = 0

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
        """Return an uninitialised array in C order. Raises MemoryError."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < GRAIN_BYTES:
            with self._lock:
                self._collect()
                self._make_room(size)
            return np.empty(shape, kind)
        block = self._block(math.ceil(size / GRAIN_BYTES) * GRAIN_BYTES)
        lease = _Lease(block)
        weakref.finalize(lease, self._returned.append, block).atexit = False
        return np.asarray(lease)[:size].view(kind).reshape(shape)

    @property
    def held(self) -> int:
        """Return the bytes of all blocks, in use or not."""
        with self._lock:
            self._collect()
            return self._lent + sum(block.nbytes for block in self._idle)

    def _block(self, size: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            self._collect()
            fitting = [
                (block.nbytes, place)
                for place, block in enumerate(self._idle)
                if size <= block.nbytes <= LARGEST_EXCESS * size
            ]
            if fitting:
                block = self._idle.pop(min(fitting)[1])
            else:
                self._make_room(size)
                block = np.empty(size, np.uint8)
            self._lent += block.nbytes
            return block

    def _make_room(self, size: int) -> None:
        while self._idle and size >= 0:
            size -= self._idle.pop(0).nbytes

    def _collect(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._lent -= block.nbytes
            self._idle.append(block)
