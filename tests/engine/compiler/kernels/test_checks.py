"""Numbers that expose a convolution have exact sums; the bound of rounding holds for right ones."""

from dataclasses import replace
from functools import cache
from math import prod

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_on_cpu import numpy_kernels

from cuda_cyclegan.engine.compiler.kernels import checks
from cuda_cyclegan.engine.compiler.kernels.checks import (
    depth_of_sum,
    exposing_sets,
    most_samples,
    rounding_bound,
    sampled_voxels,
)
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.compiler.tensors import Tensor

ONE, CUBE = (1, 1, 1), (9, 9, 9)
SHALLOW = ConvShape(1, CUBE, 8, CUBE, 8, ONE, ONE, ONE, ONE, "fp16")
SHAPES = {
    "shallow": SHALLOW,
    "usual": replace(SHALLOW, source_channels=128, kernel=(3, 3, 3)),
    "deep": replace(SHALLOW, source_channels=512, kernel=(4, 4, 4)),
    "groups": replace(SHALLOW, source_channels=128, kernel=(3, 3, 3), groups=4),
    "single channels": replace(SHALLOW, source_channels=64, kernel=(5, 5, 5), groups=64),
}
AT_ONCE = 250
TRUNCATED = ~np.uint32(0x1FFF)
"""Bits of a float that TF32 holds."""
BEYOND_FLOAT = ~np.uint64(2**29 - 1)
"""Bits of a double that a float's 24 digits hold."""


def filled(launch):
    return numpy_kernels.numbers(launch.arguments)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_sums_are_exact_in_every_precision_and_order(name, split):
    shape = replace(SHAPES[name], precision="fp32", split_fp16=split)
    patches, outputs, taps, inputs = (
        64,
        32 if name == "deep" else 64,
        prod(shape.kernel),
        shape.summed_channels,
    )
    for numbers in exposing_sets(shape):
        tensor = Tensor("source", patches, (1, 1, taps), shape.source_channels, "fp32")
        source = filled(checks.fill_tensor(tensor, numbers.source, 0, H200, shape.groups))
        wide = replace(shape, target_channels=outputs)
        weight = filled(checks.fill_weight(wide, numbers.weight, 0, H200)).reshape(outputs, -1)
        groups = source.reshape(patches, taps, shape.groups, inputs).astype(np.float64)
        by_group = groups.transpose(2, 0, 1, 3).reshape(shape.groups, patches, -1)
        weights = weight.reshape(shape.groups, -1, taps * inputs)
        sums = by_group @ weights.swapaxes(1, 2)
        assert np.abs(np.round(sums)).max() <= 256
        assert np.abs(sums).max() > 3
        products = by_group[:, :4, None] * weights[:, None]
        partial = np.abs(products.cumsum(axis=-1)).max()
        last_digit = 2.0**-12 if numbers.name.startswith("low") else 1
        assert partial / last_digit < 2**24
        if numbers.name == "cancellation" and name != "shallow":
            assert partial > 100 * np.abs(sums).mean()
        for one in (source, weight):
            cut = (one.astype(np.float32).view(np.uint32) & TRUNCATED).view(np.float32)
            if not numbers.source.fraction and not numbers.weight.fraction:
                np.testing.assert_array_equal(cut, one)


def test_each_tap_of_each_channel_counts_somewhere():
    shape = SHAPES["deep"]
    [signs, _] = exposing_sets(shape)
    wide = replace(shape, target_channels=256)
    weight = filled(checks.fill_weight(wide, signs.weight, 0, H200)).reshape(256, -1)
    assert (np.abs(weight).sum(axis=0) > 0).mean() > 0.97


def truncated_sum(products):
    """Sum as Tensor Cores do: 8 products at a time, and what does not fit is cut off."""
    total = np.zeros(products.shape[0])
    for start in range(0, products.shape[1], 8):
        total += products[:, start : start + 8].astype(np.float64).sum(axis=1)
        total.view(np.uint64)[:] &= BEYOND_FLOAT
    return total


