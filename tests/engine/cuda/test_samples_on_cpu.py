"""Each sample of a kernel, run lane by lane on the CPU, gives what NumPy gives.

Sources and weights are small whole numbers, so that no sum rounds: outputs must be equal to the
last bit, whatever the order of summation, and a wrong factor, tap or border changes them.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_on_cpu.kernels import Array, run
from support.kernel_samples import SAMPLES, depthwise, narrow, view
from support.step_interpreter import Memory

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.kernels.launch import OVERFLOW, anywhere
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches, scratch_bytes
from cuda_cyclegan.engine.compiler.kernels.table import KERNELS, kernel_of
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.steps import Activation, Conv, PatchArray
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED, Tensor
from cuda_cyclegan.engine.compiler.weight_layout import (
    PackedWeight,
    encoded,
    forward,
    split_fp16_pairs,
    transposed,
)
from cuda_cyclegan.engine.network.layers import FloatArray

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
SMALL = replace(H200, multiprocessors=1)
CONVOLUTIONS = {
    f"{kernel} {number}": conv
    for kernel, samples in SAMPLES.items()
    for number, conv in enumerate(samples)
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "convolve_by_planes 1" else name
        for name in CONVOLUTIONS
    ],
)
def test_a_sample_gives_what_numpy_gives(name: str) -> None:
    compare(CONVOLUTIONS[name], H200)


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if "depthwise" in name])
def test_a_depthwise_sample_gives_the_same_in_large_tiles(name: str) -> None:
    """Small tensors have large tiles on a GPU that needs few blocks."""
    compare(CONVOLUTIONS[name], SMALL)


MANY_TAPS = (
    depthwise(8, (48, 64, 1), (2, 3, 4)),
    depthwise(8, (18, 18, 5), stride=(8, 4, 2), transposed=True),
)
"""Depthwise convolutions whose weights are too large for shared memory."""


@pytest.mark.parametrize("conv", MANY_TAPS, ids=("forward", "transposed"))
def test_a_depthwise_convolution_of_many_taps_gives_what_numpy_gives(conv: Conv) -> None:
    assert [launch.shared for launch in launches(conv, anywhere, H200)] == [0]
    compare(conv, H200)


def test_each_depthwise_kernel_is_tried() -> None:
    launched = {
        launch.kernel
        for conv in (*SAMPLES["convolve_depthwise"], *MANY_TAPS)
        for gpu in (H200, SMALL)
        for launch in launches(conv, anywhere, gpu)
    }
    assert launched == {*KERNELS["convolve_depthwise"].instances}


def compare(conv: Conv, gpu: GpuProperties) -> None:
    """Compare what a kernel writes with NumPy's results."""
    expected = memory_of(conv)
    outputs = run_kernel(conv, expected, gpu)
    expected.take(conv)
    if conv.translated:
        np.testing.assert_array_equal(outputs[TRANSLATED], expected.translated)
        assert outputs[OVERFLOW] == 0
    else:
        np.testing.assert_array_equal(outputs[conv.target.name], expected.of(conv.target))
    if conv.statistics:
        table = conv.statistics.target.name
        np.testing.assert_allclose(outputs[table], expected.tables[table], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_block_of_two_tiles_gives_what_numpy_gives(groups: int) -> None:
    """The samples have too few blocks for two tiles each on an H200."""
    extents = 5, 9, 37
    target = Tensor("target", 1, extents, 8 * groups, "fp16")
    conv = narrow((view("source", extents, 24),), target.whole, dilation=(2, 1, 3))
    gpu = replace(H200, multiprocessors=1)
    [launch] = launches(conv, anywhere, gpu)
    assert launch.kernel == f"convolve_narrow<{groups}, 3, 2>"
    expected = memory_of(conv)
    outputs = run_kernel(conv, expected, gpu)
    expected.take(conv)
    np.testing.assert_array_equal(outputs["target"], expected.of(conv.target))


@pytest.mark.parametrize("to_patches", [False, True])
def test_splits_of_unequal_counts_are_added_before_bias_and_activation(to_patches: bool) -> None:
    """Five steps in splits of three and two, of which some lanes are written."""
    extents = 3, 5, 18
    source = view("source", extents, 72)
    target = Tensor("target", 1, extents, 16, "fp16")
    conv = replace(
        narrow((source,), PatchArray(5, extents) if to_patches else target.whole),
        bias="shift",
        activation=Activation(0.5),
        lanes=None if to_patches else (3, 14),
    )
    gpu = replace(H200, multiprocessors=4)
    first, last = launches(conv, anywhere, gpu, 256)
    assert first.grid == (2, 1, 2)
    assert last.grid == (-(-3 * 5 * 18 * (8 if conv.outputs > 8 else 4) // 256), 1, 1)
    expected = memory_of(conv)
    outputs = run_kernel(conv, expected, gpu)
    expected.take(conv)
    if to_patches:
        np.testing.assert_array_equal(outputs[TRANSLATED], expected.translated)
        assert outputs[OVERFLOW] == 0
    else:
        np.testing.assert_array_equal(outputs["target"], expected.of(conv.target))


def test_a_sum_of_splits_that_is_not_finite_is_noted() -> None:
    extents = 3, 5, 18
    conv = narrow((view("source", extents, 80),), PatchArray(5, extents))
    inputs = memory_of(conv)
    inputs.tensors["source"][0, 1, 2, 3, 70] = np.inf
    assert run_kernel(conv, inputs)[OVERFLOW] == 1


def memory_of(conv: Conv) -> Memory:
    """Return a program of the convolution alone, and all that it reads."""
    random = np.random.default_rng(0)

    def whole(*shape: int, least: int = -2, most: int = 2) -> FloatArray:
        return random.integers(least, most + 1, shape).astype(np.float32)

    constants = {name: whole(conv.outputs, least=1) for name in ("scale", "shift")}
    weight = packed_weight(conv, whole(*weight_shape(conv), least=-1, most=1))
    if kernel_of(conv).has_float_weight:
        constants[conv.weight] = weight.numbers()
    array = conv.patches or conv.translated or PatchArray(1, (1, 1, 1))
    layout = Layout(array.extents, conv.batch, conv.precision)
    program = Lowered(layout, H200, (conv,), constants, {conv.weight: weight})
    memory = Memory(program, whole(conv.batch, array.channels, *array.extents), conv.outputs)
    for part in conv.views:
        tensor, table = part.source.tensor, part.table
        values = whole(tensor.batch, *tensor.extents, tensor.channels)
        is_split = tensor.scale is not None
        memory.tensors[tensor.name] = split_fp16_pairs(values, tensor.scale) if is_split else values
        if table:
            memory.tables[table.name] = whole(2, table.patches, table.channels)
    return memory


def weight_shape(conv: Conv) -> tuple[int, ...]:
    """Return the extents of a weight as a network has it."""
    ends, groups = (conv.outputs, conv.channels), conv.geometry.groups
    first, second = reversed(ends) if conv.geometry.transposed else ends
    return first, second // groups, *conv.geometry.kernel


def packed_weight(conv: Conv, weight: FloatArray) -> PackedWeight:
    """Return a weight in the layout of its kernel; without one of its own, in that of cuDNN."""
    if pack := kernel_of(conv).pack:
        return pack(weight, range(conv.channels), conv.channels)
    first, second, *_ = weight.shape
    if conv.geometry.transposed:
        packed = transposed(weight, range(first), first, second)
    else:
        packed = forward(weight, range(second), second, first)
    return packed if conv.source.scale is None else packed.split_fp16(conv.source.scale)


def run_kernel(conv: Conv, inputs: Memory, gpu: GpuProperties = H200) -> dict[str, Array]:
    """Return what the launches of a convolution write, of inputs as a GPU stores them."""
    stored = {PATCHES: encoded(inputs.patches, "fp32"), **dict(inputs.lowered.encoded_constants())}
    stored |= {name: encoded(table, "fp32") for name, table in inputs.tables.items()}
    for part in conv.views:
        tensor = part.source.tensor
        stored[tensor.name] = encoded(inputs.tensors[tensor.name], tensor.precision)
    outputs: dict[str, Array] = {}
    if conv.translated:
        outputs[TRANSLATED] = np.full_like(inputs.translated, np.nan)
        outputs[OVERFLOW] = np.zeros(1, np.int32)
    else:
        number = np.float16 if conv.target.precision == "fp16" else np.float32
        outputs[conv.target.name] = np.full_like(inputs.of(conv.target), np.nan, number)
    if conv.statistics:
        table = conv.statistics.target
        outputs[table.name] = np.full((2, table.patches, table.channels), np.nan, np.float32)
    memory = {name: np.frombuffer(content, np.uint8) for name, content in stored.items()} | outputs
    scratch = np.full(scratch_bytes(conv, gpu) // 4, np.nan, np.float32)
    for launch in launches(conv, lambda name: memory[name].ctypes.data, gpu, scratch.ctypes.data):
        run(launch, conv.precision)
    return outputs
