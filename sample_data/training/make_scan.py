"""Make the sample scan and the T2-like volume from the ICBM 2009 files that nilearn ships.

The scan is the T1 template cropped to the brain and averaged from 1 mm down to 2 mm. The T2-like
volume is no scan: it is computed from the template's grey and white matter maps by the spin-echo
equation, so it is kept as an array beside the scan and not as an image file.
"""

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import numpy.typing as npt
from nilearn.datasets import struct

FloatArray = npt.NDArray[np.float64]

CROP = (slice(22, 174), slice(22, 214), slice(0, 160))
"""Voxels [i, j, k] of the 1 mm template that hold the brain and a margin; even edges."""

STORED_PER_UNIT = 4
"""The scan's int16 values are the template's 0..255 times this: averaging adds fine steps."""

ECHO_TIME_MS = 80.0
PROTON_DENSITY_AND_T2_MS = {"gm": (0.82, 95.0), "wm": (0.70, 75.0), "csf": (1.0, 1500.0)}
"""Round values of the order met at 3 T. CSF is what is left of the brain after GM and WM."""

HERE = Path(__file__).parent
SCAN = HERE.parent / "scans" / "icbm152_2009_t1_2mm.nii.gz"
T2_LIKE = HERE / "t2_like.npz"


def read_1mm(path: Path) -> tuple[FloatArray, FloatArray]:
    """The cropped template [i, j, k] and the RAS+ affine of its first voxel."""
    image = nib.Nifti1Image.from_filename(path)
    voxels = np.asarray(image.dataobj, np.float64)
    affine = np.array(image.affine, np.float64)
    affine[:3, 3] += affine[:3, :3] @ [axis.start for axis in CROP]
    return voxels[CROP], affine


def halve(voxels: FloatArray) -> FloatArray:
    """Mean of each 2 x 2 x 2 block."""
    i, j, k = (edge // 2 for edge in voxels.shape)
    return voxels.reshape(i, 2, j, 2, k, 2).mean(axis=(1, 3, 5))


def halved_affine(affine: FloatArray) -> FloatArray:
    """Affine of the 2 mm grid: a block's centre lies half a small voxel further on."""
    halved = affine.copy()
    halved[:3, :3] *= 2
    halved[:3, 3] += affine[:3, :3] @ [0.5, 0.5, 0.5]
    return halved


def t2_like(t1: FloatArray, gm: FloatArray, wm: FloatArray) -> FloatArray:
    """Sum over tissues of share x proton density x exp(-TE / T2); 0 outside the brain, 1 at most.

    Shares are taken at 1 mm; halving their sum afterwards gives the partial volume at 2 mm.
    """
    brain = t1 > 0
    gm, wm = gm / 255 * brain, wm / 255 * brain
    shares = {"gm": gm, "wm": wm, "csf": np.clip(brain - gm - wm, 0, 1)}
    return sum(
        share * density * np.exp(-ECHO_TIME_MS / t2)
        for share, (density, t2) in zip(
            shares.values(), PROTON_DENSITY_AND_T2_MS.values(), strict=True
        )
    )


def write_scan(path: Path, voxels: FloatArray, affine: FloatArray) -> None:
    """int16 .nii.gz; the same bytes on every run, as neither name nor time enters the gzip."""
    image = nib.Nifti1Image(np.round(voxels * STORED_PER_UNIT).astype(np.int16), affine)
    image.set_sform(affine, code="mni")
    image.set_qform(affine, code="mni")
    image.header.set_xyzt_units("mm")
    image.header["descrip"] = b"ICBM 2009 MNI152 T1, 2 mm; see ICBM-LICENSE.txt"
    path.write_bytes(gzip.compress(image.to_bytes(), compresslevel=9, mtime=0))


def main() -> None:
    t1, affine = read_1mm(struct.MNI152_FILE_PATH)
    gm, _ = read_1mm(struct.GM_MNI152_FILE_PATH)
    wm, _ = read_1mm(struct.WM_MNI152_FILE_PATH)
    write_scan(SCAN, halve(t1), halved_affine(affine))
    target = np.round(halve(t2_like(t1, gm, wm)) * 255).astype(np.uint8)
    np.savez_compressed(T2_LIKE, t2_like=target)


if __name__ == "__main__":
    main()
