"""Kernels that join much index arithmetic, run lane by lane on the CPU."""

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.cells import as_cells
from support.described_gpus import H200
from support.gpu_on_cpu import kernels
from support.kernel_samples import (
    by_planes,
    doubling,
    first_layer,
    five_planes,
    last_of_voxels,
    last_transposed,
    packed,
    planned,
)
from support.step_interpreter import high_and_low, voxels_of

from cuda_cyclegan.engine.compiler import weight_layout
from cuda_cyclegan.engine.compiler.kernels.launch import OVERFLOW, anywhere
from cuda_cyclegan.engine.compiler.kernels.step_launches import convolution, launches, scratch_bytes
from cuda_cyclegan.engine.compiler.steps import (
    ActivatedView,
    Activation,
    ConvShape,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
)
from cuda_cyclegan.engine.compiler.tensors import (
    COUNTERS,
    PATCHES,
    TRANSLATED,
    AffineTable,
    Region,
    Tensor,
    TensorView,
)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
PADS = {"reflect": "reflect", "replicate": "edge", "zero": "constant"}


@pytest.mark.parametrize(
    ("batch", "channels", "extents", "pad", "mode", "precision", "grid"),
    [
        (1, 32, (5, 6, 7), 1, "reflect", "fp32", (2, 2)),
        (2, 40, (3, 5, 4), 1, "zero", "fp16", (2, 3)),
        (1, 12, (2, 3, 130), 2, "replicate", "fp32", (3, 1)),
        (1, 32, (6, 5, 9), 0, "zero", "split fp16", (2, 2)),
        (2, 32, (4, 5, 3), 1, "reflect", "split fp16", (1, 1)),
        (2, 40, (9, 5, 30), 0, "zero", "fp16", (1, 2)),
        (3, 32, (7, 5, 30), 0, "reflect", "split fp16", (3, 1)),
    ],
)
def test_normalise(batch, channels, extents, pad, mode, precision, grid):
    random = np.random.default_rng(0)
    scale = 16.0 if precision == "split fp16" else None
    stored = "fp16" if precision == "fp16" else "fp32"
    number = np.float16 if precision == "fp16" else np.float32
    spread, middle = random.uniform(0.5, 3, channels), random.normal(0, 5, channels)
    source = random.normal(middle, spread, (batch, *extents, channels)).astype(number)
    outer = tuple(extent + 2 for extent in extents)
    residual = random.normal(0, 1, (batch, *outer, channels)).astype(number)
    memory = {
        "source": source.copy(),
        "residual": residual if scale is None else weight_layout.split_fp16_pairs(residual, scale),
        "scale": random.uniform(0.5, 2, channels).astype(np.float32),
        "shift": random.normal(0, 1, channels).astype(np.float32),
        COUNTERS: np.zeros(batch * channels, np.uint32),
    }
    wide = tuple(extent + 2 * pad for extent in extents)
    # Without a border the pass works in place.
    memory["target"] = (
        np.full((batch, *wide, channels), np.nan, number) if pad else memory["source"]
    )
    view = TensorView(Tensor("source", batch, extents, channels, stored), extents)
    beside = TensorView(
        Tensor("residual", batch, outer, channels, stored, scale), extents, (1, 1, 1)
    )
    target = Tensor("target", batch, wide, channels, stored, scale)
    table = AffineTable("table", batch, channels)
    step = Normalise(
        Statistics(view, table, 1e-5, "scale", "shift"),
        Pointwise(
            view,
            target.whole,
            Region(0, batch),
            extents,
            (-pad, -pad, -pad),
            mode,
            table=table,
            activation=Activation(0.2),
            residual=beside,
        ),
    )
    scratch = np.full(scratch_bytes(step, H200) // 4, np.nan, np.float32)
    [launch] = launches(step, lambda name: memory[name].ctypes.data, H200, scratch.ctypes.data)
    cut = tuple(min(most, wanted) for most, wanted in zip(grid, launch.grid, strict=False))
    kernels.run(launch, stored, (*cut, 1))
    values = source.astype(np.float64)
    centred = values - values.mean((1, 2, 3), keepdims=True)
    wanted = centred / np.sqrt(values.var((1, 2, 3), keepdims=True) + 1e-5)
    wanted = wanted * memory["scale"] + memory["shift"]
    wanted = np.where(wanted < 0, 0.2 * wanted, wanted) + residual[:, 1:-1, 1:-1, 1:-1]
    wanted = np.pad(wanted, [(0, 0), *[(pad, pad)] * 3, (0, 0)], mode=PADS[mode])
    got = memory["target"] if scale is None else sum(high_and_low(memory["target"])) / scale
    assert np.abs(got - wanted).max() < (1e-2 if precision == "fp16" else 1e-4)
    assert not memory[COUNTERS].any()


def test_a_kernel_that_no_launch_finds_is_named_in_the_error():
    source = Tensor("source", 1, (2, 2, 2), 8, "fp16")
    step = Pack(source, Region(0, 1), 1, (2, 2, 2), (0, 0, 0), "zero")
    [launch] = launches(step, anywhere, H200)
    with pytest.raises(AssertionError, match=r'pack.cu has no kernel packed: .* extern "C"'):
        kernels.run(replace(launch, kernel="packed"), "fp16")


def run(step, memory, gpu=H200):
    """Run all launches in fp16."""
    scratch = np.full(scratch_bytes(step, gpu) // 4, np.nan, np.float32)
    for launch in launches(step, lambda name: memory[name].ctypes.data, gpu, scratch.ctypes.data):
        kernels.run(launch, "fp16")


def assert_measured(memory, wanted, exactly=1e-5):
    """Assert that the table normalises values [N, D, H, W, C] and scales them."""
    factors, summands = memory["table"]
    wanted_factors = memory["scale"] / np.sqrt(wanted.var((1, 2, 3)) + 1e-5)
    np.testing.assert_allclose(factors, wanted_factors, rtol=exactly)
    wanted_summands = -wanted.mean((1, 2, 3)) * wanted_factors
    np.testing.assert_allclose(summands, wanted_summands, rtol=exactly, atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "kernel", "is_far"),
    [
        (2, 1, 32, (2, 3, 70), (3, 1, 3), False),
        (1, 2, 48, (5, 2, 9), (1, 2, 5), False),
        (1, 1, 64, (1, 9, 130), (2, 1, 8), False),
        (1, 1, 32, (2, 3, 70), (1, 1, 3), True),
        (1, 1, 32, (5, 9, 40), (7, 7, 7), False),
        (2, 1, 64, (2, 3, 70), (7, 7, 7), True),
        (1, 1, 32, (9, 9, 40), (3, 3, 3), False),
        (2, 1, 64, (2, 3, 70), (3, 3, 3), True),
    ],
)
def test_first_layer_and_its_statistics(batch, channels, outputs, extents, kernel, is_far):
    """is_far: from zero, by hundreds of standard deviations."""
    random = np.random.default_rng(0)
    patches = random.normal(0.3, 1, (batch, channels, *extents)).astype(np.float32)
    weight = random.normal(0.1, 0.3, (outputs, channels, *kernel)).astype(np.float32)
    if is_far:
        patches, weight = 1 + patches / 256, np.abs(weight) + 30
    origin = tuple(-((taps - 1) // 2) for taps in kernel)
    target = Tensor("target", batch, extents, outputs, "fp16")
    table = AffineTable("table", batch, outputs)
    statistics = Statistics(TensorView(target, extents), table, 1e-5, "scale", None)
    wgmma = kernel in ((7, 7, 7), (3, 3, 3))
    name = "convolve_patches_wgmma" if wgmma else "convolve_patches"
    step = first_layer(name, kernel, target, extents, origin, "replicate", channels=channels)
    step = replace(step, statistics=statistics)
    memory = {
        PATCHES: patches,
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *extents, outputs), np.nan, np.float16),
        "scale": random.uniform(0.5, 2, outputs).astype(np.float32),
        "table": np.full((2, batch, outputs), np.nan, np.float32),
    }
    run(step, memory)
    sides = [(-first, taps - 1 + first) for first, taps in zip(origin, kernel, strict=True)]
    exact = patches.astype(np.float16).astype(np.float64)
    padded = np.pad(exact, [(0, 0), (0, 0), *sides], mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3, 4))
    half = weight.astype(np.float16).astype(np.float64)
    wanted = np.einsum("ncdhwijk,ocijk->ndhwo", windows, half)
    np.testing.assert_allclose(memory["target"], wanted, rtol=1e-3, atol=1e-3)
    assert_measured(memory, wanted, exactly=1e-3 if is_far else 1e-5)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "cells"),
    [
        (1, 64, 32, (3, 5, 17)),
        (2, 128, 64, (2, 3, 9)),
        (1, 64, 64, (2, 18, 4)),
        (1, 128, 96, (3, 16, 7)),
    ],
)
def test_transposed_convolution_to_cells_and_its_statistics(batch, channels, outputs, cells):
    random = np.random.default_rng(0)
    values = random.integers(-4, 5, (batch, *cells, channels)).astype(np.float32)
    weight = random.integers(-1, 2, (channels, outputs, 3, 3, 3)).astype(np.float32)
    extents = tuple(2 * extent for extent in cells)
    source = Tensor("source", batch, cells, channels, "fp16")
    made = Tensor("target", batch, cells, 8 * outputs, "fp16")
    view, table = (
        TensorView(made, extents, shuffled=True),
        AffineTable("table", batch, outputs),
    )
    statistics = Statistics(view, table, 1e-5, "scale", None)
    step = replace(doubling(ActivatedView(source.whole), view), statistics=statistics)
    memory = {
        "source": values.astype(np.float16),
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *made.extents, made.channels), np.nan, np.float16),
        "scale": random.uniform(0.5, 2, outputs).astype(np.float32),
        "table": np.full((2, batch, outputs), np.nan, np.float32),
    }
    run(step, memory)
    wanted = doubled(values, weight)
    got = voxels_of(memory["target"].astype(np.float32)).reshape(wanted.shape)
    assert np.array_equal(got, wanted)
    assert_measured(memory, wanted)


