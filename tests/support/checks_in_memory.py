"""A card in host memory to try convolutions on: its kernels in numpy, and plans with faults.

Everything that is queued is done at once.
"""

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np
from support.described_cards import H200

from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.compiler.launches.checks import (
    CompareArguments,
    ExpectArguments,
    FillNumbersArguments,
    FingerprintArguments,
)
from cuda_cyclegan.engine.compiler.launches.convolutions import (
    ConvolveArguments,
    ConvolveDepthwiseArguments,
    convolution_geometry,
)
from cuda_cyclegan.engine.compiler.launches.launch import Launch

NUMBER = np.float16
"""What tensors hold."""


class HostStream:
    """Does at once what is queued."""

    def fill(self, target: int, byte: int, size: int) -> None:
        ctypes.memset(target, byte, size)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    upload = download = copy

    def upload_now(self, target: int, content: bytes) -> None:
        ctypes.memmove(target, content, len(content))

    def wait(self) -> None: ...

    @contextmanager
    def timed(self) -> Generator[list[float]]:
        elapsed: list[float] = []
        yield elapsed
        elapsed.append(0.01)


class HostGraph:
    """Does what was queued whenever it is launched."""

    def __init__(self, _stream: HostStream, queue_work: Callable[[], None]) -> None:
        self.launch = queue_work

    def __enter__(self) -> "HostGraph":
        return self

    def __exit__(self, *_: object) -> None: ...


class HostBuffer:
    """Memory that holds anything at first."""

    def __init__(self, size: int) -> None:
        self._memory = np.full(size + 16, 0x5A, np.uint8)
        self.address = self._memory.ctypes.data // 16 * 16 + 16

    def __enter__(self) -> "HostBuffer":
        return self

    def __exit__(self, *_: object) -> None: ...


class HostKernels:
    """The plain convolution and the kernels of check.cu, for fp16."""

    card = H200

    def image_key(self, source: str) -> str:
        return f"image of {source}"

    def launch(self, _stream: HostStream, launch: Launch) -> None:
        values: Any = launch.arguments
        if launch.source.startswith("convolve"):
            convolve(values)
            return
        run = {
            "fill_numbers": fill_numbers,
            "fingerprint": fingerprint,
            "plain": convolve,
            "expect": expect,
            "compare": compare,
        }
        run[launch.kernel](values)


def at(address: int, kind: Any, *shape: int) -> Any:
    size = int(prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind).reshape(shape)


def mixed(x: Any) -> Any:
    x = np.asarray(x, np.uint32)
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def random_bits(seed: int, index: Any) -> Any:
    index = np.asarray(index, np.int64)
    high = (index >> 32).astype(np.uint32) ^ np.uint32(seed)
    return mixed(index.astype(np.uint32) ^ mixed(high))


def numbers(p: FillNumbersArguments) -> Any:
    """What check.cu fills a tensor with, in float."""
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
    half = p.channels // 2
    is_upper = index // p.inner % p.channels >= half
    partner = np.where(is_upper, index - half * p.inner, index)
    size = (random_bits(p.seed, partner) >> 16) % 15 + 1.0
    if p.kind == 2:
        return size.astype(np.float32)
    return np.where(is_upper, signs(mixed(bits)) - size, size).astype(np.float32)


def fill_numbers(p: FillNumbersArguments) -> None:
    assert not p.split_fp16
    at(p.target, NUMBER, p.count)[:] = numbers(p).astype(NUMBER)


def fingerprint(p: FingerprintArguments) -> None:
    assert p.are_pairs
    halves = at(p.words, np.uint16, 2 * p.count)
    words = np.where(halves == 0x8000, 0, halves).astype(np.uint16).view(np.uint32)
    at(p.sum, np.uint64, 1)[0] += (factors(p.count) * words.astype(np.uint64)).sum(dtype=np.uint64)


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
    source, weight = at(p.source, NUMBER, *shape), weight_of(p)
    key = source.tobytes(), weight.tobytes(), bytes(p.stride), bytes(p.target_extents)
    if key not in _DONE:
        _DONE[key] = summed(windows(source.astype(np.float64), p), weight.astype(np.float64))
    sums = _DONE[key]
    at(p.target, NUMBER, *sums.shape)[:] = sums


def weight_of(p: Any) -> Any:
    """[K, kD, kH, kW, C / groups]."""
    match p:
        case ConvolveArguments():
            inputs = p.inputs
        case ConvolveDepthwiseArguments():
            inputs = 1
        case _:
            inputs = p.source_channels // p.groups
    return at(p.weight, NUMBER, p.target_channels, *p.kernel, inputs)


def summed(seen: Any, weight: Any) -> Any:
    """[N, D, H, W, K] of windows [N, D, H, W, C, kD, kH, kW]."""
    groups = seen.shape[4] // weight.shape[-1]
    parts = zip(np.split(seen, groups, 4), np.split(weight, groups), strict=True)
    return np.concatenate(
        [np.einsum("ndhwcijk,oijkc->ndhwo", *part) for part in parts],
        axis=-1,
    )


_DONE: dict[tuple[bytes, ...], Any] = {}


def expect(p: ExpectArguments) -> None:
    assert not p.is_gradient
    batch = 1 + int(at(p.voxels, np.int64, p.samples).max()) // prod(p.target_extents)
    shape = (batch, *p.source_extents, p.source_channels)
    source = at(p.source, NUMBER, *shape).astype(np.float64)
    weight = weight_of(p)
    chosen = at(p.voxels, np.int64, p.samples)
    sums = at(p.sums, np.float64, 2, p.samples, p.target_channels)
    for into, part in zip(sums, (lambda x: x, np.abs), strict=True):
        seen = windows(part(source), p)
        made = summed(seen, part(weight.astype(np.float64)))
        into[:] = made.reshape(-1, p.target_channels)[chosen]


def compare(p: CompareArguments) -> None:
    chosen = at(p.voxels, np.int64, p.samples)
    sums, magnitudes = at(p.sums, np.float64, 2, p.samples, p.channels)
    target = at(p.target, NUMBER, int(chosen.max()) + 1, p.channels).astype(np.float64)
    bound = p.of_result * np.abs(sums) + p.of_products * magnitudes + p.smallest
    error = np.nan_to_num(np.abs(target[chosen] - sums) / bound, nan=3e38, posinf=3e38)
    found = at(p.found, np.uint32, 2)
    found[0] += (error > 1).sum()
    found.view(np.float32)[1] = max(found.view(np.float32)[1], error.max())


Fault = Callable[[Any], None]
"""Spoils a result [N, D, H, W, K] that was right."""


class HostPlans:
    """What cuDNN offers on that card: a right result, then the fault of the plan's name."""

    def __init__(self, shape: Convolution, faults: dict[str, Fault | None]) -> None:
        self._shape = shape
        self._faults = list(faults.items())
        self.count = len(faults)
        self.runs = 0

    def name(self, index: int) -> str:
        return self._faults[index][0]

    def build(self, _index: int) -> int:
        return 0

    def run(self, index: int, source: int, weight: int, target: int, _workspace: int) -> None:
        self.runs += 1
        shape = self._shape
        convolve(
            ConvolveArguments(
                source=source,
                weight=weight,
                target=target,
                **convolution_geometry(shape),
                patches=shape.batch,
                inputs=shape.summed_channels,
                outputs=shape.target_channels // shape.groups,
            )
        )
        fault = self._faults[index][1]
        if fault:
            fault(at(target, NUMBER, shape.batch, *shape.target_extents, shape.target_channels))
