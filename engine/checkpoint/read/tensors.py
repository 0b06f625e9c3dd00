"""Tensors as a checkpoint stores them: a strided view of a storage, made float32 on demand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from ...network.graph import LARGEST_WEIGHTS
from ...network.layers import FloatArray

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
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}
"""Size of every element type that may lie in a checkpoint; only the floats are ever read."""

# NumPy has no bfloat16; its bits are the upper half of a float32.
_READ_AS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
MOST_AXES = 8

_LARGEST_EMPTY = 1 << 31
_MOST_SHARING = 32
"""Bytes of float32 for each stored one: float16 doubles them, and tied layers are read anew."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A run of bytes that tensors look into, fetched when one of them is read.

    size: bytes. read: fetches them.
    """

    size: int
    read: Callable[[], memoryview] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint; offset and stride count elements, as PyTorch's do.

    element: type of its numbers. storage: where they lie. shape: extents, outermost first.

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
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        if self.size and self.offset + reach < available < self.size:
            raise CheckpointError(
                "A tensor in the checkpoint shows the same stored numbers again and again, as "
                "expand makes it; save it with torch.save after clone()."
            )
        if self.size > available or (self.size and self.offset + reach >= available):
            raise CheckpointError(
                "A tensor in the checkpoint reaches beyond its storage; the file is damaged."
            )
        if not self.size and prod(extent or 1 for extent in self.shape) > _LARGEST_EMPTY:
            raise CheckpointError("An empty tensor in the checkpoint has a shape without sense.")

    @property
    def size(self) -> int:
        """Its elements."""
        return prod(self.shape)

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
        if not self.size:
            return np.empty(self.shape, _READ_AS[self.element])
        width = ELEMENT_BYTES[self.element]
        flat = np.frombuffer(
            self.storage.read(), _READ_AS[self.element], self.storage.size // width
        )
        # Nothing ever steps along an extent of 1, so any number may stand there.
        steps = [
            step * width if extent > 1 else 0
            for extent, step in zip(self.shape, self.stride, strict=True)
        ]
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :], self.shape, steps, writeable=False
        )


def check_amount(tensors: Iterable[StoredTensor]) -> None:
    """Raise CheckpointError if the tensors are too much to be read as float32, all together.

    Many may look into one storage, so what they take is not bounded by the size of their file.
    """
    tensors = tuple(tensors)
    wanted = sum(tensor.size for tensor in tensors) * np.dtype(np.float32).itemsize
    if wanted > LARGEST_WEIGHTS:
        raise CheckpointError(
            f"The generator's weights would take {wanted / 2**30:.1f} GiB in float32, and a model "
            f"holds {LARGEST_WEIGHTS >> 30} GiB at most."
        )
    storages = {id(tensor.storage): tensor.storage.size for tensor in tensors}
    if wanted > _MOST_SHARING * sum(storages.values()):
        raise CheckpointError(
            f"The generator's weights would take {wanted / 2**20:.0f} MiB in float32, but share "
            f"{sum(storages.values()) / 2**20:.1f} MiB in the file; no training stores its weights "
            "so. Save them with torch.save(model.state_dict(), 'generator.pth')."
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
