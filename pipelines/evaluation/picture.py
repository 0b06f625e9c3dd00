"""The picture of a study: truth, result and their difference where they differ most."""

from io import BytesIO

import numpy as np

from ...io.volume import Volume
from ..report.previews import small_webp
from ..study.preview import Column, difference_shades, drawn, grey_shades
from ..study.slices import slices_through
from .images import Flags


def draw(
    truth: Volume, result: Volume, inside: Flags | None, at: tuple[int, int, int]
) -> bytes | None:
    """WebP of three planes of each, both in the truth's grey window.

    inside: [k, j, i], the voxels that count; the difference is 0 elsewhere. at: plane k, row j and
    column i that the planes go through. Raises PreparationError if the affine is unusable.
    """
    voxel = at[2], at[1], at[0]
    true, made = slices_through(truth, voxel), slices_through(result, voxel)
    changes = [b.values - a.values for a, b in zip(true, made, strict=True)]
    if inside is not None:
        counted = slices_through(truth.with_voxels(inside.T), voxel)
        pairs = zip(changes, counted, strict=True)
        changes = [np.where(flags.values > 0, change, 0.0) for change, flags in pairs]
    planes = [plane.values for plane in true]
    grey = grey_shades(planes)
    columns = [
        Column("truth", planes, grey),
        Column("result", [plane.values for plane in made], grey),
        Column("result - truth", changes, difference_shades(changes)),
    ]
    return small_webp(BytesIO(drawn(true, columns)))
