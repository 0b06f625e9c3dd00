"""Allocation of arrays that is counted, to compare it with the planned memory."""

import numpy as np
import numpy.typing as npt

from cuda_cyclegan.io.volume import AnyArray


class CountedArrays:
    """Allocator of arrays. sizes: bytes of each array that was allocated, in order."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def empty(self, shape: tuple[int, ...], kind: npt.DTypeLike) -> AnyArray:
        array = np.empty(shape, kind)
        self.sizes.append(array.nbytes)
        return array
