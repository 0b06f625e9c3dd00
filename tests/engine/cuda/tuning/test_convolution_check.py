"""Plans that do not compute their convolution are found, removed and reported; right ones never.

The GPU is in host memory, and what its plans do wrong is planted.
"""

import ctypes
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_gpus import H200
from support.gpu_on_cpu import numpy_kernels
from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.numpy_kernels import NumPyKernels
from support.gpu_on_cpu.plans import Plans
from support.gpu_on_cpu.streams import Graph, Stream

from cuda_cyclegan.engine.compiler.kernels.step_launches import launches
from cuda_cyclegan.engine.compiler.kernels.table import custom_kernel
from cuda_cyclegan.engine.compiler.steps import Conv, ConvShape
from cuda_cyclegan.engine.compiler.tensors import Tensor
from cuda_cyclegan.engine.compiler.weight_layout import encoded
from cuda_cyclegan.engine.cuda.tuning.cache import (
    CUSTOM,
    Candidate,
    TuningCache,
    TuningResult,
    key_of,
)
from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError
from cuda_cyclegan.engine.options import Precision, SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import bench, tactics
    from cuda_cyclegan.engine.cuda.tuning.convolution_check import (
        VERSION,
        ConvolutionCheck,
        gives_the_same_anywhere,
    )
    from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner

ROOM = 1 << 30
ONE = (1, 1, 1)
SHAPE = ConvShape(3, (4, 5, 3), 8, (4, 5, 3), 8, (3, 3, 3), ONE, ONE, ONE, "fp16")
DEPTHWISE = replace(SHAPE, groups=8)
GROUPED = replace(SHAPE, source_channels=32, target_channels=16, groups=2)


def last_channel_dropped(result):
    result[..., -1] = 0


def halo_wrong(result):
    result[:, 0] *= 1.01


def batch_wrong(result):
    result[1:] = result[:1]


def nan_in_padding(result):
    result[0, 0, 0, 0, 0] = np.nan


def one_number_wrong(result):
    result[1, 2, 3, 1, 5] += 1


def written_past_its_end(result):
    behind = np.lib.stride_tricks.as_strided(result.ravel()[-1:], (2,), (result.itemsize,))
    behind[1] = 0


def last_digits_lost(result):
    result[:] = (result.view(np.uint16) & 0xFFF0).view(np.float16)


FAULTS = {
    fault.__name__: fault
    for fault in (
        last_channel_dropped,
        halo_wrong,
        batch_wrong,
        nan_in_padding,
        one_number_wrong,
        written_past_its_end,
        last_digits_lost,
    )
}


@pytest.fixture
def world(monkeypatch):
    """World that opens a search on a GPU that offers plans with faults."""
    monkeypatch.setattr(bench, "DeviceBuffer", used_buffer)
    monkeypatch.setattr(bench, "CapturedGraph", Graph)
    return tactics, monkeypatch


def tuner_with(cache, settings, room=ROOM):
    """A tuner of a GPU in host memory."""
    return Tuner(OpenGpu(None, Stream(), None, NumPyKernels()), cache, room, settings)


class Searches:
    """Searches on one GPU that remember what earlier ones found."""

    def __init__(self, world, faults, folder=None, shape=SHAPE) -> None:
        tactics, patched = world
        self.plans = Plans(shape, faults)
        patched.setattr(tactics, "ConvolutionPlans", lambda *_, **__: self.plans)
        self.folder = folder
        self.reported: list[str] = []

    @property
    def cache(self) -> TuningCache:
        return TuningCache(self.folder, {"card": "host"})

    def start(self, effort: str = "full", shape=SHAPE) -> str:
        def handle(what, share):
            if share is None:
                self.reported.append(what)

        tuner = tuner_with(self.cache, SearchSettings(effort, 60, handle))
        return tuner.convolutions([shape], 0)[shape].name


