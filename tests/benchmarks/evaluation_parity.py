"""Differences between figures of `evaluate` and those of other programs for the same images.

    python tests/benchmarks/evaluation_parity.py [--cases N] [--monai N]

Random images, masks and data ranges: SynthRAD2025's own code, and MS-SSIM of pytorch_msssim and of
MONAI, which takes a minute for each. Needs the extras `test` and `parity`.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import evaluation_judges as judges
from support.evaluation_images import hounsfield_images, whole_images

from cuda_cyclegan.pipelines.evaluation.protocols import SYNTHRAD2025, general, measure

RESULT = Path(__file__).parent / "results" / "evaluation_parity.json"
EVEN, ODD = (112, 112, 112), (113, 118, 127)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--monai", type=int, default=2)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # SynthRAD2025's means of nothing
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "libraries": {name: version(name) for name in ("pytorch-msssim", "monai", "scikit-image")},
        "synthrad2025": against_synthrad2025(asked.cases),
        "pytorch_msssim": largest(against_pytorch_msssim(asked.cases)),
        "monai": largest(against_monai(asked.monai)),
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


def against_synthrad2025(cases: int) -> dict[str, Any]:
    apart: dict[str, list[float]] = {"mae": [], "psnr": [], "ms_ssim": []}
    undefined = 0
    for seed in range(cases):
        images = hounsfield_images(seed)
        reported, found = judges.synthrad2025(images), measure(images, SYNTHRAD2025).figures
        for name, differences in apart.items():
            value = getattr(found, name)
            if value is None:
                assert isnan(reported[name])
                undefined += 1
            else:
                differences.append(abs(value - reported[name]))
    return {name: largest(iter(values)) for name, values in apart.items()} | {
        "undefined in both": undefined
    }


def against_pytorch_msssim(cases: int) -> Iterator[float]:
    for seed in range(cases):
        images, peak = whole_images(seed, EVEN)
        found = measure(images, general((0.0, peak))).figures.ms_ssim
        assert found is not None
        yield abs(found - judges.ms_ssim_of_pytorch_msssim(images, peak))


def against_monai(cases: int) -> Iterator[float]:
    for seed in range(cases):
        images, peak = whole_images(seed, ODD if seed % 2 else EVEN)
        found = measure(images, general((0.0, peak))).figures.ms_ssim
        assert found is not None
        yield abs(found - judges.ms_ssim_of_monai(images, peak))


def largest(differences: Iterator[float]) -> dict[str, float]:
    values = list(differences)
    return {"cases": len(values), "largest difference": max(values)}


if __name__ == "__main__":
    main()
