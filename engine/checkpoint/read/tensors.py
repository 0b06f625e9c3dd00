"""Tensors as a checkpoint stores them: a strided view of a storage, made float32 on demand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from ...network.graph import FloatArray

ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Size of every element type that may lie in a checkpoint; only the floats are ever read."""

# NumPy has no bfloat16; its bits are the upper half of a float32.
_READ_AS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
MOST_AXES = 8


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes that tensors look into, fetched when one of them is read."""

    size: int
    read: Callable[[], memoryview] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint; offset and stride count elements, as PyTorch's do.

    Raises CheckpointError if any element would lie outside the storage.
    """

    element: str
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.stride) or len(self.shape) > MOST_AXES:
            raise CheckpointError("A tensor in the checkpoint has a shape that makes no sense.")
        if min((self.offset, *self.shape, *self.stride)) < 0:
            raise CheckpointError("A tensor in the checkpoint has a negative extent or stride.")
        available = self.storage.size // ELEMENT_BYTES[self.element]
        count = prod(self.shape)
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        if count > available or (count and self.offset + reach >= available):
            raise CheckpointError(
                "A tensor in the checkpoint reaches beyond its storage; the file is damaged."
            )

    def read(self, name: str) -> FloatArray:
        """Its values as a fresh float32 array; `name` is for error messages."""
        if self.element not in _READ_AS:
            raise CheckpointError(
                f"{name} is stored as {self.element}; weights must be floating-point numbers."
            )
        view = self._view()
        if self.element == "bfloat16":
            view = (np.array(view, np.uint32, order="C") << np.uint32(16)).view(np.float32)
        return finite_float32(view, name)

    def _view(self) -> npt.NDArray[np.generic]:
        if not prod(self.shape):
            return np.empty(self.shape, _READ_AS[self.element])
        width = ELEMENT_BYTES[self.element]
        flat = np.frombuffer(
            self.storage.read(), _READ_AS[self.element], self.storage.size // width
        )
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :], self.shape, [step * width for step in self.stride], writeable=False
        )


def finite_float32(array: npt.NDArray[np.generic], name: str) -> FloatArray:
    """A float32 copy; raises CheckpointError if a number is infinite, too large or none."""
    with np.errstate(over="ignore"):
        copy = np.array(array, np.float32, order="C")
    if not np.isfinite(copy).all():
        raise CheckpointError(
            f"{name} holds numbers that are not finite; the training run diverged, "
            "use an earlier checkpoint."
        )
    return copy