@pytest.mark.parametrize("depth", [3, 1])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "shuffled", "planes"),
    [
        (1, (32,), 32, (5, 19, 37), False, 5),
        (2, (32,), 64, (3, 16, 8), False, 1),
        (1, (32,), 32, (9, 8, 7), False, 5),
        (1, (32, 32), 32, (4, 6, 34), True, 4),
        (1, (64,), 32, (2, 17, 5), False, 2),
        (1, (32, 32), 32, (7, 5, 9), False, 4),
        (1, (64,), 32, (3, 5, 9), False, 1),
    ],
)
def test_convolution_by_planes_and_its_statistics(
    batch, channels, outputs, extents, shuffled, planes, depth
):
    random = np.random.default_rng(0)
    memory, parts, activated = parts_of_planes(random, batch, channels, extents, shuffled)
    weight = random.integers(-1, 2, (outputs, sum(channels), depth, 3, 3)).astype(np.float32)
    target = Tensor("target", batch, extents, outputs, "fp16")
    table = AffineTable("table", batch, outputs)
    statistics = Statistics(TensorView(target, extents), table, 1e-5, "scale", None)
    step = replace(by_planes(parts, target, is_flat=depth == 1), statistics=statistics)
    gpu = gpu_of_walks(step, planes)
    memory |= {
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *extents, outputs), np.nan, np.float16),
        "scale": random.uniform(0.5, 2, outputs).astype(np.float32),
        "table": np.full((2, batch, outputs), np.nan, np.float32),
    }
    run(step, memory, gpu)
    wanted = convolved(activated, weight)
    assert np.array_equal(memory["target"].astype(np.float32), wanted)
    assert_measured(memory, wanted)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "shuffled", "planes"),
    [
        (1, (32,), 32, (9, 9, 37), False, 9),
        (2, (32,), 64, (3, 16, 8), False, 1),
        (1, (32,), 32, (7, 8, 7), False, 7),
        (1, (32, 32), 32, (4, 6, 34), True, 4),
        (1, (96,), 32, (2, 9, 5), False, 2),
        (1, (64, 32), 32, (3, 5, 9), False, 1),
    ],
)
def test_convolution_by_five_planes(batch, channels, outputs, extents, shuffled, planes):
    random = np.random.default_rng(0)
    memory, parts, activated = parts_of_planes(random, batch, channels, extents, shuffled)
    weight = random.integers(-1, 2, (outputs, sum(channels), 5, 5, 5)).astype(np.float32)
    step = five_planes(parts, Tensor("target", batch, extents, outputs, "fp16"))
    memory |= {
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *extents, outputs), np.nan, np.float16),
    }
    run(step, memory, gpu_of_walks(step, planes))
    assert np.array_equal(memory["target"].astype(np.float32), convolved(activated, weight))


