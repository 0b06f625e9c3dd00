"""Draw what the command made of the sample, and measure it: picture.png and figures.json.

usage: python picture.py TRANSLATED, the file that `cuda-cyclegan translate` wrote.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel as nib
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

HERE = Path(__file__).parent
SCAN = HERE / "scans" / "icbm152_2009_t1_2mm.nii.gz"
T2_LIKE = HERE / "training" / "t2_like.npz"
HELD_OUT_FROM = 66
"""Voxel rows j that training never saw begin here, as in training/patches.py."""

FULL_SCALE = 1000
"""The model card maps the T2-like range [0, 1] to scan values 0..1000."""

PLANES = {
    "axial, k = 40": (2, 40),
    "coronal, j = 72 (held out)": (1, 72),
    "sagittal, i = 38": (0, 38),
}


def read(path: Path) -> FloatArray:
    return np.asarray(nib.Nifti1Image.from_filename(path).dataobj, np.float64)


def held_out_figures(translated: FloatArray, truth: FloatArray) -> dict[str, float]:
    """Return errors over the brain voxels that training never saw; both on the scale [0, 1]."""
    region = truth > 0
    region[:, :HELD_OUT_FROM] = False
    found, wanted = translated[region], truth[region]
    return {
        "voxels": int(region.sum()),
        "mae": round(float(np.abs(found - wanted).mean()), 4),
        "psnr_db": round(float(-10 * np.log10(np.square(found - wanted).mean())), 2),
        "pearson_r": round(float(np.corrcoef(found, wanted)[0, 1]), 4),
    }


def draw(scan: FloatArray, translated: FloatArray, truth: FloatArray) -> plt.Figure:
    columns = {
        "input: T1": (scan / np.percentile(scan, 99.9), "gray", 0, 1),
        "output: T2-like": (translated, "gray", 0, 1),
        "what it should be": (truth, "gray", 0, 1),
        "output minus that": (translated - truth, "RdBu_r", -0.5, 0.5),
    }
    figure, panels = plt.subplots(3, 4, figsize=(9, 7.4), layout="constrained")
    for row, (plane, (axis, index)) in zip(panels, PLANES.items(), strict=True):
        for panel, (title, (volume, colours, low, high)) in zip(row, columns.items(), strict=True):
            image = panel.imshow(
                volume.take(index, axis).T, colours, vmin=low, vmax=high, origin="lower"
            )
            panel.set(xticks=[], yticks=[], title=title)
        row[0].set_ylabel(plane)
        figure.colorbar(image, ax=row[-1], shrink=0.7)
    return figure


def main() -> None:
    scan, translated = read(SCAN), read(Path(sys.argv[1])) / FULL_SCALE
    with np.load(T2_LIKE) as arrays:
        truth = arrays["t2_like"] / 255.0
    figures = held_out_figures(translated, truth)
    (HERE / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(figures)
    draw(scan, translated, truth).savefig(HERE / "picture.png", dpi=60)


if __name__ == "__main__":
    main()
