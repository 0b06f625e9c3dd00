"""Checkpoints of torch modules, and what a module makes of a patch."""

from pathlib import Path

import numpy as np
from support.lazy_modules import torch

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray


def save(module: "torch.nn.Module", path: Path) -> Path:
    """A file with the module's state."""
    torch.save(module.state_dict(), path)
    return path


def pair_of(
    module: "torch.nn.Module", channels: int, extent: int, evaluate: bool = True
) -> tuple[FloatArray, FloatArray]:
    """A random patch, and what the training code makes of it."""
    patch = torch.randn(
        1, channels, extent, extent, extent, generator=torch.Generator().manual_seed(3)
    )
    with torch.no_grad():
        return patch.numpy(), module.train(not evaluate)(patch).numpy()


def run(network: Network, patch: FloatArray) -> FloatArray:
    """Return this program's output for the patch."""
    with open_cpu_generator(network, threads=1) as generator:
        return generator(patch)


def distance(output: FloatArray, expected: FloatArray) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(output - expected) / np.linalg.norm(expected))
