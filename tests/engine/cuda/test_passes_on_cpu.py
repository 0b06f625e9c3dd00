"""Passes over voxels, and the kernels around them, run lane by lane on the CPU."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.cells import as_cells
from support.described_gpus import H200
from support.gpu_on_cpu import kernels
from support.step_interpreter import activated, filtered, sampled
from support.tiers import examples

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches, scratch_bytes
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    Activation,
    AddPatches,
    ChannelGroups,
    ChannelNorm,
    Conv,
    ConvShape,
    Curve,
    Interleave,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
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
from cuda_cyclegan.engine.network.layers import (
    Constant,
    Downsample,
    FloatArray,
    PadMode,
    Pool,
    Triple,
    Upsample,
    negative,
    triple,
)
from cuda_cyclegan.engine.options import Precision

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
SLOPE = Activation(0.2)
ELU, SIGMOID, TANH = Activation(0.7, "elu"), Activation(curve="sigmoid"), Activation(curve="tanh")
ONES = (1, 1, 1)
NUMBERS: dict[Precision, Any] = {"fp16": np.float16, "fp32": np.float32}
Float64Array: TypeAlias = npt.NDArray[np.float64]
erfc = np.vectorize(math.erfc, [np.float64])


def run(
    step: Step,
    memory: dict[str, FloatArray],
    precision: Precision,
    gpu: GpuProperties = H200,
) -> None:
    """Carry out a step whose tensors are arrays by their names."""
    scratch = np.full(max(1, scratch_bytes(step, gpu) // 4), np.nan, np.float32)
    for launch in launches(step, lambda name: memory[name].ctypes.data, gpu, scratch.ctypes.data):
        kernels.run(launch, precision)


def whole(name: str, array: FloatArray, precision: str) -> TensorView:
    batch, *extents, channels = array.shape
    tensor = Tensor(name, batch, tuple(extents), channels, precision)  # type: ignore[arg-type]
    return TensorView(tensor, tensor.extents)


def padded(values: FloatArray, width: int | Sequence[tuple[int, int]], mode: PadMode) -> FloatArray:
    sides = [(0, 0), *[(width, width)] * 3, (0, 0)] if isinstance(width, int) else width
    if isinstance(mode, Constant):
        return np.pad(values, sides, constant_values=mode.value)
    return np.pad(values, sides, {"replicate": "edge", "zero": "constant"}.get(mode, mode))  # type: ignore[arg-type]


def assert_close(target: FloatArray, wanted: FloatArray, precision: str) -> None:
    limit = 1e-3 if precision == "fp16" else 1e-6
    assert np.abs(target - wanted).max() < limit * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("activation", "after", "mode", "precision"),
    [
        (ELU, IDENTITY, Constant(-1.5), "fp32"),
        (SIGMOID, IDENTITY, "reflect", "fp32"),
        (TANH, IDENTITY, "replicate", "fp16"),
        (Activation(0.0), ELU, Constant(2.0), "fp16"),
        (IDENTITY, Activation(0.1), "reflect", "fp32"),
    ],
)
def test_a_pass_with_a_residual(
    activation: Activation, after: Activation, mode: PadMode, precision: str
) -> None:
    random = np.random.default_rng(0)
    number = np.float16 if precision == "fp16" else np.float32
    shape, width = (2, 3, 4, 5, 16), 1
    source, beside = (random.normal(0, 3, shape).astype(number) for _ in range(2))
    table = random.normal(1, 1, (2, 2, 16)).astype(np.float32)
    target = np.full((2, 5, 6, 7, 16), np.nan, number)
    memory = {"source": source, "beside": beside, "table": table, "target": target}
    step = Pointwise(
        whole("source", source, precision),
        whole("target", target, precision),
        Region(0, 2),
        shape[1:4],
        (-width,) * 3,
        mode,
        table=AffineTable("table", 2, 16),
        activation=activation,
        residual=whole("beside", beside, precision),
        after=after,
    )
    run(step, memory, precision)
    factor, summand = table[:, :, None, None, None]
    wanted = activated(source * factor + summand, activation) + beside
    wanted = padded(activated(wanted.astype(np.float32), after), width, mode)
    np.testing.assert_allclose(
        target, wanted, atol=2e-2 if precision == "fp16" else 2e-6, rtol=2e-3
    )


NORMS: list[tuple[int, int, Triple, Precision]] = [
    (32, 32, (2, 3, 70), "fp16"),
    (29, 32, (3, 5, 9), "fp16"),
    (5, 8, (9, 2, 33), "fp16"),
    (24, 24, (5, 3, 7), "fp32"),
    (96, 96, (2, 2, 11), "fp16"),
    (250, 256, (1, 3, 5), "fp16"),
    (264, 264, (1, 2, 5), "fp16"),
    (1024, 1024, (1, 2, 3), "fp16"),
    (1021, 1024, (1, 2, 3), "fp32"),
    (132, 132, (2, 1, 3), "fp32"),
    (2, 4, (40, 30, 3), "fp32"),
]
"""Channels that count and that are stored, extents, precision."""


@pytest.mark.parametrize(("channels", "stored", "extents", "precision"), NORMS)
def test_a_norm_of_voxels(
    channels: int, stored: int, extents: Triple, precision: Precision
) -> None:
    """Means are far from zero, after a table; unused channels hold numbers that do not count."""
    random = np.random.default_rng(0)
    shape = (2, *extents, stored)
    source = random.normal(20, 2, shape).astype(NUMBERS[precision])
    source[0, 0, 0, 0] = 100.0
    source[1, 0, 0, 0] *= 500 if precision == "fp16" else 1e6
    table = random.normal(1, 0.2, (2, 2, stored)).astype(np.float32)
    used = np.arange(stored) < channels
    scale, shift = (random.normal(1, 1, stored).astype(np.float32) * used for _ in range(2))
    target = np.full(shape, np.nan, source.dtype)
    step = Pointwise(
        whole("source", source, precision),
        whole("target", target, precision),
        Region(0, 2),
        extents,
        (0, 0, 0),
        "zero",
        table=AffineTable("table", 2, stored),
        norm=ChannelNorm(channels, 1e-2, "scale", "shift"),
    )
    memory = {"source": source, "table": table, "target": target, "scale": scale, "shift": shift}
    run(step, memory, precision)
    factor, summand = table.astype(np.float64)[:, :, None, None, None]
    values = source.astype(np.float64) * factor + summand
    values = values.astype(np.float32).astype(np.float64)[..., :channels]  # as the kernel has them
    wanted = np.zeros(shape)
    deviation = np.sqrt(values.var(-1, keepdims=True) + 1e-2)
    wanted[..., :channels] = (values - values.mean(-1, keepdims=True)) / deviation
    wanted = wanted * scale + shift
    limit = 2e-3 if precision == "fp16" else 1e-4
    np.testing.assert_allclose(target, wanted, atol=limit, rtol=limit)
    assert (target[..., channels:] == 0).all()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(("channels", "stored"), [(20, 24), (270, 272)])
def test_a_norm_of_voxels_with_all_that_a_pass_may_have(
    channels: int, stored: int, precision: Precision
) -> None:
    random = np.random.default_rng(0)
    shape, width = (2, 3, 4, 5, stored), 1
    source, beside = (random.normal(0, 3, shape).astype(NUMBERS[precision]) for _ in range(2))
    target = np.full((2, 5, 6, 7, stored), np.nan, source.dtype)
    used = (np.arange(stored) < channels).astype(np.float32)
    memory = {"source": source, "beside": beside, "target": target, "scale": used}
    memory["shift"] = 0 * used
    step = Pointwise(
        whole("source", source, precision),
        whole("target", target, precision),
        Region(0, 2),
        shape[1:4],
        (-width,) * 3,
        Constant(-1.5),
        activation=Activation(curve="gelu"),
        residual=whole("beside", beside, precision),
        after=ELU,
        combination="subtract",
        norm=ChannelNorm(channels, 1e-5, "scale", "shift"),
    )
    run(step, memory, precision)
    own = source[..., :channels].astype(np.float64)
    wanted = np.zeros(shape)
    wanted[..., :channels] = own - own.mean(-1, keepdims=True)
    wanted /= np.sqrt(own.var(-1, keepdims=True) + 1e-5)
    wanted = activated(wanted, Activation(curve="gelu")) - beside
    wanted = padded(activated(wanted, ELU), width, Constant(-1.5))
    assert_close(target, wanted, precision)


def test_a_norm_of_a_voxel_hides_no_overflow() -> None:
    source = np.ones((1, 1, 1, 6, 32), np.float32)
    source[0, 0, 0, 1, 3], source[0, 0, 0, 2, 5], source[0, 0, 0, 3, 7] = np.inf, np.nan, 1e25
    target, used = np.zeros_like(source), np.ones(32, np.float32)
    view = whole("source", source, "fp32")
    step = Pointwise(
        view,
        whole("target", target, "fp32"),
        Region(0, 1),
        view.extents,
        (0, 0, 0),
        "zero",
        norm=ChannelNorm(32, 1e-5, "used", "used"),
    )
    run(step, {"source": source, "target": target, "used": used}, "fp32")
    assert (np.isfinite(target).all(-1) == [True, False, False, False, True, True]).all()


SHARES: dict[str, tuple[Activation, Callable[[Float64Array], Float64Array]]] = {
    "GELU": (Activation(curve="gelu"), lambda x: erfc(-x * 0.5**0.5) / 2),
    "GELU by tanh": (
        Activation(1.595769, "swish", cube=0.0713548),
        lambda x: 1 / (1 + np.exp(-(1.595769 * x + 0.0713548 * x**3))),
    ),
    "SiLU": (Activation(curve="swish"), lambda x: 1 / (1 + np.exp(-x))),
    "quick GELU": (Activation(1.702, "swish"), lambda x: 1 / (1 + np.exp(-1.702 * x))),
    "hard swish": (Activation(curve="hard_swish"), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "Mish": (Activation(curve="mish"), lambda x: np.tanh(np.logaddexp(0, x))),
}


def applied(activation: Activation, source: Any, *, after_sum: bool) -> Any:
    """Return what a pass makes of numbers [n * 16]; after_sum: of their sum with zeros."""
    precision: Precision = "fp16" if source.dtype == np.float16 else "fp32"
    source = source.reshape(1, 1, 1, -1, 16)
    zeros, target = np.zeros_like(source), np.zeros_like(source)
    view = whole("source", source, precision)
    step = Pointwise(
        view,
        whole("target", target, precision),
        Region(0, 1),
        view.extents,
        (0, 0, 0),
        "zero",
        activation=IDENTITY if after_sum else activation,
        residual=whole("zeros", zeros, precision) if after_sum else None,
        after=activation if after_sum else IDENTITY,
    )
    run(step, {"source": source, "zeros": zeros, "target": target}, precision)
    return target.ravel()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", SHARES)
def test_a_number_of_any_size_times_a_share(name: str, precision: Precision) -> None:
    activation, share = SHARES[name]
    largest = 6e4 if precision == "fp16" else 3e38
    above = np.concatenate([np.geomspace(1e-7, largest, 160), np.linspace(0, 12, 160)])
    numbers = np.concatenate([above, -above]).astype(NUMBERS[precision])
    exact = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = exact * share(exact)
    rounding = np.spacing(np.abs(wanted).astype(NUMBERS[precision])).astype(np.float64)
    for after_sum in (False, True):
        made = applied(activation, numbers, after_sum=after_sum)
        assert (np.abs(made - wanted) <= rounding + 2e-7 * np.abs(exact)).all()
        assert (np.abs(made[exact < -30]) < 1e-9 * -exact[exact < -30]).all()


@pytest.mark.parametrize("curve", get_args(Curve))
def test_an_overflow_stays_one(curve: Curve) -> None:
    lost = np.array([np.inf, -np.inf, np.nan] * 16, np.float16)
    activation = Activation(0.0 if curve == "linear" else 0.5, curve, low=0.5, high=2.0)
    for after_sum in (False, True):
        made = applied(activation, lost, after_sum=after_sum)
        assert not np.isfinite(made).any()


@pytest.mark.parametrize("after", [IDENTITY, Activation(0.0), ELU])
def test_a_normalisation_at_once_with_an_activated_sum(after: Activation) -> None:
    random = np.random.default_rng(0)
    shape = (1, 4, 5, 6, 16)
    source, beside = (random.normal(2, 3, shape).astype(np.float32) for _ in range(2))
    target = np.full((1, 6, 7, 8, 16), np.nan, np.float32)
    counters = np.zeros(16, np.uint32)
    memory = {"source": source, "beside": beside, "target": target, COUNTERS: counters}
    view, table = whole("source", source, "fp32"), AffineTable("table", 1, 16)
    into, mode = whole("target", target, "fp32"), Constant(-3.0)
    residual = whole("beside", beside, "fp32")
    place = (into, Region(0, 1), shape[1:4], (-1, -1, -1), mode)
    pass_ = Pointwise(view, *place, table=table, activation=ELU, residual=residual, after=after)
    run(
        Normalise(Statistics(view, table, 0.1, None, None), pass_),
        memory,
        "fp32",
    )
    values = source.astype(np.float64)
    centred = values - values.mean((1, 2, 3), keepdims=True)
    normal = centred / np.sqrt(values.var((1, 2, 3), keepdims=True) + 0.1)
    wanted = padded(activated(activated(normal, ELU) + beside, after), 1, mode)
    assert np.abs(target - wanted).max() < 1e-5


@pytest.mark.parametrize(
    ("mode", "before", "behind"),
    [
        ("reflect", (2, 1, 3), (1, 0, 2)),
        ("reflect", (-1, 2, 0), (1, -1, 0)),
        ("replicate", (0, 3, 1), (2, 0, 4)),
        ("replicate", (-2, 0, 5), (1, 1, -1)),
        (Constant(1.5), (1, 0, 2), (0, 3, 1)),
        (Constant(0.0), (0, -1, 1), (2, -1, -2)),
        ("reflect", (0, 0, 0), (0, 0, 0)),
        ("reflect", (1, 0, 0), (-1, 0, 0)),
    ],
)
@pytest.mark.parametrize("held", [0, 1, 3, 99])
def test_a_normalisation_at_once_into_another_frame(
    mode: PadMode, before: Triple, behind: Triple, held: int
) -> None:
    """Wider on some sides and narrower on others; held: vectors for which there is room."""
    random = np.random.default_rng(0)
    shape = (2, 4, 5, 30, 16)
    source, beside = (random.normal(2, 3, shape).astype(np.float32) for _ in range(2))
    wide = tuple(sum(sizes) for sizes in zip(before, shape[1:4], behind, strict=True))
    target = np.full((2, *wide, 16), np.nan, np.float32)
    counters = np.zeros(32, np.uint32)
    memory = {"source": source, "beside": beside, "target": target, COUNTERS: counters}
    view, table = whole("source", source, "fp32"), AffineTable("table", 2, 16)
    step = Normalise(
        Statistics(view, table, 0.1, None, None),
        Pointwise(
            view,
            whole("target", target, "fp32"),
            Region(0, 2),
            shape[1:4],
            tuple(-width for width in before),
            mode,
            table=table,
            activation=Activation(0.0),
            residual=whole("beside", beside, "fp32"),
        ),
    )
    gpu = replace(H200, shared_per_block=(8 << 10) * (held + 9), multiprocessors=4)
    run(step, memory, "fp32", gpu)
    values = source.astype(np.float64)
    centred = values - values.mean((1, 2, 3), keepdims=True)
    normal = centred / np.sqrt(values.var((1, 2, 3), keepdims=True) + 0.1)
    wanted = padded(np.maximum(normal, 0) + beside, 5, mode)
    [launch] = launches(step, lambda _: 256, gpu)
    is_held = held > 0 and before == behind == (0, 0, 0)
    assert launch.kernel == f"normalise<RESIDUAL, {'true' if is_held else 'false'}>"
    inner = tuple(slice(5 - b, 5 - b + extent) for b, extent in zip(before, wide, strict=True))
    assert np.abs(target - wanted[(slice(None), *inner)]).max() < 1e-5
    assert not counters.any()


@pytest.mark.parametrize(
    ("layer", "precision"),
    [
        (Downsample(3, (2, 2, 2), "reflect"), "fp32"),
        (Downsample(4, (1, 2, 2), "replicate"), "fp16"),
        (Downsample(2, (2, 3, 1), "zero"), "fp32"),
        (Downsample(7, (2, 2, 2), Constant(1.5)), "fp32"),
    ],
)
def test_the_binomial_filter(layer: Downsample, precision: str) -> None:
    random = np.random.default_rng(0)
    number = np.float16 if precision == "fp16" else np.float32
    source = random.normal(0, 2, (2, 6, 8, 7, 8)).astype(number)
    table = random.normal(1, 1, (2, 2, 8)).astype(np.float32)
    factor, summand = table[:, :, None, None, None]
    wanted = filtered(activated((source * factor + summand).astype(np.float32), ELU), layer)
    extents = wanted.shape[1:4]
    wanted = padded(wanted, 1, "reflect")
    target = np.full(wanted.shape, np.nan, number)
    step = Pointwise(
        whole("source", source, precision),
        whole("target", target, precision),
        Region(0, 2),
        extents,
        (-1, -1, -1),
        "reflect",
        table=AffineTable("table", 2, 8),
        activation=ELU,
        sampling=layer,
    )
    run(step, {"source": source, "table": table, "target": target}, precision)
    np.testing.assert_allclose(
        target, wanted, atol=1e-2 if precision == "fp16" else 1e-5, rtol=2e-3
    )


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize(
    ("count", "each", "biased", "middle"),
    [(2, 4, True, 0.0), (1, 5, False, 300.0), (6, 1, True, 9.0)],
)
def test_the_statistics_of_groups(
    count: int, each: int, biased: bool, middle: float, is_shuffled: bool
) -> None:
    """Statistics of channels whose means differ, some of them far from zero, with channels of
    filling.
    """
    random = np.random.default_rng(0)
    channels, extents, cells = 8, (6, 9, 40), 8 if is_shuffled else 1
    used = count * each
    means = random.normal(middle, 2, channels)
    source = random.normal(0, 1, (2, *extents, cells, channels)) + means
    source[..., used:] = 0
    source = source.astype(np.float32)
    memory = {
        "source": source,
        "scale": random.uniform(0.5, 2, channels).astype(np.float32),
        "shift": random.normal(0, 1, channels).astype(np.float32),
        "bias": random.normal(0, 5, channels).astype(np.float32),
        "table": np.full((2, 2, channels), np.nan, np.float32),
        COUNTERS: np.zeros(2 * channels, np.uint32),
    }
    tensor = Tensor("source", 2, extents, cells * channels, "fp32")
    double = (12, 18, 80) if is_shuffled else extents
    groups = ChannelGroups(count, each, "bias" if biased else None)
    table = AffineTable("table", 2, channels)
    view = TensorView(tensor, double, shuffled=is_shuffled)
    run(Statistics(view, table, 1e-3, "scale", "shift", groups), memory, "fp32")
    bias = memory["bias"][:used] if biased else 0.0
    values = source[..., :used].astype(np.float64) + bias
    groups_of = values.reshape(2, -1, count, each)
    mean = groups_of.mean((1, 3)).repeat(each, axis=1)
    factor = memory["scale"][:used] / np.sqrt(groups_of.var((1, 3)).repeat(each, axis=1) + 1e-3)
    summand = memory["shift"][:used] + (bias - mean) * factor
    np.testing.assert_allclose(memory["table"][0, :, :used], factor, rtol=2e-5)
    np.testing.assert_allclose(memory["table"][1, :, :used], summand, rtol=2e-5, atol=1e-4)
    assert not memory["table"][:, :, used:].any()


@pytest.mark.parametrize(
    ("channels", "extents", "shuffled", "origin", "behind", "precision", "cache"),
    [
        (24, (16, 12, 12), False, (0, 0, 0), (0, 0, 0), "fp16", H200.l2_bytes),
        (8, (9, 10, 33), False, (1, 0, 2), (0, 1, 1), "fp32", H200.l2_bytes),
        (80, (4, 4, 4), False, (0, 0, 0), (0, 0, 0), "fp16", H200.l2_bytes),
        (4, (12, 16, 20), True, (0, 0, 0), (0, 0, 0), "fp32", H200.l2_bytes),
        (40, (16, 12, 14), True, (1, 1, 1), (1, 1, 1), "fp16", H200.l2_bytes),
        (16, (10, 12, 16), True, (2, 1, 3), (0, 1, 3), "fp32", H200.l2_bytes),
        (128, (7, 6, 9), False, (1, 0, 2), (0, 1, 1), "fp16", 1),
        (64, (10, 12, 6), True, (2, 1, 3), (0, 1, 3), "fp16", 1),
        (32, (3, 5, 21), False, (0, 0, 0), (0, 0, 0), "fp32", 1),
    ],
)
def test_statistics(
    channels: int,
    extents: Triple,
    shuffled: bool,
    origin: Triple,
    behind: Triple,
    precision: Precision,
    cache: int,
) -> None:
    """Statistics of part of a tensor that holds NaN around it, with means far from zero, twice in a
    row.

    cache: bytes of the GPU's; what is larger is read in whole lines of memory.
    """
    random = np.random.default_rng(0)
    number = np.float16 if precision == "fp16" else np.float32
    means, spread = random.normal(0, 40, channels), random.uniform(0.5, 3, channels)
    values = random.normal(means, spread, (2, *extents, channels)).astype(number)
    sides = [(0, 0), *zip(origin, behind, strict=True), (0, 0)]
    source = np.pad(values, sides, constant_values=np.nan)
    view = TensorView(whole("source", source, precision).tensor, extents, origin)
    if shuffled:
        source, cells = as_cells(source)
        view = TensorView(
            Tensor("source", 2, cells, 8 * channels, precision), extents, origin, shuffled=True
        )
    memory = {
        "source": source,
        "scale": random.uniform(0.5, 2, channels).astype(np.float32),
        "shift": random.normal(0, 1, channels).astype(np.float32),
        "table": np.full((2, 2, channels), np.nan, np.float32),
        COUNTERS: np.zeros(2 * channels, np.uint32),
    }
    step = Statistics(view, AffineTable("table", 2, channels), 1e-3, "scale", "shift")
    wide = values.astype(np.float64)
    factor = memory["scale"] / np.sqrt(wide.var((1, 2, 3)) + 1e-3)
    summand = memory["shift"] - wide.mean((1, 2, 3)) * factor
    for _ in range(2):
        memory["table"][...] = np.nan
        run(step, memory, precision, replace(H200, l2_bytes=cache))
        np.testing.assert_allclose(memory["table"][0], factor, rtol=2e-5)
        np.testing.assert_allclose(memory["table"][1], summand, rtol=2e-5, atol=1e-4)
        assert not memory[COUNTERS].any()


@pytest.mark.parametrize(
    ("mode", "sampling", "precision"),
    [
        ("reflect", None, "fp16"),
        ("zero", None, "fp32"),
        ("zero", Upsample("nearest", (2, 2, 2)), "fp16"),
    ],
)
def test_a_pass_from_cells_into_cells(
    mode: PadMode, sampling: Upsample | None, precision: Precision
) -> None:
    """The target is the second of two parts, within a border of different widths."""
    random = np.random.default_rng(0)
    number = np.float16 if precision == "fp16" else np.float32
    held = random.normal(0, 3, (2, 6, 8, 10, 16)).astype(number)
    values = held[:, 1:5, 1:7, 1:9].astype(np.float64)
    source, cells = as_cells(held)
    target = np.full((2, 4, 5, 6, 8 * 24), np.nan, number)
    if sampling:
        values = values.repeat(2, 1).repeat(2, 2).repeat(2, 3)
        target = np.full((2, 6, 8, 10, 8 * 24), np.nan, number)
    into = whole("target", target, precision)
    voxels = triple(2 * extent for extent in into.extents)
    step = Pointwise(
        TensorView(Tensor("source", 2, cells, 128, precision), (4, 6, 8), (1, 1, 1), shuffled=True),
        replace(into, extents=voxels, shuffled=True, lanes=(8, 24)),
        Region(0, 2),
        values.shape[1:4],
        (-1, -3, -2),
        mode,
        activation=Activation(0.2),
        sampling=sampling,
    )
    run(step, {"source": source, "target": target}, precision)
    sides = [(0, 0), (1, 3), (3, 1), (2, 2), (0, 0)]
    border = {"reflect": "reflect", "zero": "constant"}[str(mode)]
    wanted, _ = as_cells(np.pad(np.where(values < 0, 0.2 * values, values), sides, mode=border))
    n, d, h, w, _ = target.shape
    written = target.reshape(n, d, h, w, 8, 24)
    assert np.isnan(written[..., :8]).all()
    np.testing.assert_allclose(
        written[..., 8:], wanted.reshape(n, d, h, w, 8, 16), rtol=2e-3, atol=1e-6
    )


@st.composite
def samplings(draw: st.DrawFn) -> Upsample | Pool:
    if draw(st.booleans()):
        return Upsample("trilinear", draw(_triples(1, 4)), draw(st.booleans()))
    kernel = draw(_triples(1, 3))
    padding = triple(draw(st.integers(0, extent // 2)) for extent in kernel)
    mode = "largest" if draw(st.booleans()) else "mean"
    return Pool(mode, kernel, draw(_triples(1, 3)), padding, draw(st.booleans()))


def _triples(low: int, high: int) -> st.SearchStrategy[Triple]:
    return st.tuples(*[st.integers(low, high)] * 3)


@settings(max_examples=examples(300, 30))
@given(
    samplings(),
    _triples(3, 6),
    _triples(0, 2),
    st.sampled_from(["zero", "reflect", "replicate", Constant(-2.0)]),
    st.booleans(),
)
def test_a_sampled_and_padded_value(
    sampling: Upsample | Pool, extents: Triple, before: Triple, mode: PadMode, is_added: bool
) -> None:
    random = np.random.default_rng(0)
    source, beside = (random.normal(0, 3, (2, *extents, 8)).astype(np.float32) for _ in "ab")
    table = random.normal(1, 1, (2, 2, 8)).astype(np.float32)
    is_added = is_added and isinstance(sampling, Pool)
    values = activated(
        source * table[0][:, None, None, None] + table[1][:, None, None, None], SLOPE
    )
    if is_added:
        values = activated(values + beside, Activation(0.0))
    values = sampled(values, sampling)
    assume(all(extent > 2 for extent in values.shape[1:4]))
    after = before[::-1]
    sides = [(0, 0), *zip(before, after, strict=True), (0, 0)]
    wanted = padded(values, sides, mode)
    memory = {
        "source": source,
        "beside": beside,
        "table": table,
        "target": np.full((*wanted.shape[:4], 24), np.nan, np.float32),
    }
    step = Pointwise(
        whole("source", source, "fp32"),
        replace(whole("target", memory["target"], "fp32"), lanes=(8, 16)),
        Region(0, 2),
        triple(values.shape[1:4]),
        negative(before),
        mode,
        AffineTable("table", 2, 8),
        SLOPE,
        whole("beside", beside, "fp32") if is_added else None,
        sampling,
        Activation(0.0) if is_added else IDENTITY,
    )
    run(step, memory, "fp32")
    assert_close(memory["target"][..., 8:16], wanted, "fp32")
    assert np.isnan(memory["target"][..., [7, 16]]).all()


def test_packing_behind_a_constant_border() -> None:
    patches = np.random.default_rng(0).normal(0, 1, (1, 2, 3, 4, 5)).astype(np.float32)
    target = np.full((1, 5, 6, 7, 4), np.nan, np.float32)
    tensor = whole("target", target, "fp32").tensor
    step = Pack(tensor, Region(0, 1), 2, (3, 4, 5), (-1, -1, -1), Constant(-2.5))
    run(step, {PATCHES: patches, "target": target}, "fp32")
    wanted = padded(np.moveaxis(patches, 1, -1), 1, Constant(-2.5))
    assert np.array_equal(target[..., :2], wanted)
    assert not target[..., 2:].any()


def test_the_patches_on_top_of_what_was_made_of_them() -> None:
    random = np.random.default_rng(0)
    patches, translated = (random.normal(0, 1, (2, 3, 5, 7, 9)).astype(np.float32) for _ in "ab")
    wanted = patches + translated
    step = AddPatches(3, Region(0, 2), (5, 7, 9))
    run(step, {PATCHES: patches, TRANSLATED: translated}, "fp32")
    assert np.array_equal(translated, wanted)


def test_a_dilated_convolution() -> None:
    random = np.random.default_rng(0)
    image = random.normal(0, 1, (1, 6, 7, 8, 8)).astype(np.float32)
    weight = random.normal(0, 1, (12, 3, 2, 3, 8)).astype(np.float32)
    dilation, border = (2, 3, 1), (2, 1, 0)
    extents = (6 + 4 - 4, 7 + 2 - 3, 8 - 2)
    target = np.full((1, *extents, 12), np.nan, np.float32)
    shape = ConvShape(
        1, (6, 7, 8), 8, extents, 12, (3, 2, 3), ONES, border, border, "fp32", dilation=dilation
    )
    step = Conv.of_shape(
        "layer",
        shape,
        whole("image", image, "fp32").tensor,
        whole("target", target, "fp32").tensor,
        "weight",
    )
    run(step, {"image": image, "weight": weight, "target": target}, "fp32")
    held = np.pad(image, [(0, 0), *[(width, width) for width in border], (0, 0)])
    wanted = np.zeros_like(target)
    for tap in product(range(3), range(2), range(3)):
        places = zip(tap, dilation, extents, strict=True)
        window = tuple(slice(t * step, t * step + extent) for t, step, extent in places)
        wanted += held[(slice(None), *window)] @ weight[(slice(None), *tap)].T
    np.testing.assert_allclose(target, wanted, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("channels", [1, 3, 12, 16])
def test_phases_move_to_voxels(channels: int, beyond: int, precision: Precision) -> None:
    """The channels of the target next to them stay as they are.

    beyond: vectors after the channels that become 0, as wide maps are stored in pairs of them.
    """
    number = np.float16 if precision == "fp16" else np.float32
    stride, origin, cells = (3, 1, 4), (2, 0, 3), (2, 3, 2)
    extents, lanes = (4, 3, 5), 16 // np.dtype(number).itemsize
    phases = np.random.default_rng(0).normal(0, 1, (2, *cells, *stride, channels)).astype(number)
    flat = phases.reshape(2, *cells, -1)
    source = np.pad(flat, [(0, 0)] * 4 + [(0, -flat.shape[-1] % lanes)], constant_values=np.nan)
    filled = (-(-channels // lanes) + beyond) * lanes
    target = np.full((2, *extents, filled + 2 * lanes), np.nan, number)
    step = Interleave(
        whole("source", source, precision).tensor,
        replace(whole("target", target, precision), lanes=(lanes, lanes + filled)),
        stride,
        origin,
        channels,
    )
    run(step, {"source": source, "target": target}, precision)
    for voxel in product(*(range(extent) for extent in extents)):
        cell, phase = zip(
            *(divmod(v + o, s) for v, o, s in zip(voxel, origin, stride, strict=True)), strict=True
        )
        written = target[:, *voxel, lanes:-lanes]
        np.testing.assert_array_equal(written[:, :channels], phases[:, *cell, *phase])
        assert not written[:, channels:].any()
    assert np.isnan(target[..., :lanes]).all()
    assert np.isnan(target[..., -lanes:]).all()