def parts_of_planes(random, batch, channels, extents, shuffled):
    """Return memory with views, the views, and what they are once activated.

    Numbers of which fp16 holds all that comes of them, so that nothing rounds.
    """
    memory, parts, activated = {}, [], []
    for number, count in enumerate(channels):
        values = random.integers(-3, 4, (batch, *extents, count)).astype(np.float16)
        tensor, view = Tensor(f"part {number}", batch, extents, count, "fp16"), None
        memory[tensor.name] = values
        if shuffled and number == 0:
            memory[tensor.name], cells = as_cells(values)
            tensor = replace(tensor, extents=cells, channels=8 * count)
            view = TensorView(tensor, extents, shuffled=True)
        table, slope, made = None, 1.0, values.astype(np.float32)
        if number or len(channels) == 1:
            table, slope = AffineTable(f"table {number}", batch, count), -1.0
            factors = random.choice([-1.0, 1.0, 2.0], (batch, count)).astype(np.float32)
            summands = random.integers(-2, 3, (batch, count)).astype(np.float32)
            memory[table.name] = np.stack([factors, summands])
            made = made * factors[:, None, None, None] + summands[:, None, None, None]
            made = np.abs(made)
        parts.append(ActivatedView(view or TensorView(tensor, extents), table, Activation(slope)))
        activated.append(made)
    return memory, tuple(parts), np.concatenate(activated, -1)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "precision", "curve"),
    [
        (2, 32, 1, (3, 5, 7), "fp16", "linear"),
        (1, 24, 3, (2, 9, 130), "fp16", "sigmoid"),
        (1, 256, 2, (2, 3, 5), "fp16", "linear"),
        (2, 4, 4, (1, 4, 300), "fp32", "tanh"),
    ],
)
def test_last_convolution_of_single_voxels(batch, channels, outputs, extents, precision, curve):
    """Blocks are fewer than there is to do; behind the source lies NaN."""
    gpu = replace(H200, multiprocessors=1)
    random = np.random.default_rng(0)
    number = np.float16 if precision == "fp16" else np.float32
    values = random.integers(-8, 9, (batch, *extents, channels)).astype(np.float32)
    weight = random.normal(0, 1, (outputs, channels)).astype(np.float32)
    bias = random.normal(0, 1, outputs).astype(np.float32)
    factors = random.uniform(0.5, 2, (batch, channels)).astype(np.float32)
    summands = random.normal(0, 1, (batch, channels)).astype(np.float32)
    fenced = np.full(values.size + 4096, np.nan, number)
    fenced[: values.size] = values.ravel()
    memory = {
        "source": fenced,
        "table": np.stack([factors, summands]),
        "weight": weight,
        "bias": bias,
        TRANSLATED: np.full((batch, outputs, *extents), np.nan, np.float32),
        OVERFLOW: np.zeros(1, np.int32),
    }
    view = TensorView(Tensor("source", batch, extents, channels, precision), extents)
    source = ActivatedView(view, AffineTable("table", batch, channels), Activation(0.1))
    step = last_of_voxels(source, outputs)
    step = replace(step, bias="bias", activation=Activation(curve=curve))
    [launch] = launches(step, lambda name: memory[name].ctypes.data, gpu)
    kernels.run(launch, precision, (2, *launch.grid[1:]))
    activated = values * factors[:, None, None, None] + summands[:, None, None, None]
    wanted = np.where(activated < 0, 0.1 * activated, activated) @ weight.T + bias
    wanted = {
        "linear": lambda made: made,
        "tanh": np.tanh,
        "sigmoid": lambda made: 1 / (1 + np.exp(-made)),
    }[curve](wanted)
    np.testing.assert_allclose(memory[TRANSLATED], np.moveaxis(wanted, -1, 1), rtol=1e-5, atol=1e-4)
    assert not memory[OVERFLOW][0]


