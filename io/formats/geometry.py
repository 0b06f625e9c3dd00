"""Units of length in headers, and notes on geometry that a header leaves unverified."""

from itertools import combinations
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from ..errors import UnreadableScanError
from ..volume import Affine

nibabel: Any = _nibabel  # typed only in part

_UPRIGHT_WITHIN_DEGREES = 1.0
"""Deviation from right angles between the axes of a grid that comes from rounding."""

_WORDS = {
    **dict.fromkeys(("meter", "metre"), 1e3),
    **dict.fromkeys(("centimeter", "centimetre"), 10.0),
    **dict.fromkeys(("millimeter", "millimetre"), 1.0),
    **dict.fromkeys(("micron", "micrometer", "micrometre"), 1e-3),
    **dict.fromkeys(("nanometer", "nanometre"), 1e-6),
}
MILLIMETRES = {
    "m": 1e3,
    "cm": 10.0,
    "mm": 1.0,
    **dict.fromkeys(("um", "\u00b5m", "\u03bcm"), 1e-3),
    "nm": 1e-6,
    **_WORDS,
    **{f"{word}s": length for word, length in _WORDS.items()},
}
"""Millimetres in each unit of length, as NIfTI and NRRD headers name them."""


def unit_notes(unit: str) -> tuple[str, ...]:
    """Return a note on lengths that are in another unit than millimetres, or none."""
    if MILLIMETRES.get(unit) == 1.0:
        return ()
    if unit not in MILLIMETRES:
        return ("its header gives lengths in an unknown unit; millimetres are assumed",)
    return (f"its header gives lengths in {unit}; they are converted to millimetres",)


def check_position(path: Path, affine: Affine, what: str) -> None:
    """Raise UnreadableScanError unless a voxel to world map spans three dimensions.

    what: part of the header that should, and its verb.
    """
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine) < 4:
        raise UnreadableScanError(
            f"{path} has no valid position: {what} not span three dimensions; repair the geometry "
            "in its header."
        )


def shear_notes(affine: Affine) -> tuple[str, ...]:
    """Return a note on axes that are not at right angles, or none; affine: (4, 4)."""
    directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    cosines = [abs(float(one @ other)) for one, other in combinations(directions.T, 2)]
    shear = float(np.degrees(np.arcsin(min(1.0, max(cosines)))))
    if shear <= _UPRIGHT_WITHIN_DEGREES:
        return ()
    return (
        f"its axes are {shear:.1f} degrees off right angles (shear); they are treated as "
        "perpendicular, and the result keeps the shear",
    )


def assumed(affine: Affine) -> str:
    """Describe the assumed directions of a grid's axes; affine: (4, 4), RAS+."""
    codes: tuple[str, ...] = nibabel.aff2axcodes(affine)
    return f"its axes are assumed to point to {codes[0]}, {codes[1]} and {codes[2]}"
