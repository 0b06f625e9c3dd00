"""Memory of large arrays on the host, used again by the studies that follow."""

import math
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..io.volume import AnyArray

GRAIN_BYTES = 2 << 20
"""Blocks are multiples of a huge page; smaller arrays are left to NumPy."""

USEFUL_FOR = 64
"""A block for which so many further arrays had no use is given back to the system."""


class _Lease:
    """What the arrays of a block refer to; the block is free again once nothing refers to this."""

    def __init__(self, block: "np.ndarray[Any, np.dtype[np.uint8]]") -> None:
        self.__array_interface__ = block.__array_interface__


@dataclass(frozen=True, slots=True)
class _Idle:
    block: "np.ndarray[Any, np.dtype[np.uint8]]"
    since: int


class HostArrays:
    """Arrays whose memory comes back by itself, when the last view of them is gone.

    Fresh memory is dear: the system clears each page when it is first touched and, when it is
    freed, has to take it from every core. What is kept here for the next study is never more than
    what was in use at one time. Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._returned: deque[npt.NDArray[np.uint8]] = deque()  # by whichever thread lets go
        self._idle: list[_Idle] = []
        self._lent = self._most_lent = self._arrays = 0

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
        """An array in C order, its values whatever they were. Raises MemoryError."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size < GRAIN_BYTES:
            return np.empty(shape, kind)
        block = self._block(math.ceil(size / GRAIN_BYTES) * GRAIN_BYTES)
        lease = _Lease(block)
        weakref.finalize(lease, self._returned.append, block).atexit = False
        return np.asarray(lease)[:size].view(kind).reshape(shape)

    @property
    def held(self) -> int:
        """Bytes of all blocks, in use or not."""
        with self._lock:
            self._collect()
            return self._lent + self._kept()

    def _block(self, size: int) -> npt.NDArray[np.uint8]:
        with self._lock:
            self._arrays += 1
            self._collect()
            for place, idle in enumerate(self._idle):
                if idle.block.nbytes == size:
                    del self._idle[place]
                    self._lent += size
                    return idle.block
            block = np.empty(size, np.uint8)
            self._lent += size
            self._most_lent = max(self._most_lent, self._lent)
            while self._idle and self._lent + self._kept() > self._most_lent:
                del self._idle[0]
            return block

    def _collect(self) -> None:
        """Take note of the blocks that came back, and drop those that nobody asks for."""
        while self._returned:
            block = self._returned.popleft()
            self._lent -= block.nbytes
            self._idle.append(_Idle(block, self._arrays))
        self._idle = [idle for idle in self._idle if self._arrays - idle.since < USEFUL_FOR]

    def _kept(self) -> int:
        return sum(idle.block.nbytes for idle in self._idle)