def gpu_of_walks(step, planes):
    """A GPU on which a block walks through so many planes of the target."""
    gpus = (replace(H200, multiprocessors=count) for count in (1, 2, H200.multiprocessors))
    return next(gpu for gpu in gpus if planes_of_a_walk(step, gpu) == planes)


def planes_of_a_walk(step, gpu):
    return convolution(step, anywhere, gpu).arguments.planes


def convolved(values, weight, stride=1):
    """Return the convolution with zeros around: each tap leads from voxel stride * i + tap - edge
    // 2 to voxel i.
    """
    edges, extents = weight.shape[2:], values.shape[1:4]
    padded = np.pad(values, [(0, 0), *((edge // 2, edge // 2) for edge in edges), (0, 0)])
    made = 0.0
    for taps in product(*map(range, edges)):
        each = (slice(i, i + extent, stride) for i, extent in zip(taps, extents, strict=True))
        made = made + padded[:, *each] @ weight[:, :, *taps].T
    return made


def doubled(values, weight):
    """Each tap leads from voxel i to 2 i + tap - 1, of which there are twice as many as values."""
    batch, depth, height, width, _ = values.shape
    made = np.zeros((batch, 2 * depth + 1, 2 * height + 1, 2 * width + 1, weight.shape[1]))
    for i, j, k in product(range(3), repeat=3):
        made[:, i : i + 2 * depth : 2, j : j + 2 * height : 2, k : k + 2 * width : 2] += (
            values @ weight[:, :, i, j, k]
        )
    return made[:, 1:, 1:, 1:].astype(np.float32)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "slope"),
    [
        (1, 32, 64, (9, 9, 7), 0.0),
        (2, 32, 128, (4, 67, 17), 0.25),
        (1, 32, 64, (1, 5, 3), None),
        (2, 32, 128, (8, 7, 35), 0.5),
        (1, 32, 64, (11, 34, 6), None),
    ],
)
def test_halving_convolution_and_its_statistics(batch, channels, outputs, extents, slope):
    """slope: None where the source is read as it is. Around the source there is NaN.

    A block makes all planes, a whole one and one with fewer voxels beside each other.
    """
    gpu = replace(H200, multiprocessors=1)
    random = np.random.default_rng(0)
    values = random.integers(-4, 5, (batch, *extents, channels)).astype(np.float32)
    weight = random.integers(-1, 2, (outputs, channels, 3, 3, 3)).astype(np.float32)
    made = tuple((extent + 1) // 2 for extent in extents)
    source = Tensor("source", batch, extents, channels, "fp16")
    target = Tensor("target", batch, made, outputs, "fp16")
    table = None if slope is None else AffineTable("first.table", batch, channels)
    view = ActivatedView(
        TensorView(source, extents), table, Activation(1.0 if slope is None else slope)
    )
    found = AffineTable("table", batch, outputs)
    statistics = Statistics(TensorView(target, made), found, 1e-5, "scale", None)
    step = replace(by_planes((view,), target, stride=2), statistics=statistics)
    factors = random.choice([-1.0, 0.5, 2.0], (batch, channels))
    summands = random.integers(-3, 4, (batch, channels))
    fenced = np.full(values.size + 2 * 4096, np.nan, np.float16)
    fenced[4096:-4096] = values.ravel()
    memory = {
        "source": fenced[4096:-4096],
        "first.table": np.stack([factors, summands]).astype(np.float32),
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *made, outputs), np.nan, np.float16),
        "scale": random.uniform(0.5, 2, outputs).astype(np.float32),
        "table": np.full((2, batch, outputs), np.nan, np.float32),
    }
    run(step, memory, gpu)
    if slope is not None:
        values = values * factors[:, None, None, None] + summands[:, None, None, None]
        values = np.where(values < 0, slope * values, values)
    wanted = convolved(values, weight, stride=2)
    assert np.array_equal(memory["target"], wanted.astype(np.float16))
    assert_measured(memory, wanted)


@pytest.mark.parametrize(
    ("batch", "outputs", "extents", "origin", "mode"),
    [
        (2, 32, (7, 20, 134), (-1, -1, -1), "zero"),
        (1, 48, (4, 5, 30), (-1, -2, 0), "reflect"),
        (1, 64, (2, 34, 9), (-1, -1, -1), "replicate"),
    ],
)
def test_first_layer_of_stride_two(batch, outputs, extents, origin, mode):
    random = np.random.default_rng(0)
    patches = random.normal(0.3, 1, (batch, 1, *extents)).astype(np.float32)
    weight = random.normal(0.1, 0.3, (outputs, 1, 4, 4, 4)).astype(np.float32)
    made = tuple(extent // 2 for extent in extents)
    target = Tensor("target", batch, made, outputs, "fp16")
    name, two = "convolve_strided_patches", (2, 2, 2)
    step = first_layer(name, (4, 4, 4), target, extents, origin, mode, stride=two)
    memory = {
        PATCHES: patches,
        "weight": packed(step, weight).astype(np.float16),
        "target": np.full((batch, *made, outputs), np.nan, np.float16),
    }
    [launch] = launches(step, lambda name: memory[name].ctypes.data, H200)
    kernels.run(launch, "fp16")
    ends = zip(origin, made, extents, strict=True)
    sides = [(-first, max(0, 2 * m + 2 - e + first)) for first, m, e in ends]
    exact = patches.astype(np.float16).astype(np.float64)
    padded = np.pad(exact, [(0, 0), (0, 0), *sides], mode=PADS[mode])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (4, 4, 4), axis=(2, 3, 4))
    half = weight.astype(np.float16).astype(np.float64)
    wanted = np.einsum("ncdhwijk,ocijk->ndhwo", windows[:, :, ::2, ::2, ::2], half)
    wanted = wanted[:, : made[0], : made[1], : made[2]]
    np.testing.assert_allclose(memory["target"], wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "extents", "kernel", "stride", "border"),
    [
        (2, 32, 36, (3, 5, 5), (2, 1, 1), (1, 1, 1), 0),
        (1, 64, 28, (5, 4, 5), (1, 3, 1), (1, 2, 1), 1),
        (1, 32, 72, (4, 4, 4), (2, 2, 1), (2, 1, 1), 1),
    ],
)
def test_convolution_on_split_fp16(batch, channels, outputs, extents, kernel, stride, border):
    random = np.random.default_rng(0)
    image = random.normal(0, 1, (batch, *extents, channels)).astype(np.float32)
    weight = random.normal(0, 0.1, (outputs, *kernel, channels)).astype(np.float32)
    before = (border, border, border)
    sizes = zip(extents, kernel, stride, strict=True)
    depth, height, width = (
        (extent + 2 * border - taps) // step + 1 for extent, taps, step in sizes
    )
    source = Tensor("source", batch, extents, channels, "fp32", 8.0)
    target = Tensor("target", batch, (depth, height, width), outputs, "fp32")
    shape = ConvShape(
        batch,
        extents,
        channels,
        target.extents,
        outputs,
        kernel,
        stride,
        before,
        before,
        "fp32",
        split_fp16=True,
    )
    step = replace(planned(shape, source.scale), scale=1 / (8.0 * 64.0))
    memory = {
        "source": weight_layout.split_fp16_pairs(image, 8.0),
        "weight": weight_layout.split_fp16_pairs(weight, 64.0),
        "target": np.full((batch, depth, height, width, outputs), np.nan, np.float32),
    }
    [launch] = launches(step, lambda name: memory[name].ctypes.data, H200)
    kernels.run(launch, "fp32")
    padded = np.pad(image.astype(np.float64), [(0, 0), *[(border, border)] * 3, (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(1, 2, 3))
    windows = windows[:, :: stride[0], :: stride[1], :: stride[2]]
    wanted = np.einsum("ndhwcijk,oijkc->ndhwo", windows, weight.astype(np.float64))
    assert np.linalg.norm(memory["target"] - wanted) < 4e-7 * np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("batch", "outputs", "parts", "extents", "slope", "shuffled"),
    [
        (2, 1, ((32, 2), (32, 1)), (2, 3, 5), 0.0, False),
        (1, 2, ((64, None),), (1, 2, 26), 1.0, False),
        (2, 1, ((32, None), (64, 2)), (3, 1, 46), 0.2, False),
        (1, 1, ((32, 1),), (1, 9, 1), 0.0, False),
        (2, 1, ((32, 2), (64, 1)), (2, 4, 26), 0.2, True),
    ],
)
def test_transposed_last_layer(torch, batch, outputs, parts, extents, slope, shuffled):
    """parts: channels of each, and of how many patches its table is; the last may be shuffled."""
    random = np.random.default_rng(0)
    channels = sum(count for count, _ in parts)
    target = tuple(2 * extent for extent in extents)
    halo = tuple(extent + 2 for extent in extents)
    weight = random.normal(0, 0.1, (channels, outputs, 4, 4, 4)).astype(np.float32)
    memory = {
        "bias": random.normal(0, 1, outputs).astype(np.float32),
        TRANSLATED: np.full((batch, outputs, *target), np.nan, np.float32),
        OVERFLOW: np.zeros(1, np.int32),
    }
    views, values = [], []
    for number, (count, patches) in enumerate(parts):
        source = random.normal(0, 1, (batch, *halo, count)).astype(np.float16)
        memory[f"part {number}"] = source
        tensor = Tensor(f"part {number}", batch, halo, count, "fp16")
        is_shuffled = shuffled and number + 1 == len(parts)
        if is_shuffled:
            memory[tensor.name], cells = as_cells(source)
            tensor = replace(tensor, extents=cells, channels=8 * count)
        inner = source[:, 1:-1, 1:-1, 1:-1].astype(np.float32)
        table = None
        if patches:
            memory[f"table {number}"] = random.uniform(0.5, 2, (2, patches, count)).astype("f4")
            table = AffineTable(f"table {number}", patches, count)
            factor, summand = memory[f"table {number}"][:, :, None, None, None]
            inner = (inner.astype(np.float64) * factor + summand).astype(np.float32)
        views.append(
            ActivatedView(
                TensorView(tensor, extents, (1, 1, 1), is_shuffled), table, Activation(slope)
            )
        )
        values.append(np.where(inner < 0, slope * inner, inner).astype(np.float16))
    step = last_transposed(tuple(views), outputs)
    step = replace(step, bias="bias", activation=Activation(curve="tanh"))
    memory["weight"] = packed(step, weight).astype(np.float16)
    [launch] = launches(step, lambda name: memory[name].ctypes.data, H200)
    kernels.run(launch, "fp16")
    seen = torch.from_numpy(np.concatenate(values, -1).astype(np.float64)).permute(0, 4, 1, 2, 3)
    half = torch.from_numpy(weight.astype(np.float16).astype(np.float64))
    bias = torch.from_numpy(memory["bias"].astype(np.float64))
    wanted = torch.tanh(torch.conv_transpose3d(seen, half, bias, stride=2, padding=1))
    np.testing.assert_allclose(memory[TRANSLATED], wanted, atol=1e-5)
    assert memory[OVERFLOW][0] == 0