def sequential_sum(products):
    return products.cumsum(axis=1)[:, -1].astype(np.float64)


@cache
def right_results(outputs, depth, precision):
    """Sums of so many products, their magnitudes, and what each way makes of them."""
    random = np.random.default_rng(0)
    parts = [right_part(random, depth, precision) for _ in range(outputs // AT_ONCE)]
    wanted, magnitudes, *made = (np.concatenate(part) for part in zip(*parts, strict=True))
    return wanted, magnitudes, made


def right_part(random, depth, precision):
    shape = AT_ONCE, depth
    source, weight = (random.random(shape, np.float32) / 5 - np.float32(0.1) for _ in "sw")
    if precision in ("fp16", "bf16"):
        source, weight = (stored(one, precision) for one in (source, weight))
    exact = source.astype(np.float64) * weight
    wanted, magnitudes = exact.sum(axis=1), np.abs(exact).sum(axis=1)
    if precision == "tf32":
        source, weight = (
            (one.view(np.uint32) & TRUNCATED).view(np.float32) for one in (source, weight)
        )
    products = source * weight if precision != "fp32" else exact.astype(np.float32)
    ways = (sequential_sum,) if precision == "fp32" else (sequential_sum, truncated_sum)
    made = (stored(way(products).astype(np.float32), precision) for way in ways)
    return wanted, magnitudes, *(one.astype(np.float64) for one in made)


@pytest.mark.parametrize("outputs", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp32"])
@pytest.mark.parametrize("name", SHAPES)
def test_right_results_are_within_the_bound_and_20_bounds_are_not(name, precision, outputs):
    shape = replace(SHAPES[name], precision=precision)
    bound = rounding_bound(shape)
    wanted, magnitudes, ways = right_results(outputs, min(depth_of_sum(shape), 3456), precision)
    allowed = bound.of_result * np.abs(wanted) + bound.of_products * magnitudes + bound.smallest
    assert len(wanted) == outputs
    for made in ways:
        errors = np.abs(made - wanted) / allowed
        assert errors.max() <= 1
        assert (np.abs(made + 20 * allowed - wanted) / allowed).min() > 1


def stored(values, precision):
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float32)
    if precision == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def test_an_accumulator_of_fp16_is_beyond_the_bound():
    shape = SHAPES["usual"]
    bound, random = rounding_bound(shape), np.random.default_rng(0)
    source, weight = (
        stored(random.uniform(-0.1, 0.1, (200, 3456)).astype(np.float32), "fp16") for _ in "sw"
    )
    exact = source.astype(np.float64) * weight
    total = np.zeros(200, np.float16)
    for column in (source * weight).T:
        total += column.astype(np.float16)
    allowed = bound.of_result * np.abs(exact.sum(1)) + bound.of_products * np.abs(exact).sum(1)
    assert (np.abs(total.astype(np.float64) - exact.sum(1)) / allowed).max() > 1


def test_voxels_that_are_looked_at_have_all_corners_of_the_first_and_last_patch():
    shape = replace(SHALLOW, batch=3, target_extents=(20, 30, 40))
    voxels = set(sampled_voxels(shape).tolist())
    for patch in (0, 2):
        for corner in np.ndindex(2, 2, 2):
            place = [patch, *(e * (n - 1) for e, n in zip(corner, (20, 30, 40), strict=True))]
            assert np.ravel_multi_index(place, (3, 20, 30, 40)) in voxels
    assert max(voxels) == 3 * 20 * 30 * 40 - 1
    assert len(voxels) > 900


@pytest.mark.parametrize("channels", [1, 8, 300, 2048])
@pytest.mark.parametrize("extents", [(1, 1, 1), (2, 9, 4), (5, 5, 5), (70, 71, 72)])
@pytest.mark.parametrize("batch", [1, 3])
def test_there_is_space_for_all_voxels_that_are_looked_at(channels, extents, batch):
    shape = replace(SHALLOW, batch=batch, target_extents=extents, target_channels=channels)
    assert len(sampled_voxels(shape)) <= most_samples(shape)
