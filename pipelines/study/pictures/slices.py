"""Slices of a volume, as a reader of scans sees them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....io.volume import AnyArray, Volume
from ..voxels.orientation import orientation


@dataclass(frozen=True, slots=True)
class Slice:
    """A plane through the patient: values [row, column], the first row on top.

    edges: letters of the patient's sides at the left, right, top and bottom (radiological
    convention: the patient's right is on the left). extents: millimetres along rows and columns.
    name: of the plane.
    """

    name: str
    values: npt.NDArray[np.float64]
    edges: tuple[str, str, str, str]
    extents: tuple[float, float]


def mid_slices(volume: Volume) -> tuple[Slice, Slice, Slice]:
    """As `slices_through`, through the middle of the grid."""
    return slices_through(volume)


def slices_through(
    volume: Volume, voxel: tuple[int, int, int] | None = None
) -> tuple[Slice, Slice, Slice]:
    """Axial, coronal and sagittal slice, in the scan's unit.

    voxel: [i, j, k], through which they go; None takes the middle of the grid. An oblique scan is
    shown along its own axes, under the letters of the nearest patient axes. Raises PreparationError
    if the affine is unusable.
    """
    turned = orientation(volume.affine, "RAS")
    seen = turned.oriented(volume.voxels)
    right, front, top = (
        turned.place(voxel, volume.shape) if voxel else (extent // 2 for extent in seen.shape)
    )
    x, y, z = turned.sorted_spacing(volume.spacing)

    def shown(
        name: str, plane: AnyArray, edges: tuple[str, str, str, str], across: float, up: float
    ) -> Slice:
        """A plane [across, up], whose axes both run against those of the picture."""
        values = plane.T[::-1, ::-1] * np.float64(volume.slope) + volume.intercept
        rows, columns = values.shape
        return Slice(name, values, edges, (rows * up, columns * across))

    return (
        shown("axial", seen[:, :, top], ("R", "L", "A", "P"), x, y),
        shown("coronal", seen[:, front, :], ("R", "L", "S", "I"), x, z),
        shown("sagittal", seen[right, :, :], ("A", "P", "S", "I"), y, z),
    )