@pytest.mark.parametrize("effort", ["full", "quick", "off"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_plan_is_struck_out_and_reported_once(world, tmp_path, name, effort):
    searches = Searches(world, {name: FAULTS[name], "right": None}, tmp_path)
    assert searches.start(effort) == "right"
    [sentence] = searches.reported
    assert name in sentence
    assert "not used on this GPU" in sentence
    assert list(searches.cache.get(key_of(SHAPE)).refused) == [name]
    runs = searches.plans.runs
    assert searches.start(effort) == "right"
    assert searches.plans.runs == runs > 100
    assert searches.start("full") == "right"
    assert len(searches.reported) == 1


def neighbours_group_taken(result):
    """Return the result as if each group had read the channels of the one before it."""
    result[:] = np.roll(result, result.shape[-1] // 2, axis=-1)


GROUP_FAULTS = [*FAULTS.values(), neighbours_group_taken]


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_wrong_plan_for_groups_is_struck_out(world, fault):
    searches = Searches(world, {"wrong": fault, "right": None}, shape=GROUPED)
    assert searches.start("off", GROUPED) == "right"
    [sentence] = searches.reported
    assert "in 2 groups" in sentence
    only_wrong = Searches(world, {"wrong": fault}, shape=GROUPED)
    assert only_wrong.start("off", GROUPED) == CUSTOM


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_wrong_depthwise_kernel_is_replaced_by_a_plan(world, tmp_path, fault):
    usual, extents = numpy_kernels.convolve, (*DEPTHWISE.target_extents, DEPTHWISE.target_channels)

    def wrong(arguments):
        usual(arguments)
        fault(array_at(arguments.target, np.float16, arguments.patches, *extents))

    world[1].setattr(numpy_kernels, "convolve", wrong)
    searches = Searches(world, {"wrong": fault, "right": None}, tmp_path, DEPTHWISE)
    assert searches.start("off", DEPTHWISE) == "right"
    assert [sentence.partition(" gave ")[0] for sentence in searches.reported] == [
        "The custom kernel",
        "cuDNN plan wrong",
    ]
    world[1].setattr(Tuner, "_found", None)  # nothing is tried again
    assert searches.start("off", DEPTHWISE) == "right"


def launches_of(shape):
    tensors = plan_tensors(shape)
    step = Conv.of_shape("layer", shape, *tensors, "weight")
    return launches(step, lambda _: 256, H200)


def plan_tensors(shape):
    return (
        Tensor("source", shape.batch, shape.source_extents, shape.source_channels, "fp16"),
        Tensor("target", shape.batch, shape.target_extents, shape.target_channels, "fp16"),
    )


@pytest.mark.parametrize("effort", ["full", "quick", "off"])
def test_a_depthwise_convolution_takes_the_custom_kernel_without_a_plan(world, tmp_path, effort):
    """An earlier version kept the plan that it found faster than its own kernel."""
    searches = Searches(world, {"plan": None}, tmp_path, DEPTHWISE)
    earlier = TuningResult("full", 0, (Candidate("plan", 0, 10.0, VERSION),))
    searches.cache.put(key_of(DEPTHWISE), earlier)
    assert searches.start(effort, DEPTHWISE) == CUSTOM
    [kept] = searches.cache.get(key_of(DEPTHWISE)).candidates
    assert kept.name == CUSTOM
    assert kept.proof
    assert searches.plans.runs == 0
    [launch] = launches_of(DEPTHWISE)
    assert custom_kernel(DEPTHWISE).source == launch.source


def test_other_groups_take_a_plan(world, tmp_path):
    searches = Searches(world, {"plan": None}, tmp_path, GROUPED)
    assert searches.start("full", GROUPED) == "plan"
    assert [one.name for one in searches.cache.get(key_of(GROUPED)).candidates] == ["plan"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_choice_of_an_earlier_version_is_checked_once(world, tmp_path, name):
    searches = Searches(world, {name: FAULTS[name], "right": None}, tmp_path)
    kept = Candidate(name, 0, 10.0), Candidate("right", 0, 20.0)
    searches.cache.put(key_of(SHAPE), TuningResult("full", 0, kept))
    assert searches.start() == "right"
    assert len(searches.reported) == 1
    runs = searches.plans.runs
    assert searches.start() == "right"
    assert (searches.plans.runs, len(searches.reported)) == (runs, 1)


def test_only_what_would_be_used_is_checked(world, tmp_path):
    checked, judge = [], ConvolutionCheck.verdict

    def verdict(check, *run):
        checked.append(run)
        return judge(check, *run)

    world[1].setattr(ConvolutionCheck, "verdict", verdict)
    searches = Searches(world, {f"right {i}": None for i in range(5)}, tmp_path)
    searches.start()
    assert len(checked) == 1
    assert len(searches.cache.get(key_of(SHAPE)).candidates) == 5


def test_plain_kernel_replaces_plans_that_are_all_wrong(world):
    searches = Searches(world, FAULTS)
    assert searches.start() == CUSTOM
    assert len(searches.reported) == len(FAULTS)


def test_a_convolution_that_nothing_does_rightly_is_refused(world, monkeypatch):
    searches = Searches(world, {"wrong": last_channel_dropped})
    monkeypatch.setattr(Tuner, "_measure_custom", lambda *_: None)
    with pytest.raises(CudaError, match="no plan computes"):
        searches.start()


@pytest.mark.parametrize("trials", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_plan_that_is_wrong_in_one_of_20_runs_is_found(world, trials):
    random = np.random.default_rng(20)

    def seldom_wrong(result):
        if random.random() < 1 / 20:
            result[-1, -1, -1, -1, -1] += 1

    found = 0
    for _ in range(trials):
        searches = Searches(world, {"seldom wrong": seldom_wrong, "right": None})
        found += searches.start("off") == "right"
    assert found >= 0.99 * trials


def test_right_plans_are_never_refused(world):
    searches = Searches(world, {f"right {i}": None for i in range(20)})
    for extents in ((1, 1, 1), (2, 3, 4), (5, 1, 2)):
        for stride in (ONE, (2, 1, 2)):
            made = tuple((e - 1) // s + 1 for e, s in zip(extents, stride, strict=True))
            shape = replace(SHAPE, source_extents=extents, target_extents=made, stride=stride)
            searches.plans._shape = shape
            assert searches.start(shape=shape) == "right 0"
    assert searches.reported == []


def test_a_search_that_has_no_space_reports_it_and_is_over(world):
    tactics, patched = world
    patched.setattr(tactics, "ConvolutionPlans", lambda *_, **__: Plans(SHAPE, {"right": None}))
    reported: list[tuple[str, float | None]] = []
    cache = TuningCache(None, {"card": "host"})
    settings = SearchSettings("full", 60, lambda *what: reported.append(what))
    with pytest.raises(DeviceMemoryError, match="larger setting vram-limit"):
        tuner_with(cache, settings, room=100).convolutions([SHAPE], 0)
    assert [share for _, share in reported] == [0.0, 1.0]
    assert cache.get(key_of(SHAPE)).candidates == ()


SOURCE, TARGET = (6, 7, 9), (5, 6, 8)


class HostStream:
    """Immediate copies between arrays of the host."""

    def upload_now(self, target: int, content: bytes | memoryview) -> None:
        ctypes.memmove(target, content, len(content))

    def download(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def wait(self) -> None: ...


STORED = {"fp16": np.float16, "bf16": np.uint16, "tf32": np.float32, "fp32": np.float32}
"""NumPy's type of a stored number by precision; for bf16, which NumPy lacks, that of its bits."""


def numbers_of(stored: Any, precision: Precision) -> Any:
    if precision == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def is_same_anywhere(precision: Precision, by_place: float, seen: list[Any] | None = None) -> bool:
    """Whether sums of 2^3 voxels plus a number for each place are the same anywhere.

    seen: gets the operands.
    """
    shape = ConvShape(
        2, SOURCE, 8, TARGET, 8, (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), precision
    )
    number = STORED[precision]
    source: Any = np.zeros((2, *SOURCE, 8), number)
    target: Any = np.zeros((2, *TARGET, 8), number)
    places = np.arange(prod(TARGET)).reshape(TARGET)[None, ..., None]

    def run() -> None:
        operand = numbers_of(source, precision)
        if seen is not None:
            seen.append(operand.astype("f8"))
        sums = by_place * places
        for z in range(2):
            for y in range(2):
                for x in range(2):
                    sums = sums + operand[:, z : z + 5, y : y + 6, x : x + 8].astype("f8")
        content = encoded(sums.astype(np.float32), precision)
        target[...] = np.frombuffer(content, number).reshape(target.shape)

    return gives_the_same_anywhere(
        shape,
        source.ctypes.data,
        target.ctypes.data,
        run,
        HostStream(),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("precision", STORED)
def test_a_tactic_that_knows_no_place(precision: Precision) -> None:
    assert is_same_anywhere(precision, 0.0)


@pytest.mark.parametrize("precision", STORED)
def test_a_tactic_that_sums_otherwise_elsewhere(precision: Precision) -> None:
    assert not is_same_anywhere(precision, 1e-3)


@pytest.mark.parametrize("precision", STORED)
def test_each_number_of_the_noise_is_one_of_its_precision(precision: Precision) -> None:
    """Bits of fp16 taken for bf16 are numbers from 2^-47 to 2^-8, whose sums hardly round."""
    seen: list[Any] = []
    is_same_anywhere(precision, 0.0, seen)
    assert len(seen) == 2
    for operand in seen:
        assert np.abs(operand).max() <= 1
        assert np.abs(operand).mean() == pytest.approx(0.5, abs=0.02)
