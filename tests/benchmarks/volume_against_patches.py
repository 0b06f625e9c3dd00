"""Patches at four overlaps against the volume at once, on scans whose translation is known.

    python volume_against_patches.py MODEL... --pairs DIR [--device cpu] [--dense 0.875]

DIR holds pairs NAME.source.nii.gz and NAME.target.nii.gz on one grid, or folders source/ and
target/ with files of the same names. For each model and way it prints medians over the pairs: mean
absolute error over the foreground and over all voxels, SSIM, the worst seam score where patches of
the card would meet (at their own overlap, for volumes at 0.25), distance to the dense limit
(relative L2 to patches at that overlap) and seconds of the network. Errors are in the unit of the
target, divided by its span over the foreground. --json writes a line for each pair.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import nibabel as _nibabel
import numpy as np
import numpy.typing as npt
from skimage.metrics import structural_similarity as _structural_similarity

import cuda_cyclegan as cc
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Inference
from cuda_cyclegan.pipelines.events import Worked
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.patches import cover, seam_score

nibabel: Any = _nibabel
structural_similarity: Any = _structural_similarity
Values = npt.NDArray[np.float32]

OVERLAPS = (0.0, 0.25, 0.5, 0.75)
_FOREGROUND = 0.05
"""Share of the target's span above its lowest value, from which a voxel is in the foreground."""


@dataclass(frozen=True)
class Way:
    """Way to translate a scan. overlap: that of patches."""

    inference: Inference
    overlap: float = 0.25

    @property
    def name(self) -> str:
        return "volume" if self.inference == "volume" else f"patches {self.overlap:g}"


@dataclass(frozen=True)
class Line:
    """Result of one way for one pair with one model."""

    model: str
    pair: str
    way: str
    foreground: float
    everywhere: float
    ssim: float
    seam: float | None
    dense: float
    seconds: float


def pairs_of(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Source and target of each name."""
    found = {
        path.name.replace(".source.", "."): (
            path,
            folder / path.name.replace(".source.", ".target."),
        )
        for path in sorted(folder.glob("*.source.nii*"))
    }
    found |= {
        path.name: (path, folder / "target" / path.name)
        for path in sorted((folder / "source").glob("*.nii*"))
    }
    if missing := [str(target) for _, target in found.values() if not target.exists()]:
        sys.exit(f"There is no {missing[0]}.")
    return found or sys.exit(f"{folder} holds no pairs; see --help.")


def values_of(path: Path) -> Values:
    return np.asarray(nibabel.load(path).dataobj, np.float32)


@dataclass(frozen=True)
class Made:
    """A translation, and the seconds of the network."""

    values: Values
    seconds: float


def translated(model: Path, source: Path, way: Way, device: str, folder: Path) -> Made:
    """Translate by the command's own code; return the second of two runs, since the first one
    tunes.
    """
    seconds = 0.0

    def handle(event: Any) -> None:
        nonlocal seconds
        if isinstance(event, Worked) and event.span.stage in ("infer", "blend", "copy"):
            seconds += event.span.seconds

    options = TranslateOptions(inference=way.inference, overwrite=True)
    if way.inference == "patches":
        options = TranslateOptions(inference="patches", overlap=way.overlap, overwrite=True)
    output = folder / way.name.replace(" ", "-")
    for _ in range(1 if device == "cpu" else 2):
        seconds = 0.0
        report = cc.translate_folder(
            source, model, output, device=device, options=options, on_event=handle
        )
    [row] = report.studies
    if row.failure:
        sys.exit(f"{model}, {source}, {way.name}: {row.failure.reason}")
    return Made(values_of(row.output), seconds)


def compared(
    model: Path, name: str, source: Path, target: Path, asked: argparse.Namespace, folder: Path
) -> Iterator[Line]:
    """All ways of one pair."""
    truth, scan = values_of(target), values_of(source)
    low, high = float(truth.min()), float(truth.max())
    inside = truth > low + _FOREGROUND * (high - low)
    span = float(np.ptp(truth[inside]))
    dense = translated(model, source, Way("patches", asked.dense), asked.device, folder).values
    patch = cc.load_model(model).card.patch
    for way in (*(Way("patches", overlap) for overlap in OVERLAPS), Way("volume")):
        made = translated(model, source, way, asked.device, folder)
        apart = np.abs(made.values - truth)
        yield Line(
            model=model.stem,
            pair=name,
            way=way.name,
            foreground=float(apart[inside].mean()) / span,
            everywhere=float(apart.mean()) / span,
            ssim=float(structural_similarity(made.values, truth, data_range=high - low)),
            seam=seam_of(scan, made.values, patch, way.overlap),
            dense=float(np.linalg.norm(made.values - dense) / np.linalg.norm(dense)),
            seconds=made.seconds,
        )


def seam_of(scan: Values, made: Values, patch: Triple, overlap: float) -> float | None:
    """The worst score where patches meet; exact for models of the scan's own axes and spacing."""
    depth, height, width = scan.shape
    layout = cover((depth, height, width), patch, overlap)
    return seam_score(scan[None], made[None], layout, "gaussian").worst


def shown(lines: list[Line]) -> Iterator[str]:
    """Medians over the pairs, by model and way."""
    yield (
        f"{'model':24} {'way':13} {'MAE fg':>8} {'MAE all':>8} {'SSIM':>6} {'seam':>6} "
        f"{'dense':>7} {'s':>8}"
    )
    for key in dict.fromkeys((line.model, line.way) for line in lines):
        same = [line for line in lines if (line.model, line.way) == key]

        def typical(figure: str, same: list[Line] = same) -> float:
            known = [value for line in same if (value := getattr(line, figure)) is not None]
            return median(known) if known else float("nan")

        yield (
            f"{key[0]:24} {key[1]:13} {typical('foreground'):8.4f} {typical('everywhere'):8.4f} "
            f"{typical('ssim'):6.4f} {typical('seam'):6.3f} {typical('dense'):7.4f} "
            f"{typical('seconds'):8.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--pairs", required=True, type=Path, metavar="DIR")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dense", type=float, default=0.875, help="overlap of the dense limit")
    parser.add_argument("--work", type=Path, default=Path("volume-against-patches"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    lines = list[Line]()
    for model in asked.models:
        for name, (source, target) in pairs_of(asked.pairs).items():
            folder = asked.work / model.stem / name.partition(".")[0]
            lines += compared(model, name, source, target, asked, folder)
    for text in shown(lines):
        print(text)
    if asked.json:
        rows = [asdict(line) for line in lines]
        asked.json.write_text(json.dumps({"device": asked.device, "lines": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
