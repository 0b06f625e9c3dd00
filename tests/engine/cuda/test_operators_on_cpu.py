"""Kernels of single operators, lane by lane on the CPU, give what PyTorch gives for any extents."""

import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.gpu_on_cpu import kernels
from support.tiers import examples

from cuda_cyclegan.engine.compiler.kernels import checks
from cuda_cyclegan.engine.compiler.kernels.checks import sampled_voxels
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches
from cuda_cyclegan.engine.compiler.steps import Activation, Conv, ConvShape, Pointwise
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Region, Tensor, TensorView
from cuda_cyclegan.engine.network.layers import FloatArray, Pool, Triple
from cuda_cyclegan.engine.options import Precision

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]
NUMBERS = {"fp16": np.float16, "fp32": np.float32}
LANES = {"fp16": 8, "fp32": 4}
LIMITS = {"fp16": 2e-3, "fp32": 1e-5}

precisions = st.sampled_from(list(NUMBERS))
triples = st.tuples(*[st.integers(1, 3)] * 3)
extents_of = st.tuples(*[st.integers(1, 7)] * 3)


def run(step: Pointwise | Conv, memory: dict[str, Any], kind: Precision) -> None:
    for launch in launches(step, lambda name: memory[name].ctypes.data, H200):
        kernels.run(launch, kind)


def whole(name: str, array: FloatArray, precision: Precision) -> TensorView:
    batch, depth, height, width, channels = array.shape
    tensor = Tensor(name, batch, (depth, height, width), channels, precision)
    return TensorView(tensor, tensor.extents)


def first(array: FloatArray) -> Any:
    """Return the array in float64 with its channels first, as PyTorch has them."""
    import torch

    return torch.from_numpy(np.moveaxis(array.astype(np.float64), -1, 1).copy())


def assert_close(made: FloatArray, wanted: Any, precision: Precision) -> None:
    right = np.moveaxis(wanted.numpy(), 1, -1)
    assert made.shape == right.shape
    assert np.abs(made - right).max() <= LIMITS[precision] * max(1.0, np.abs(right).max())


def in_windows(
    value: Any, kernel: Triple, stride: Triple, padding: Any, mode: str, counts_padding: bool
) -> Any:
    """PyTorch's pooling of a tensor that is padded before, as it takes none below the kernel."""
    import torch

    sides = [width for width in padding[::-1] for _ in range(2)]
    pad, mean = torch.nn.functional.pad, torch.nn.functional.avg_pool3d
    if mode == "largest":
        bordered = pad(value, sides, value=-np.inf)
        return torch.nn.functional.max_pool3d(bordered, kernel, stride)
    counted = pad(torch.ones_like(value), sides, value=float(counts_padding))
    return mean(pad(value, sides), kernel, stride) / mean(counted, kernel, stride)


