"""The kernels of check.cu, lane by lane on the CPU, do what their twins in numpy do."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_on_cpu import kernels, numpy_kernels

from cuda_cyclegan.engine.compiler import weight_layout
from cuda_cyclegan.engine.compiler.kernels import checks
from cuda_cyclegan.engine.compiler.kernels.checks import (
    NOISE,
    Bound,
    Filling,
    exposing_sets,
    sampled_voxels,
)
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.compiler.tensors import Tensor

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
ONE = (1, 1, 1)
SHAPE = ConvShape(2, (3, 4, 5), 8, (3, 4, 5), 16, (3, 1, 3), ONE, (1, 0, 1), (1, 0, 1), "fp16")
GRADIENT = replace(SHAPE, target_extents=(5, 4, 9), stride=(2, 1, 2), transposed=True)
STORED = {"fp16": np.float16, "fp32": np.float32}


def run(launch, precision):
    kernels.run(launch, precision)


@pytest.mark.parametrize("precision", STORED)
@pytest.mark.parametrize("numbers", [*exposing_sets(SHAPE), NOISE], ids=lambda one: one.name)
def test_numbers(numbers, precision):
    tensor = Tensor("source", 2, (3, 4, 5), 8, precision)
    filled = np.full(2 * 3 * 4 * 5 * 8, np.nan, STORED[precision])
    launch = checks.fill_tensor(tensor, numbers.source, filled.ctypes.data, H200)
    run(launch, precision)
    twin = numpy_kernels.numbers(launch.arguments).astype(STORED[precision])
    np.testing.assert_array_equal(filled, twin)
    for shape in (SHAPE, GRADIENT):
        weight = np.full(9 * 8 * 16, np.nan, STORED[precision])
        launch = checks.fill_weight(shape, numbers.weight, weight.ctypes.data, H200)
        run(launch, precision)
        twin = numpy_kernels.numbers(launch.arguments).astype(STORED[precision])
        np.testing.assert_array_equal(weight, twin)


def test_uneven_numbers_have_a_share_of_ones_per_cell():
    tensor = Tensor("source", 2, (9, 17, 5), 8, "fp16")
    filled = np.full((2, 9, 17, 5, 8), np.nan, np.float16)
    launch = checks.fill_tensor(tensor, Filling("uneven"), filled.ctypes.data, H200)
    run(launch, "fp16")
    np.testing.assert_array_equal(filled.ravel(), numpy_kernels.numbers(launch.arguments))
    assert set(np.unique(filled)) == {0, 1}
    assert np.std(shares_of_cells(filled)) > 0.2


def test_patches_are_filled_in_float():
    filled = np.full((2, 3, 9, 17, 5), np.nan, np.float32)
    launch = checks.fill_patches(filled.shape, Filling("uneven"), filled.ctypes.data, H200)
    run(launch, "fp16")
    np.testing.assert_array_equal(filled.ravel(), numpy_kernels.numbers(launch.arguments))
    for channel in range(3):
        assert np.std(shares_of_cells(filled[:, channel])) > 0.2


def shares_of_cells(filled):
    """Means of cells of 4 x 8 along the second and third axis, of each patch."""
    return [
        patch[z : z + 4, y : y + 8].mean()
        for patch in filled
        for z in range(0, patch.shape[0], 4)
        for y in range(0, patch.shape[1], 8)
    ]


def test_numbers_in_pairs_of_fp16():
    tensor = Tensor("source", 1, (2, 3, 4), 32, "fp32", 1.0)
    filled = np.full(2 * 3 * 4 * 32, np.nan, np.float32)
    launch = checks.fill_tensor(tensor, Filling("signs", 0.5, True), filled.ctypes.data, H200)
    run(launch, "fp32")
    twin = weight_layout.split_fp16_pairs(numpy_kernels.numbers(launch.arguments), 1.0)
    np.testing.assert_array_equal(filled.view(np.uint32), twin.ravel().view(np.uint32))


@pytest.mark.parametrize("number_bytes", [2, 4])
def test_fingerprints_show_one_changed_number_and_not_the_sign_of_zero(number_bytes):
    kind = {2: np.float16, 4: np.float32}[number_bytes]
    values = np.random.default_rng(0).integers(-3, 4, 3000).astype(kind)

    def taken(values):
        found = np.zeros(1, np.uint64)
        address, into = values.ctypes.data, found.ctypes.data
        run(checks.fingerprint(address, values.nbytes, number_bytes, into, H200), "fp16")
        return int(found[0])

    right = taken(values)
    assert taken(np.where(values == 0, -values, values)) == right
    for index in (0, 1, 1500, 2999):
        changed = values.copy()
        changed[index] += 1
        assert taken(changed) != right
    assert taken(np.roll(values, 2)) != right


DILATED = replace(SHAPE, dilation=(1, 1, 2), before=(1, 0, 2), after=(1, 0, 2))


@pytest.mark.parametrize("shape", [SHAPE, GRADIENT, DILATED, replace(SHAPE, stride=(2, 1, 1))])
def test_sums_in_double_and_errors_in_bounds(torch, shape):
    if shape.stride == (2, 1, 1):
        shape = replace(shape, target_extents=(2, 4, 5))
    random = np.random.default_rng(0)
    source = random.normal(0, 1, (2, *shape.source_extents, 8)).astype(np.float16)
    outer = (8, 3, 1, 3, 16) if shape.transposed else (16, 3, 1, 3, 8)
    weight = random.normal(0, 1, outer).astype(np.float16)
    voxels = sampled_voxels(shape)[::3].copy()
    sums = kernels.expected_sums(shape, source, weight, voxels)
    convolve = torch.conv_transpose3d if shape.transposed else torch.conv3d
    given = {"stride": shape.stride, "padding": shape.before, "dilation": shape.dilation}
    wanted = [
        convolve(
            torch.from_numpy(part(source.astype(np.float64)).transpose(0, 4, 1, 2, 3).copy()),
            torch.from_numpy(part(weight.astype(np.float64)).transpose(0, 4, 1, 2, 3).copy()),
            **given,
        )
        .numpy()
        .transpose(0, 2, 3, 4, 1)[:, : shape.target_extents[0]]
        .reshape(-1, 16)
        for part in (lambda x: x, np.abs)
    ]
    for got, right in zip(sums, wanted, strict=True):
        np.testing.assert_allclose(got, right[voxels], rtol=1e-12, atol=1e-12)
    for is_translated, kind in ((False, np.float16), (True, np.float32)):
        made = np.full((2, *shape.target_extents, 16), np.nan, kind)
        addresses = source.ctypes.data, weight.ctypes.data, made.ctypes.data
        run(checks.plain_convolution(shape, addresses, is_translated=is_translated), "fp16")
        if is_translated:
            made = made.reshape(2, 16, -1).transpose(0, 2, 1)
        limits = {"rtol": 1e-3, "atol": 1e-3} if kind is np.float16 else {"atol": 1e-5}
        np.testing.assert_allclose(made.reshape(-1, 16), wanted[0], **limits)
    target, found = wanted[0].astype(np.float16), np.zeros(2, np.uint32)
    bound = Bound(2.0**-11, 0.0, 2.0**-25)
    compared = checks.compare(
        shape,
        target.ctypes.data,
        voxels.ctypes.data,
        sums.ctypes.data,
        len(voxels),
        bound,
        found.ctypes.data,
    )
    run(compared, "fp16")
    assert found[0] == 0
    assert 0.5 < found.view(np.float32)[1] <= 1
    target[voxels[3], 7] *= 1 + 20 * 2.0**-11
    target[voxels[5], 15] = np.nan
    run(compared, "fp16")
    assert found[0] == 2
