"""MONAI bundles with trained-looking weights, MONAI's own result for a scan, and scans for both."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from scipy.ndimage import gaussian_filter
from support.lazy_modules import torch

NETWORK: dict[str, Any] = {
    "_target_": "UNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": 1,
    "channels": [4, 8, 12],
    "strides": [2, 2],
    "num_res_units": 1,
    "norm": "instance",
    "act": "PRELU",
}
"""A network whose instance norms see each patch, so that every voxel shows a misplaced patch."""


def transform(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": name, "keys": "image", **arguments}


LOADED = (transform("LoadImaged"), transform("EnsureChannelFirstd"))


def bundle(
    folder: Path, inferer: Any, *transforms: Any, network: Any = None, **config: Any
) -> Path:
    """Write a bundle whose preprocessing loads a scan and then has these transforms."""
    from monai.bundle import ConfigParser
    from support.torch_generators import trained

    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    composed = {"_target_": "Compose", "transforms": [*LOADED, *transforms]}
    content = {
        "network_def": network or NETWORK,
        "preprocessing": composed,
        "inferer": inferer,
        **config,
    }
    file = folder / "configs" / "inference.json"
    file.write_text(json.dumps(content))
    parser = ConfigParser()
    parser.read_config(file)
    torch.manual_seed(0)
    module = trained(parser.get_parsed_content("network_def")).eval()
    torch.save(module.state_dict(), folder / "models" / "model.pt")
    return folder


@dataclass(frozen=True)
class Judged:
    """MONAI's result on the scan's grid, [i, j, k]: in float64, and how far its own float32 is.

    before: the result before Invertd, on the grid of the affine that follows.
    """

    wanted: np.ndarray[Any, Any]
    own_error: float
    before: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def judged(folder: Path, scan: Path) -> Judged:
    """Run a bundle by MONAI's parser, transforms, inferer and Invertd."""
    from monai.bundle import ConfigParser
    from monai.data import MetaTensor
    from monai.transforms import Invertd

    parser = ConfigParser()
    parser.read_config(folder / "configs" / "inference.json")
    module = parser.get_parsed_content("network_def").eval()
    module.load_state_dict(torch.load(folder / "models" / "model.pt"))
    prepare = parser.get_parsed_content("preprocessing")
    inferer = parser.get_parsed_content("inferer")
    data = prepare({"image": str(scan)})
    image = data["image"]
    results, before = [], []
    for kind in (torch.float64, torch.float32):
        with torch.no_grad():
            made = inferer(image[None].as_tensor().to(kind), module.to(kind))[0]
        before.append(np.asarray(made[0], np.float64))
        data["pred"] = MetaTensor(
            made, meta=image.meta, applied_operations=image.applied_operations
        )
        undo = Invertd("pred", prepare, "image", nearest_interp=False, to_tensor=True)
        results.append(np.asarray(undo(data)["pred"], np.float64)[0])
    wanted, single = results
    return Judged(wanted, relative(single, wanted), (before[0], np.asarray(image.affine)))


def relative(made: Any, wanted: Any) -> float:
    """Relative L2."""
    return float(np.linalg.norm(made - wanted) / np.linalg.norm(wanted))


def _turned(degrees: float) -> Any:
    angle = np.deg2rad(degrees)
    return np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )


SCANS: dict[str, tuple[tuple[int, int, int], tuple[float, float, float], str, float]] = {
    "regular": ((40, 32, 48), (1.0, 1.0, 1.0), "RAS", 0),
    "odd": ((37, 29, 41), (1.0, 1.0, 1.0), "RAS", 0),
    "LPS": ((40, 44, 36), (1.2, 1.2, 1.2), "LPS", 0),
    "SAR": ((33, 40, 36), (1.0, 1.5, 0.8), "SAR", 0),
    "thick slices": ((44, 40, 9), (0.9, 0.9, 3.0), "LPS", 0),
    "thin": ((40, 36, 5), (1.0, 1.0, 1.0), "RAS", 0),
    "thin, anisotropic": ((6, 40, 37), (5.0, 1.0, 1.0), "RAS", 0),
    "smaller than the roi": ((11, 12, 13), (1.0, 1.0, 1.0), "RAS", 0),
    "smaller along two axes": ((10, 40, 12), (2.0, 1.0, 1.5), "RPI", 0),
    "oblique": ((36, 40, 32), (1.0, 1.0, 1.0), "RAS", 12),
    "oblique, anisotropic": ((36, 32, 12), (0.8, 0.9, 2.5), "LAS", 20),
    "fine": ((48, 44, 40), (0.6, 0.6, 0.7), "PIR", 0),
}
"""Extents, spacing, axes and degrees of rotation of scans."""


def scan_of(name: str, folder: Path) -> Path:
    """Write a scan in HU: a body of smooth noise in air."""
    shape, spacing, axes, degrees = SCANS[name]
    random = np.random.default_rng(len(name))
    grid = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    body = sum(each**2 for each in grid) < 0.9
    noise = gaussian_filter(random.normal(size=shape), 1.2) * 300
    values = np.where(body, 50 + noise, -1000) + random.normal(size=shape) * 8
    start = nibabel.orientations.axcodes2ornt(axes)
    turn = np.zeros((3, 3))
    for axis, (to, sign) in enumerate(start):
        turn[int(to), axis] = sign
    affine = np.eye(4)
    affine[:3, :3] = _turned(degrees) @ turn @ np.diag(spacing)
    affine[:3, 3] = 11, -7, 5
    file = folder / f"{name.replace(' ', '_').replace(',', '')}.nii.gz"
    image = nibabel.Nifti1Image(values.astype(np.int16), affine)
    nibabel.save(image, file)
    return file