@settings(deadline=None, max_examples=examples(40, 10))
@given(
    st.sampled_from(["largest", "mean"]),
    extents_of,
    triples,
    triples,
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
    precisions,
    st.integers(0, 10**6),
)
def test_pooling(
    torch: Any,
    mode: Any,
    extents: Triple,
    kernel: Triple,
    stride: Triple,
    is_padded: bool,
    counts_padding: bool,
    batch: int,
    precision: Precision,
    seed: int,
) -> None:
    """Pooling of a value that is normalised and activated on the way, behind a border of zeros."""
    padding = tuple(taps // 2 * is_padded for taps in kernel)
    sizes = list(zip(extents, kernel, stride, padding, strict=True))
    made = tuple((extent + 2 * pad - taps) // step + 1 for extent, taps, step, pad in sizes)
    assume(min(extent + 2 * pad - taps for extent, taps, _, pad in sizes) >= 0)
    channels = 3 * LANES[precision]
    random = np.random.default_rng(seed)
    source = random.normal(0, 2, (batch, *extents, channels)).astype(NUMBERS[precision])
    table = random.normal(1, 1, (2, batch, channels)).astype(np.float32)
    target = np.full((batch, *(e + 1 for e in made), channels), np.nan, NUMBERS[precision])
    step = Pointwise(
        whole("source", source, precision),
        whole("target", target, precision),
        Region(0, batch),
        made,
        (-1, 0, 0),
        "zero",
        table=AffineTable("table", batch, channels),
        activation=Activation(0.3),
        sampling=Pool(mode, kernel, stride, padding, counts_padding),
    )
    run(step, {"source": source, "table": table, "target": target}, precision)
    factor, summand = table[:, :, None, None, None].astype(np.float64)
    value = torch.nn.functional.leaky_relu(first(source * factor + summand), 0.3)
    wanted = in_windows(value, kernel, stride, padding, mode, counts_padding)
    wanted = torch.nn.functional.pad(wanted, (0, 1, 0, 1, 1, 0))
    assert_close(target, wanted, precision)


@pytest.mark.parametrize("mode", ["largest", "mean"])
@pytest.mark.parametrize("huge", [np.inf, -np.inf, np.nan])
def test_pooling_hides_no_overflow(mode: Any, huge: float) -> None:
    """The overflow may be anywhere in a window."""
    source = np.ones((1, 2, 2, 3, 4), np.float32)
    for place in range(12):
        spoilt = source.copy()
        spoilt.reshape(12, 4)[place, 2] = huge
        target = np.full((1, 1, 1, 1, 4), 7, np.float32)
        step = Pointwise(
            whole("source", spoilt, "fp32"),
            whole("target", target, "fp32"),
            Region(0, 1),
            (1, 1, 1),
            (0, 0, 0),
            "zero",
            sampling=Pool(mode, (2, 2, 3), (1, 1, 1)),
        )
        run(step, {"source": spoilt, "target": target}, "fp32")
        assert np.isfinite(target.ravel()).tolist() == [True, True, False, True]


@st.composite
def grouped(draw: st.DrawFn) -> ConvShape:
    """A convolution of groups of whole vectors or of one channel, or its gradient."""
    precision = draw(precisions)
    lanes, groups = LANES[precision], draw(st.integers(2, 5))
    source, target = lanes * draw(st.integers(1, 2)), lanes * draw(st.integers(1, 2))
    if draw(st.booleans()):
        groups, source, target = draw(st.integers(1, 4)) * lanes, 1, 1
    kernel, stride, dilation = draw(triples), draw(triples), draw(triples)
    image, batch = draw(extents_of), draw(st.integers(1, 2))
    padding = tuple(
        draw(st.integers(0, taps * step // 2)) for taps, step in zip(kernel, dilation, strict=True)
    )
    sizes = zip(image, kernel, stride, dilation, padding, strict=True)
    left = [extent + 2 * pad - (taps - 1) * far - 1 for extent, taps, _, far, pad in sizes]
    assume(min(left) >= 0)
    result = tuple(rest // step + 1 for rest, step in zip(left, stride, strict=True))
    is_gradient = draw(st.booleans())
    ends = (result, image) if is_gradient else (image, result)
    return ConvShape(
        batch,
        ends[0],
        groups * source,
        ends[1],
        groups * target,
        kernel,
        stride,
        padding,
        padding,
        precision,
        is_gradient,
        dilation=dilation,
        groups=groups,
    )


def operands(shape: ConvShape, seed: int) -> tuple[FloatArray, FloatArray]:
    random, number = np.random.default_rng(seed), NUMBERS[shape.precision]
    source = random.normal(0, 1, (shape.batch, *shape.source_extents, shape.source_channels))
    ends = shape.target_channels, shape.source_channels // shape.groups
    if shape.transposed:
        ends = shape.source_channels, shape.target_channels // shape.groups
    weight = random.normal(0, 0.2, (ends[0], *shape.kernel, ends[1]))
    return source.astype(number), weight.astype(number)


def in_torch(shape: ConvShape, source: FloatArray, weight: FloatArray) -> Any:
    import torch

    settings = {
        "stride": shape.stride,
        "padding": shape.before,
        "dilation": shape.dilation,
        "groups": shape.groups,
    }
    if not shape.transposed:
        return torch.nn.functional.conv3d(first(source), first(weight), **settings)
    # What PyTorch has no output padding for, as no tap reaches it.
    beyond = [width for step in shape.stride[::-1] for width in (0, step)]
    made = torch.nn.functional.conv_transpose3d(
        first(source), first(weight), **{**settings, "padding": 0}
    )
    made = torch.nn.functional.pad(made, beyond)
    d, h, w = (slice(p, p + e) for p, e in zip(shape.before, shape.target_extents, strict=True))
    return made[:, :, d, h, w]


@settings(deadline=None, max_examples=examples(60, 8))
@given(grouped(), st.integers(0, 10**6))
def test_convolutions_of_groups(shape: ConvShape, seed: int) -> None:
    """Convolutions by their kernel, and by the plain one that all others are compared with."""
    source, weight = operands(shape, seed)
    wanted = in_torch(shape, source, weight)
    made = np.full(
        (shape.batch, *shape.target_extents, shape.target_channels), np.nan, source.dtype
    )
    step = Conv.of_shape(
        "layer",
        shape,
        whole("source", source, shape.precision).tensor,
        whole("target", made, shape.precision).tensor,
        "weight",
    )
    memory = {"source": source, "weight": weight, "target": made}
    run(step, memory, shape.precision)
    assert_close(made, wanted, shape.precision)
    made[...] = np.nan
    addresses = source.ctypes.data, weight.ctypes.data, made.ctypes.data
    plain = checks.plain_convolution(shape, addresses)
    kernels.run(plain, shape.precision)
    assert_close(made, wanted, shape.precision)


@settings(deadline=None, max_examples=examples(20, 8))
@given(grouped(), st.integers(0, 10**6))
def test_exact_sums_of_groups(shape: ConvShape, seed: int) -> None:
    source, weight = operands(shape, seed)
    voxels = sampled_voxels(shape)[::9].copy()
    sums = kernels.expected_sums(shape, source, weight, voxels)
    for found, numbers in zip(sums, ((source, weight), (abs(source), abs(weight))), strict=True):
        wanted = np.moveaxis(in_torch(shape, *numbers).numpy(), 1, -1)
        wanted = wanted.reshape(-1, shape.target_channels)[voxels]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
