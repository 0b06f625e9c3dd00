"""Prediction of the error by the TTA spread of the sample's translation, and its cost.

    python tests/benchmarks/spread_of_the_sample.py

Only voxels that training never saw count. The error is that of the result, which is the same for
every number of flips. One model and one brain: the figures are of these, and of nothing else.
"""

import json
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

import cuda_cyclegan as cc
from cuda_cyclegan.engine.cores import usable_cores
from cuda_cyclegan.io.writing import map_beside
from cuda_cyclegan.pipelines.settings import TranslateOptions

SAMPLE = Path(__file__).parents[2] / "sample_data"
SCAN = SAMPLE / "scans" / "icbm152_2009_t1_2mm.nii.gz"
HELD_OUT_FROM, FULL_SCALE = 66, 1000
"""Constants of the sample's picture.py."""

BLOCK = 8
RESULT = Path(__file__).parent / "results" / "spread_of_the_sample.json"


def values(path: Path) -> Any:
    """Return the values on the scale of the truth, [0, 1]."""
    return nibabel.load(path).get_fdata() / FULL_SCALE


def spearman(first: Any, second: Any) -> float:
    """Pearson's r of the ranks; equal values, which floats hardly have, are ranked as they come."""
    ranks = [np.argsort(np.argsort(each, kind="stable")) for each in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def over_blocks(array: Any, region: Any) -> Any:
    """Means over those blocks of 8 x 8 x 8 voxels of which the region covers half."""
    made: list[float] = []
    for corner in np.ndindex(*(-(-extent // BLOCK) for extent in array.shape)):
        box = tuple(slice(BLOCK * at, BLOCK * (at + 1)) for at in corner)
        if region[box].sum() > BLOCK**3 / 2:
            made.append(array[box][region[box]].mean())
    return np.array(made)


def measured(flips: int, folder: Path) -> dict[str, float]:
    output = folder / str(flips)
    options = TranslateOptions(spread=flips)
    report = cc.translate_folder(
        [SCAN], SAMPLE / "model.safetensors", output, device="cpu", options=options
    )
    [row] = report.studies
    with np.load(SAMPLE / "training" / "t2_like.npz") as stored:
        truth = stored["t2_like"] / 255
    region = truth > 0
    region[:, :HELD_OUT_FROM] = False
    error = np.abs(values(row.output) - truth)
    found = {
        "seconds of the network": round(row.stages["infer"], 1),
        "seconds of finishing": round(row.stages["finish"], 2),
        "mae of the result": round(float(error[region].mean()), 4),
    }
    if flips:
        deviation = values(map_beside(row.output, "spread-sd"))
        mean = np.abs(values(map_beside(row.output, "spread-mean")) - truth)
        blocks = over_blocks(deviation, region), over_blocks(error, region)
        found |= {
            "mae of the mean": round(float(mean[region].mean()), 4),
            "rho of voxels": round(spearman(deviation[region], error[region]), 3),
            "rho of blocks": round(spearman(*blocks), 3),
            "blocks": len(blocks[0]),
        }
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {str(flips): measured(flips, Path(folder)) for flips in (0, 2, 4, 8)}
    made = {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": usable_cores(),
        "onnxruntime": version("onnxruntime"),
        "flips": found,
    }
    RESULT.write_text(json.dumps(made, indent=2) + "\n")
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main()
