"""Whether a volume at once has seams where patches would meet: against planes drawn at random.

    python volume_seams.py MODEL SCAN [--device cpu] [--draws 200] [--to FILE]

For patches and for the volume at once it prints the seam score along each axis at the planes where
patches of the card's extents meet, the mean and the 95 % interval of the score at as many planes
drawn at random from the same result, and whether the first lies within the second.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from volume_against_patches import Values, Way, translated, values_of

import cuda_cyclegan as cc
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.pipelines.study.patches import cover

Steps = npt.NDArray[np.float64]
_AROUND = 4
"""Planes before and behind one with which it is compared."""

_ANATOMY = 0.05
"""Share of the largest mean step of the input: planes with less are in air, and none is drawn
there.
"""


def steps_along(values: Values, axis: int) -> Steps:
    """Mean absolute steps from each plane to the next."""
    others = tuple(other for other in range(3) if other != axis)
    return np.abs(np.diff(values, axis=axis)).mean(others, dtype=np.float64)


def beside_neighbours(ratio: Steps) -> Steps:
    """A result's steps by its input's, by the same of the planes around: anatomy changes slowly."""
    padded = np.pad(ratio, _AROUND, "reflect")
    around = np.convolve(padded, np.ones(2 * _AROUND + 1), "valid") - ratio
    return ratio * 2 * _AROUND / around


def score(ratio: Steps, planes: npt.NDArray[np.intp]) -> float:
    """Return how much larger the ratio is at some planes than elsewhere."""
    return float(ratio[planes].mean() / np.delete(ratio, planes).mean())


def borders(origins: tuple[int, ...], patch: int) -> npt.NDArray[np.intp]:
    """Return the planes where a blend is half of one patch and half of the next: the middle of each
    overlap.
    """
    return np.array([(a + patch + b) // 2 - 1 for a, b in pairwise(origins)], np.intp)


def rows(asked: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    given, patch = values_of(asked.scan), cc.load_model(asked.model).card.patch
    for way in (Way("patches", asked.overlap), Way("volume")):
        made = translated(asked.model, asked.scan, way, asked.device, folder)
        for axis in range(3):
            yield {"way": way.name, "axis": axis} | judged(given, made.values, patch, axis, asked)


def judged(
    given: Values, made: Values, patch: Triple, axis: int, asked: argparse.Namespace
) -> dict[str, Any]:
    """The score where patches meet along an axis, beside that of planes drawn at random."""
    depth, height, width = given.shape
    layout = cover((depth, height, width), patch, asked.overlap)
    meet = borders(layout.origins[axis], layout.patch[axis])
    if not len(meet):
        return {"planes": []}
    before, after = (steps_along(values, axis) for values in (given, made))
    inside = np.flatnonzero(before > _ANATOMY * before.max())
    ratio = np.divide(after, before, out=np.ones_like(after), where=before > 0)
    ratio = beside_neighbours(ratio)[inside]
    planes = np.flatnonzero(np.isin(inside, meet))
    random = np.random.default_rng(axis)
    draws = (random.choice(len(inside), len(planes), replace=False) for _ in range(asked.draws))
    drawn = [score(ratio, planes) for planes in draws]
    low, high = (float(edge) for edge in np.quantile(drawn, [0.025, 0.975]))
    found = score(ratio, planes)
    return {
        "planes": inside[planes].tolist(),
        "score": found,
        "mean of random planes": float(np.mean(drawn)),
        "95 %": [low, high],
        "is within": low <= found <= high,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("scan", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--overlap", type=float, default=0.25)
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows(asked, Path(folder)):
            found.append(row)
            print(json.dumps(row), flush=True)
    if asked.to:
        asked.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
