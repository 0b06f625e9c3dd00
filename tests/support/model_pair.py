"""Two random generators, of which one leads back what the other made."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from support.batch_world import model_bytes

from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.model.model_file import decode_model, encode_model
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build

WINDOW = Window(0.0, 1000.0)


def random_model(
    path: Path,
    source: str = "T1",
    target: str = "T2",
    seed: int = 0,
    spacing: tuple[float, float, float] | None = None,
    axes: str = "RAS",
    window: Window = WINDOW,
) -> Path:
    """A random ResNet of 16x16x16 patches, with a fixed window to both sides."""
    path.write_bytes(_random_model(source, target, seed, spacing, axes, window))
    return path


@cache
def _random_model(
    source: str,
    target: str,
    seed: int,
    spacing: tuple[float, float, float] | None,
    axes: str,
    window: Window,
) -> bytes:
    spec = ResNetSpec(1, 1, 2, 1, downsamplings=1)
    random = np.random.default_rng(seed)
    weights = {
        name: random.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in build(spec).weight_shapes()
    }
    model = decode_model(model_bytes(spec, weights, window, target, source))
    card = replace(model.card, spacing=spacing, axes=axes)
    return encode_model(card, model.network, model.reference_input, model.reference_output)
