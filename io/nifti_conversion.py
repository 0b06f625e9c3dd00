"""A volume of another format as NIfTI, in the same grid and with the same voxels."""

from dataclasses import replace
from typing import Any

import nibabel as _nibabel
import numpy as np

from .volume import AnyArray, Volume

nibabel: Any = _nibabel  # typed only in part

SCANNER = 1
"""The code of a space that is the scanner's own."""
SHEARED_BEYOND = 1e-4


def as_nifti(volume: Volume) -> Volume:
    """The same volume with a NIfTI header: sform, and qform where the axes are perpendicular."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(volume.voxels.dtype)
    header.set_data_shape(volume.shape)
    header.set_xyzt_units("mm")
    header.set_sform(volume.affine, SCANNER)
    header["pixdim"][1:4] = volume.spacing
    if _is_perpendicular(volume.affine[:3, :3] / volume.spacing):
        header.set_qform(volume.affine, SCANNER)
    return replace(volume, header=header, format="nifti")


def _is_perpendicular(directions: AnyArray) -> bool:
    return np.allclose(directions.T @ directions, np.eye(3), atol=SHEARED_BEYOND)
