"""NumPy twins of kernels, for tests that run too many of them to go lane by lane.

They stand in for check.cu and the convolutions without matrix units, in fp16.
"""

from functools import cache
from math import prod
from typing import Any

import numpy as np
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import array_at

from cuda_cyclegan.engine.compiler.kernels.launch import Launch

NUMBER = np.float16
"""Type of numbers in tensors."""


class NumPyKernels(Kernels):
    """The kernels that have a twin."""

    def run(self, launch: Launch) -> None:
        twin = convolve if launch.source.startswith("convolve") else _TWINS[launch.kernel]
        twin(launch.arguments)


def mixed(x: Any) -> Any:
    x = np.asarray(x, np.uint32)
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def random_bits(seed: int, index: Any) -> Any:
    index = np.asarray(index, np.int64)
    high = (index >> 32).astype(np.uint32) ^ np.uint32(seed & 0xFFFFFFFF)
    return mixed(index.astype(np.uint32) ^ mixed(high))


def numbers(p: Any) -> Any:
    """Return what check.cu fills a tensor with, in float."""
    index = np.arange(p.count)
    bits = random_bits(p.seed, index)

    def signs(bits: Any) -> Any:
        is_there = (bits & 0xFFFF).astype(np.int64) < p.density
        return is_there * np.where(bits & 0x10000, 1.0, -1.0)

    if p.kind == 0:
        unit = (bits >> 8).astype(np.float32) * np.float32(1 / 16777216)
        return (unit - np.float32(0.5)) * np.float32(0.2)
    if p.kind == 1:
        low = (bits >> 17 & 3).astype(np.int64) - 1 if p.fraction else 0
        return (signs(bits) + low / 4096).astype(np.float32)
    if p.kind == 4:
        return (bits < random_bits(~p.seed, cells(p, index // p.channels))).astype(np.float32)
    half = p.channels // 2
    is_upper = index // p.inner % p.channels >= half
    partner = np.where(is_upper, index - half * p.inner, index)
    size = (random_bits(p.seed, partner) >> 16) % 15 + 1.0
    if p.kind == 2:
        return size.astype(np.float32)
    return np.where(is_upper, signs(mixed(bits)) - size, size).astype(np.float32)


def cells(p: Any, voxels: Any) -> Any:
    """Cells of voxels, counted through all patches."""
    patch, *at = np.unravel_index(voxels, (-(-p.count // prod(p.extents)), *p.extents))
    counts = [-(-extent // cell) for extent, cell in zip(p.extents, p.cell, strict=True)]
    inside = [place // cell for place, cell in zip(at, p.cell, strict=True)]
    return np.ravel_multi_index((patch, *inside), (patch.max() + 1, *counts))


def fill_numbers(p: Any) -> None:
    assert not p.split_fp16
    array_at(p.target, np.float32 if p.is_float else NUMBER, p.count)[:] = numbers(p)


def fingerprint(p: Any) -> None:
    assert p.are_pairs
    halves = array_at(p.words, np.uint16, 2 * p.count)
    words = np.where(halves == 0x8000, 0, halves).astype(np.uint16).view(np.uint32)
    array_at(p.sum, np.uint64, 1)[0] += (factors(p.count) * words.astype(np.uint64)).sum(
        dtype=np.uint64
    )


@cache
def factors(count: int) -> Any:
    bits = mixed(np.arange(count)).astype(np.uint64)
    return bits * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)


def windows(source: Any, p: Any) -> Any:
    """[N, D, H, W, C, kD, kH, kW], padded by as much as the result asks for."""
    sizes = zip(p.target_extents, p.stride, p.kernel, p.before, source.shape[1:4], strict=True)
    widths = [
        (before, max(0, (extent - 1) * stride + taps - before - there))
        for extent, stride, taps, before, there in sizes
    ]
    padded = np.pad(source, [(0, 0), *widths, (0, 0)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, tuple(p.kernel), axis=(1, 2, 3))
    d, h, w = p.stride
    depth, height, width = p.target_extents
    return seen[:, ::d, ::h, ::w][:, :depth, :height, :width]


def convolve(p: Any) -> None:
    """`convolve.cu`, `convolve_depthwise.cu` and `plain` of check.cu; not as a gradient."""
    shape = (p.patches, *p.source_extents, p.source_channels)
    source, weight = array_at(p.source, NUMBER, *shape), weight_of(p)
    key = source.tobytes(), weight.tobytes(), bytes(p.stride), bytes(p.target_extents)
    if key not in _DONE:
        _DONE[key] = summed(windows(source.astype(np.float64), p), weight.astype(np.float64))
    sums = _DONE[key]
    array_at(p.target, NUMBER, *sums.shape)[:] = sums


def weight_of(p: Any) -> Any:
    """[K, kD, kH, kW, C / groups]."""
    match type(p).__name__:
        case "Convolve":
            inputs = p.inputs
        case "ConvolveDepthwise":
            inputs = 1
        case _:
            inputs = p.source_channels // p.groups
    return array_at(p.weight, NUMBER, p.target_channels, *p.kernel, inputs)


def summed(seen: Any, weight: Any) -> Any:
    """[N, D, H, W, K] of windows [N, D, H, W, C, kD, kH, kW]."""
    groups = seen.shape[4] // weight.shape[-1]
    parts = zip(np.split(seen, groups, 4), np.split(weight, groups), strict=True)
    return np.concatenate(
        [np.einsum("ndhwcijk,oijkc->ndhwo", *part) for part in parts],
        axis=-1,
    )


_DONE: dict[tuple[bytes, ...], Any] = {}


def expect(p: Any) -> None:
    assert not p.is_gradient
    batch = 1 + int(array_at(p.voxels, np.int64, p.samples).max()) // prod(p.target_extents)
    shape = (batch, *p.source_extents, p.source_channels)
    source = array_at(p.source, NUMBER, *shape).astype(np.float64)
    weight = weight_of(p)
    chosen = array_at(p.voxels, np.int64, p.samples)
    sums = array_at(p.sums, np.float64, 2, p.samples, p.target_channels)
    for into, part in zip(sums, (lambda x: x, np.abs), strict=True):
        seen = windows(part(source), p)
        total = summed(seen, part(weight.astype(np.float64)))
        into[:] = total.reshape(-1, p.target_channels)[chosen]


def compare(p: Any) -> None:
    chosen = array_at(p.voxels, np.int64, p.samples)
    sums, magnitudes = array_at(p.sums, np.float64, 2, p.samples, p.channels)
    target = array_at(p.target, NUMBER, int(chosen.max()) + 1, p.channels).astype(np.float64)
    bound = p.of_result * np.abs(sums) + p.of_products * magnitudes + p.smallest
    error = np.nan_to_num(np.abs(target[chosen] - sums) / bound, nan=3e38, posinf=3e38)
    found = array_at(p.found, np.uint32, 2)
    found[0] += (error > 1).sum()
    found.view(np.float32)[1] = max(found.view(np.float32)[1], error.max())


_TWINS: dict[str, Any] = {
    "fill_numbers": fill_numbers,
    "fingerprint": fingerprint,
    "plain": convolve,
    "plain_eights": convolve,
    "expect": expect,
    "compare": compare,
}
