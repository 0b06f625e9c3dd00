"""A generator as people train it, for measurements: its weights are random."""

from pathlib import Path

import numpy as np
from helpers.batch_world import model_bytes

from cuda_cyclegan.engine.architectures import ResNetSpec, build
from cuda_cyclegan.engine.card import Percentiles


def bench_model(path: Path, width: int = 32, blocks: int = 9) -> Path:
    """A ResNet; its file names patches of 16^3, so say --patch."""
    spec = ResNetSpec(1, 1, width, blocks)
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.02, shape).astype(np.float32)
        for name, shape in build(spec).weight_shapes()
    }
    path.write_bytes(model_bytes(spec, weights, Percentiles(1, 99)))
    return path


def tissue(shape: tuple[int, int, int], seed: int) -> "np.ndarray":
    """Voxels that compress about as well as those of a head do."""
    i, j, k = np.ogrid[: shape[0], : shape[1], : shape[2]]
    smooth = 900 * np.sin(i / 60) * np.cos(j / 70) * np.sin(k / 50)
    return (smooth + np.random.default_rng(seed).integers(-12, 12, shape)).astype(np.int16)
