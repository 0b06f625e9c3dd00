"""Result and truth on one grid, read a few planes at a time, however large both are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...io.volume import AnyArray, DoubleArray, Volume
from ..study.geometry import rows

Flags: TypeAlias = npt.NDArray[np.bool_]
Planes: TypeAlias = tuple[int, int, int]
"""Extents [k, j, i]: planes, their rows and columns."""

BLOCK_VOXELS = 1 << 18
"""Voxels of the planes in one block: a dozen float64 copies stay near a processor's caches.

It is fixed because it determines the order of summation, so figures do not depend on the machine.
"""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """Voxels as stored in a file: a voxel's value is ``stored * slope + intercept``.

    voxels: [k, j, i].
    """

    voxels: AnyArray
    slope: float = 1.0
    intercept: float = 0.0

    @staticmethod
    def of(volume: Volume) -> "StoredImage":
        """Return a volume's voxels, without a copy."""
        return StoredImage(volume.voxels.T, volume.slope, volume.intercept)

    def values(self, planes: AnyArray | slice) -> DoubleArray:
        """Return the values of some planes, as a new array."""
        values = self.voxels[planes].astype(np.float64)
        values *= self.slope
        values += self.intercept
        return values


@dataclass(frozen=True, slots=True)
class Images:
    """Images to compare: truth and result of equal extents, and which voxels count.

    truth, result: voxels. inside: [k, j, i]; None counts all.
    """

    truth: StoredImage
    result: StoredImage
    inside: Flags | None = None

    @property
    def extents(self) -> Planes:
        """Extents along k, j and i."""
        k, j, i = self.truth.voxels.shape
        return k, j, i

    def flags(self, planes: AnyArray | slice) -> Flags:
        """Return which voxels of some planes count."""
        if self.inside is not None:
            return self.inside[planes]
        return np.ones(self.truth.voxels[planes].shape, np.bool_)

    def counted(self) -> Iterator[tuple[slice, Flags, DoubleArray, DoubleArray]]:
        """Yield blocks of planes: their slice, which of their voxels count, and truth and result at
        those, flat.
        """
        for start, stop in rows(self.extents, BLOCK_VOXELS):
            planes = slice(start, stop)
            flags = self.flags(planes)
            yield planes, flags, self.truth.values(planes)[flags], self.result.values(planes)[flags]
