"""Whole volumes through a network, at once in slabs and in one run of ONNX Runtime."""

import numpy as np

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.cpu.slab_generator import open_cpu_volume_generator
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.engine.whole_volume import padded_extents

ENOUGH = 1 << 40
ODD: Triple = (19, 14, 17)


def at_once(
    network: Network,
    volume: FloatArray,
    memory: int = ENOUGH,
    threads: int | None = None,
    precision: Precision = "fp32",
) -> FloatArray:
    """[C, D, H, W] through the generator for volumes."""
    made = np.full((network.graph.out_channels, *volume.shape[1:]), np.nan, np.float32)
    with open_cpu_volume_generator(network, memory, threads, precision) as opened:
        opened.translate_volume(Stored(volume), Stored(made), lambda _: None)
    return made


def in_one_pass(network: Network, volume: FloatArray) -> FloatArray:
    """The same by one run over the whole, continued by its edge and cropped."""
    d, h, w = volume.shape[1:]
    padded = padded_extents(network.graph, (d, h, w))
    more = [(0, whole - edge) for whole, edge in zip(padded, (d, h, w), strict=True)]
    with open_cpu_generator(network, threads=1) as opened:
        [made] = opened(np.pad(volume, [(0, 0), *more], mode="edge")[None])
    return made[:, :d, :h, :w]


def off(made: FloatArray, right: FloatArray) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(made - right) / np.linalg.norm(right))


def volume_for(network: Network, extents: Triple = ODD) -> FloatArray:
    """Noise whose mean is not 0."""
    random = np.random.default_rng(5)
    return random.normal(0.3, 1, (network.graph.in_channels, *extents)).astype(np.float32)
