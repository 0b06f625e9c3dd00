"""Scans of one kind for reference sets, and such that are unlike them."""

from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import numpy.typing as npt
from support.batch_world import tiny_model

from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.pipelines.calibration import calibrate, opened_translation
from cuda_cyclegan.pipelines.settings import TranslateOptions

nibabel: Any = _nibabel
SHAPE = (24, 22, 20)


def head(seed: int, shape: tuple[int, int, int] = SHAPE) -> npt.NDArray[np.int16]:
    """Return a bright round object in dark noise, like an MR of a head."""
    random = np.random.default_rng(seed)
    places = np.meshgrid(*(np.linspace(-1, 1, extent) for extent in shape), indexing="ij")
    inside = sum(place**2 for place in places) < 0.6 + random.normal(0, 0.03)
    bright = 600 + 200 * np.cos(3 * places[0]) + random.normal(0, 30, shape)
    dark = np.abs(random.normal(0, 8, shape))
    return (np.where(inside, bright, dark) * (1 + 0.1 * seed)).astype(np.int16)


def inverted(voxels: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    return voxels.max() - voxels


def save(path: Path, voxels: npt.NDArray[Any], *spacing: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag([*(spacing or (1.0, 1.0, 1.0)), 1.0])
    nibabel.Nifti1Image(voxels, affine).to_filename(path)
    return path


def reference_set(folder: Path, count: int = 6) -> Path:
    for seed in range(count):
        save(folder / f"{seed}.nii", head(seed))
    return folder


def calibrated_model(folder: Path, count: int = 6) -> Path:
    """A tiny model that knows a reference set."""
    from cuda_cyclegan.engine.devices import choose_device
    from cuda_cyclegan.io.discovery import discover
    from cuda_cyclegan.pipelines.decisions import with_inference

    model = load_model(tiny_model(folder / "plain.safetensors"))
    studies = discover([reference_set(folder / "reference", count)], None).studies
    target = folder / "calibrated.safetensors"
    options = with_inference(model, TranslateOptions(precision="fp32")).resolved()
    with opened_translation(model, None, choose_device("cpu"), options) as translation:
        target.write_bytes(calibrate(model, studies, options, translation).content)
    return target
