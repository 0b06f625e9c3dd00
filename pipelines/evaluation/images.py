"""A result and its truth on one grid, a few planes at a time, however large both are."""

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
"""Of the planes that are taken at once: a dozen float64 copies stay near a processor's caches.

It decides which sums are added up in which order, so figures do not depend on the machine.
"""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """As a file holds them: a voxel's value is ``stored * slope + intercept``.

    voxels: [k, j, i].
    """

    voxels: AnyArray
    slope: float = 1.0
    intercept: float = 0.0

    @staticmethod
    def of(volume: Volume) -> "StoredImage":
        """A volume's voxels, without a copy."""
        return StoredImage(volume.voxels.T, volume.slope, volume.intercept)

    def values(self, planes: AnyArray | slice) -> DoubleArray:
        """Those of some planes, as a new array."""
        values = self.voxels[planes].astype(np.float64)
        values *= self.slope
        values += self.intercept
        return values


@dataclass(frozen=True, slots=True)
class Images:
    """What is compared: truth and result of equal extents, and which voxels count.

    truth, result: voxels. inside: [k, j, i]; None counts all.
    """

    truth: StoredImage
    result: StoredImage
    inside: Flags | None = None

    @property
    def extents(self) -> Planes:
        """Along k, j and i."""
        k, j, i = self.truth.voxels.shape
        return k, j, i

    def flags(self, planes: AnyArray | slice) -> Flags:
        """Which voxels of some planes count."""
        if self.inside is not None:
            return self.inside[planes]
        return np.ones(self.truth.voxels[planes].shape, np.bool_)

    def counted(self) -> Iterator[tuple[slice, Flags, DoubleArray, DoubleArray]]:
        """Blocks of planes: which, their voxels that count, and truth and result at these, flat."""
        for start, stop in rows(self.extents, BLOCK_VOXELS):
            planes = slice(start, stop)
            flags = self.flags(planes)
            yield planes, flags, self.truth.values(planes)[flags], self.result.values(planes)[flags]
