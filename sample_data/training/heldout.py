"""Figures on what training did not see: the T2-like volume there is the truth, voxel by voxel."""

import itertools

import torch
from patches import CHANGES, HELD_OUT_FROM, Sampler, seen
from torch import Tensor, nn
from torch.nn import functional

EDGE = 48
STEP = 24
DEFORMED_PATCHES = 32
DEFORMED_SEED = 7


@torch.no_grad()
def translate(generator: nn.Module, volume: Tensor) -> Tensor:
    """A whole volume [1, 1, i, j, k] on [0, 1], patch by patch, blended with Gaussian weights."""
    axis = torch.arange(EDGE, device=volume.device) - (EDGE - 1) / 2
    bell = torch.exp(-0.5 * (axis / (EDGE / 8)) ** 2)
    weight = bell[:, None, None] * bell[:, None] * bell
    total, weights = torch.zeros_like(volume), torch.zeros_like(volume)
    starts = [[*range(0, size - EDGE, STEP), size - EDGE] for size in volume.shape[2:]]
    for corner in itertools.product(*starts):
        box = (..., *(slice(start, start + EDGE) for start in corner))
        total[box] += weight * generator(2 * volume[box] - 1)
        weights[box] += weight
    return (total / weights + 1) / 2


def compare(image: Tensor, truth: Tensor, region: Tensor) -> dict[str, float]:
    """MAE, PSNR (range 1), SSIM (7^3 box) and Pearson's r over the voxels of `region`."""
    found, wanted = image[region], truth[region]
    error = found - wanted
    correlation = torch.corrcoef(torch.stack([found, wanted]))[0, 1]
    return {
        "mae": round(error.abs().mean().item(), 4),
        "psnr_db": round(-10 * error.square().mean().log10().item(), 2),
        "ssim": round(structural_similarity(image, truth)[region].mean().item(), 4),
        "pearson_r": round(correlation.item(), 4),
    }


def structural_similarity(image: Tensor, truth: Tensor) -> Tensor:
    """SSIM of Wang et al. 2004 at every voxel, box window of 7, range 1."""

    def mean(values: Tensor) -> Tensor:
        return functional.avg_pool3d(values, 7, 1, 3, count_include_pad=False)

    mean_x, mean_y = mean(image), mean(truth)
    var_x = mean(image * image) - mean_x**2
    var_y = mean(truth * truth) - mean_y**2
    covariance = mean(image * truth) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return luminance * (2 * covariance + c2) / (var_x + var_y + c2)


def looked_up(t1: Tensor, t2: Tensor) -> Tensor:
    """The best that intensity alone can do: mean T2 of each T1 level, learnt from *paired* voxels
    of the region that training saw."""
    levels = 128
    known = (seen(t1) * (levels - 1)).round().long().flatten()
    sums = torch.zeros(levels, device=t1.device).index_add_(0, known, seen(t2).flatten())
    counts = torch.bincount(known, minlength=levels).clamp(min=1)
    return (sums / counts)[(t1 * (levels - 1)).round().long()]


@torch.no_grad()
def held_out_figures(
    to_b: nn.Module, to_a: nn.Module, t1: Tensor, t2: Tensor, device: torch.device
) -> dict[str, object]:
    """All figures over brain voxels; intensities on [0, 1]."""
    t1, t2 = t1.to(device), t2.to(device)
    brain = t2 > 0
    held_out, trained_on = brain.clone(), brain.clone()
    held_out[:, :, :, :HELD_OUT_FROM] = False
    trained_on[:, :, :, HELD_OUT_FROM:] = False
    fake = translate(to_b, t1)
    cycle = translate(to_a, fake)

    sampler = Sampler(EDGE, DEFORMED_PATCHES, DEFORMED_SEED, device)
    points = sampler.points(t1.shape[2:], CHANGES, first_j=HELD_OUT_FROM)
    allowed = points[..., 1].unsqueeze(1) >= HELD_OUT_FROM
    inputs = sampler.disturb(sampler.cut(t1, points), CHANGES)
    truth = sampler.cut(t2, points)
    outputs = torch.cat([(to_b(2 * one - 1) + 1) / 2 for one in inputs.split(1)])

    return {
        "held_out_region": {
            "voxels": int(held_out.sum()),
            "model": compare(fake, t2, held_out),
            "input_as_it_is": compare(t1, t2, held_out),
            "paired_intensity_lookup": compare(looked_up(t1, t2), t2, held_out),
            "cycle_mae": round((cycle - t1)[held_out].abs().mean().item(), 4),
        },
        "held_out_region_deformed": {
            "patches": DEFORMED_PATCHES,
            "model": compare(outputs, truth, allowed & (truth > 0)),
        },
        "trained_region": {"model": compare(fake, t2, trained_on)},
    }
