"""Figures of others for the same images: SynthRAD2025's own code, pytorch_msssim, MONAI.

The first needs scikit-image, the others PyTorch; all of them are in the extra `parity`.
"""

import importlib.util
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from cuda_cyclegan.pipelines.evaluation.images import Images

SYNTHRAD2025 = Path(__file__).parents[1] / "fixtures" / "synthrad2025" / "image_metrics.py"


def synthrad2025(images: Images) -> dict[str, float]:
    """mae, psnr and ms_ssim of images with a mask; NaN where a scale has no voxel of the mask."""
    assert images.inside is not None
    truth, result = (stored.values(slice(None)) for stored in (images.truth, images.result))
    return _synthrad2025().score_patient(truth, result, images.inside.astype(np.uint8))


def _synthrad2025() -> Any:
    found = importlib.util.spec_from_file_location("image_metrics", SYNTHRAD2025)
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.ImageMetrics()


def ms_ssim_of_pytorch_msssim(images: Images, peak: float) -> float:
    """Return MS-SSIM of images from 0 to `peak` without a mask.

    It extends odd extents where it halves them, so these must be even at the first four scales.
    """
    import pytorch_msssim
    import torch

    box = torch.full((1, 1, 1, 1, 7), 1 / 7, dtype=torch.float64)
    return float(pytorch_msssim.ms_ssim(*_tensors(images), data_range=peak, win=box))


def ms_ssim_of_monai(images: Images, peak: float) -> float:
    """Return MS-SSIM of images from 0 to `peak` without a mask, in double precision, which takes a
    minute.
    """
    import torch
    from monai.metrics.regression import compute_ms_ssim

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(torch, "float", torch.double):  # to which it rounds what it is given
            return float(compute_ms_ssim(*_tensors(images), **_box(peak)))
    finally:
        torch.set_default_dtype(before)


def rounded_ms_ssim_of_monai(images: Images, peak: float) -> float:
    """The same as it comes, in single precision."""
    from monai.metrics.regression import compute_ms_ssim

    return float(compute_ms_ssim(*_tensors(images), **_box(peak)))


def _box(peak: float) -> dict[str, Any]:
    sizes = {"kernel_size": [7] * 3, "kernel_sigma": [1.5] * 3}
    return {"spatial_dims": 3, "data_range": peak, "kernel_type": "uniform", **sizes}


def _tensors(images: Images) -> list[Any]:
    import torch

    return [torch.from_numpy(stored.voxels)[None, None] for stored in (images.result, images.truth)]
