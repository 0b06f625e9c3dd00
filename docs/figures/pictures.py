"""Make the pictures of the tutorial and of the page on how it works, from sample_data.

    python docs/figures/pictures.py [FOLDER]

preview.png is what `translate --preview` writes; blending.png compares how patches are joined.
Needs matplotlib (extra `plot`). Takes half a minute on two cores.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

import cuda_cyclegan as cc

mpl.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "sample_data"
SCAN = SAMPLE / "scans" / "icbm152_2009_t1_2mm.nii.gz"
MODEL = SAMPLE / "model.safetensors"
SLICE = 40
WAYS = {
    "patches side by side": {"overlap": 0.0, "blend": "constant"},
    "overlap 0.25, Gaussian": {"overlap": 0.25},
    "overlap 0.5, Gaussian": {"overlap": 0.5},
    "whole volume": {"inference": "volume"},
}


def preview(folder: Path) -> None:
    """Store the preview of the sample's translation."""
    with tempfile.TemporaryDirectory() as name:
        options = cc.TranslateOptions(preview=True)
        cc.translate_folder(SCAN, MODEL, name, device="cpu", options=options)
        [picture] = Path(name).rglob("*.preview.png")
        (folder / "preview.png").write_bytes(picture.read_bytes())


def blending(folder: Path) -> None:
    """Draw a slice of the sample, translated in four ways, and how each differs from the last."""
    slices = [translated(**options)[:, :, SLICE].T for options in WAYS.values()]
    figure, panels = plt.subplots(2, len(WAYS), figsize=(10, 5.6), layout="constrained")
    for column, (title, values) in enumerate(zip(WAYS, slices, strict=True)):
        panels[0, column].imshow(values, cmap="gray", origin="lower", vmin=0, vmax=1000)
        panels[0, column].set_title(title, fontsize=10)
        if column < len(WAYS) - 1:
            away = values - slices[-1]
            shown = panels[1, column].imshow(away, cmap="RdBu_r", origin="lower", vmin=-80, vmax=80)
    for panel in panels.flat:
        panel.axis("off")
    bar = figure.colorbar(shown, ax=panels[1, -1], location="left", shrink=0.8)
    bar.set_label("minus whole volume")
    figure.savefig(folder / "blending.png", dpi=90, metadata={"Software": None})


def translated(**options: object) -> npt.NDArray[np.float32]:
    """Return the sample's translation in the unit of the target scans."""
    with cc.Translator(MODEL, device="cpu", **options) as translator:
        return translator.translate_file(SCAN).values()


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else HERE
    preview(folder)
    blending(folder)


if __name__ == "__main__":
    main()
