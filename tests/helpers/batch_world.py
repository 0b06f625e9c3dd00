"""A small world for batch tests: real scan files, bad ones of every kind, and a tiny model."""

import gzip
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

nibabel: Any = _nibabel
SHAPE = (20, 18, 16)


def scan(path: Path, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Path:
    """A sound int16 scan of noise in a file whose name says its format."""
    voxels = np.random.default_rng(seed).integers(0, 1000, shape).astype(np.int16)
    return stored(path, voxels)


def stored(path: Path, voxels: "np.ndarray[Any, Any]") -> Path:
    """An array as a NIfTI file of 1 mm voxels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
    return path


def bad_scans(folder: Path) -> dict[str, str]:
    """Fill a folder with bad files; names of the files and the class each must fail with."""
    folder.mkdir(parents=True, exist_ok=True)
    sound = scan(folder / "sound.nii.gz").read_bytes()
    (folder / "sound.nii.gz").unlink()
    (folder / "truncated.nii.gz").write_bytes(sound[: len(sound) // 2])
    (folder / "truncated.nii").write_bytes(gzip.decompress(sound)[:5000])
    (folder / "empty.nii.gz").touch()
    (folder / "garbage.nii").write_bytes(b"not a scan at all " * 40)
    stored(folder / "nan.nii", np.full(SHAPE, np.nan, np.float32))
    stored(folder / "constant.nii", np.full(SHAPE, 7, np.int16))
    stored(folder / "zero-size.nii", np.zeros((8, 0, 8), np.int16))
    stored(folder / "four-d.nii", np.zeros((8, 8, 8, 3), np.int16))
    stored(folder / "flat.nii", np.zeros((8, 8), np.int16))
    return {
        "truncated.nii.gz": "unreadable",
        "truncated.nii": "unreadable",
        "empty.nii.gz": "unreadable",
        "garbage.nii": "unreadable",
        "nan.nii": "preparation",
        "constant.nii": "preparation",
        "zero-size.nii": "unsupported",
        "four-d.nii": "unsupported",
        "flat.nii": "unsupported",
    }


def tiny_model(path: Path, seed: int = 0) -> Path:
    """A random ResNet of 16x16x16 patches."""
    path.write_bytes(b"MODEL%d" % seed)
    return path
