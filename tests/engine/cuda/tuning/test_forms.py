"""Layers are timed by their custom kernel, and by cuDNN with the passes that it needs.

Kernels run lane by lane on the CPU; the clock is a table.
"""

import shutil
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_gpus import H200
from support.gpu_networks import chain, random_network
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import used_buffer
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.forms import compared, forms_of
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Conv
from cuda_cyclegan.engine.cuda.tuning.cache import (
    Candidate,
    TuningCache,
    TuningResult,
    faster_forms,
    form_key,
    key_of,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import (
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Elu,
    Upsample,
)
from cuda_cyclegan.engine.options import SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import bench, tuner

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

FOUR = (4, 4, 4)
SMALL = replace(H200, multiprocessors=1)
"""A GPU on which rows and runs are long, as they are for large tensors on others."""


class LaneKernels(Kernels):
    """All kernels, compiled for the CPU."""

    gpu = SMALL


def timed_by_table(monkeypatch: pytest.MonkeyPatch, cache: TuningCache) -> Any:
    """A GPU whose steps run on the CPU, and take the times of a table."""
    time_of_step = bench._time_of_step

    def convolutions(self: Any, shapes: Any, workspace: int) -> None:
        for shape in shapes:
            plan = Candidate("plan", 0, 2.0 if shape.transposed else sum(shape.stride) / 3)
            effort = self._settings.effort
            cache.put(key_of(shape), TuningResult(effort, workspace, (plan,)))

    def took(step: Any, *given: Any) -> float:
        assert time_of_step(step, *given) == 1.0
        return TOOK[work_of(step).text]

    def run_time(_bench: Any, queue: Any) -> float:
        queue()
        return 1.0

    monkeypatch.setattr(bench, "DeviceBuffer", used_buffer)
    monkeypatch.setattr(bench.TrialBench, "time", run_time)
    monkeypatch.setattr(bench, "_time_of_step", took)
    monkeypatch.setattr(tuner.Tuner, "convolutions", convolutions)
    return OpenGpu(None, Stream(), None, LaneKernels("fp16"))  # type: ignore[arg-type]


@pytest.mark.parametrize("full", [False, True])
def test_forms_of_layers_are_compared_with_the_passes_around_them(
    monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """full: whether there is no memory to compare them in."""
    network = random_network(build(ResNetSpec(1, 1, width=32, blocks=0, downsamplings=1)), 0)
    layout = Layout((4, 4, 6), 1, "fp16", matrix_kernels=True, wgmma=True)
    lowered, cache = lower(network, layout, SMALL), TuningCache(None, {"card": "host"})
    halving, doubling = compared(lowered)

    gpu = timed_by_table(monkeypatch, cache)
    room = 100 if full else 1 << 30
    tuner.Tuner(gpu, cache, room, SearchSettings("off")).compare_forms(network, lowered)
    assert cache.get(form_key(doubling)).candidates == ()
    for _ in range(2):
        tuner.Tuner(gpu, cache, room, SearchSettings()).compare_forms(network, lowered)
        found = [
            {one.name: one.microseconds for one in cache.get(form_key(step)).candidates}
            for step in (halving, doubling)
        ]
        of_halving = {"plain": 2.0 + 1.5 + 3.0, "custom": 4.0 + 3.0}
        of_doubling = {"gradient": 2.0 + 1.5, "subpixel": 1.0 + 2.5 + 4.0, "custom": 7.0 + 4.0}
        assert found == ([{}, {}] if full else [of_halving, of_doubling])


@pytest.mark.parametrize(
    ("outputs", "joined", "form", "times"),
    [
        (1, False, "gradient", {"gradient": 2.0 + 5.0, "custom": 1.0 + 6.0 + 5.0}),
        (1, True, "gradient", {"gradient": 2.0 + 5.0, "custom": 1.0 + 6.0}),
        (256, False, "phases", {"phases": 1.0 + 7.0 + 8.0, "custom": 2.0 + 8.0}),
    ],
)
def test_phases_are_compared_with_the_gradient(
    monkeypatch: pytest.MonkeyPatch,
    outputs: int,
    joined: bool,
    form: str,
    times: dict[str, float],
) -> None:
    """The voxels of phases go to a joined map directly, a gradient is copied there."""
    up = ConvTranspose3d(8, outputs, (6, 6, 6), "u.weight", None, FOUR, (1, 1, 1))
    after = (
        [
            ("wide", Upsample("nearest", FOUR), ("act",)),
            ("join", Concat(), ("up", "wide")),
            ("more", Upsample("trilinear", FOUR), ("act",)),
            ("all", Concat(), ("join", "more")),
            ("scaled", ChannelAffine(17, "s.scale", "s.shift")),
        ]
        if joined
        else [("elu", Elu(1.0))]
    )
    leave = Conv3d(outputs + 16 * joined, 1, (3, 3, 3), "l.weight", padding=(1, 1, 1))
    down = Conv3d(1, 8, FOUR, "d.weight", None, FOUR)
    graph = chain(1, ("down", down), ("act", Elu(1.0)), ("up", up), *after, ("leave", leave))
    network, cache = random_network(graph, 0), TuningCache(None, {"card": "host"})
    lowered = lower(network, Layout((8, 8, 8), 1, "fp16"), SMALL)
    [step] = compared(lowered)
    gpu = timed_by_table(monkeypatch, cache)
    tuner.Tuner(gpu, cache, 1 << 30, SearchSettings()).compare_forms(network, lowered)
    found = {one.name: one.microseconds for one in cache.get(form_key(step)).candidates}
    assert found == times
    is_faster = times[form] < times["custom"]
    forms = faster_forms(lowered, cache)
    assert forms == ({"up": form} if is_faster else {})
    other = lower(network, replace(lowered.layout, forms={"up": form}), SMALL)
    [step] = compared(other)
    assert step.geometry.transposed == (form == "gradient")


@pytest.mark.parametrize(
    ("kernel", "groups", "forms"),
    [(5, 1, ("phases",)), (4, 1, ("phases",)), (1, 1, ()), (5, 2, ())],
)
def test_gradients_are_compared_unless_most_weights_by_phases_are_zero(
    kernel: int, groups: int, forms: tuple[str, ...]
) -> None:
    """Kernel 1 leaves 26 of 27 weights by phases 0."""
    edge, ends = (kernel,) * 3, (max(0, kernel - 3) // 2,) * 3
    extra = (3 + 2 * ends[0] - kernel,) * 3
    up = ConvTranspose3d(64, 64, edge, "u.weight", None, (3,) * 3, ends, extra, groups=groups)
    down = Conv3d(1, 64, (3,) * 3, "d.weight", None, (3,) * 3)
    graph = chain(1, ("down", down), ("up", up), ("leave", Conv3d(64, 1, (1,) * 3, "l.weight")))
    layout = Layout((12, 12, 12), 1, "fp16", forms={"up": "gradient"})
    lowered = lower(random_network(graph, 0), layout, SMALL)
    [step] = [step for step in lowered.steps if isinstance(step, Conv) if step.layer == "up"]
    assert forms_of(lowered, step) == forms


TOOK = {
    "normalise, conv 3x3x3, 32 to 64, 2x2x3": 4.0,
    "statistics, normalise, 32, 4x4x6": 1.5,
    "statistics, normalise, 64, 2x2x3": 3.0,
    "transposed conv 3x3x3, 64 to 32, 4x4x6, statistics": 7.0,
    "statistics, 32, 4x4x6": 2.5,
    "normalise, 256, 2x2x3": 4.0,
    "activate, 8, 8x8x8": 5.0,
    "phases to voxels, 1, 8x8x8": 6.0,
    "phases to voxels, 256, 8x8x8": 7.0,
    "activate, 256, 8x8x8": 8.0,
}
"""Microseconds of steps; a layer's form also decides what is joined with the pass behind it."""
