"""Metrics of a CT in Hounsfield units: errors per tissue, and overlap of bone."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

import numpy as np

from ..hounsfield import BONE_HU, TISSUES
from .images import Images


@dataclass(frozen=True, slots=True)
class TissueMetrics:
    """Metrics of a result against a CT, over the voxels that count.

    voxels: number of voxels of each tissue in the truth, by its name. values: by metric: mae_bone
    and me_bone, mean absolute error and mean of result - truth in HU over the truth's bone, and
    likewise of each tissue; dice_150, Dice coefficient of the voxels from 150 HU on in truth and
    result, and likewise of each threshold of BONE_HU. None if no voxel counts.
    """

    voxels: Mapping[str, int]
    values: Mapping[str, float | None]


def tissue_metrics(images: Images) -> TissueMetrics:
    """Compare tissue by tissue; all voxels that count must be finite."""
    voxels = dict.fromkeys((tissue.name for tissue in TISSUES), 0)
    absolute: dict[str, list[float]] = {name: [] for name in voxels}
    signed: dict[str, list[float]] = {name: [] for name in voxels}
    both, either = dict.fromkeys(BONE_HU, 0), dict.fromkeys(BONE_HU, 0)
    for _, _, truth, result in images.counted():
        change = result - truth
        for tissue in TISSUES:
            errors = change[(truth >= tissue.low) & (truth < tissue.high)]
            voxels[tissue.name] += errors.size
            absolute[tissue.name].append(float(np.abs(errors).sum()))
            signed[tissue.name].append(float(errors.sum()))
        for limit in BONE_HU:
            of_truth, of_result = truth >= limit, result >= limit
            both[limit] += 2 * int(np.count_nonzero(of_truth & of_result))
            either[limit] += int(np.count_nonzero(of_truth)) + int(np.count_nonzero(of_result))
    values = {f"mae_{name}": _mean(absolute[name], voxels[name]) for name in voxels}
    values |= {f"me_{name}": _mean(signed[name], voxels[name]) for name in voxels}
    values |= {f"dice_{limit}": _mean([both[limit]], either[limit]) for limit in BONE_HU}
    return TissueMetrics(voxels, values)


def _mean(sums: list[float], count: int) -> float | None:
    return fsum(sums) / count if count else None
