"""Own kernels on the matrix units are compared with plain steps, and left out where they are wrong.

The kernels run lane by lane on the CPU.
"""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_gpus import GPUS, H200
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.numpy_kernels import NumPyKernels
from support.gpu_on_cpu.streams import Stream
from support.kernel_samples import (
    SAMPLES,
    by_planes,
    cells,
    doubling,
    first_layer,
    last_layer,
    last_transposed,
    narrow,
    view,
    with_statistics,
)

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.kernels.plain import (
    STORED_WEIGHT,
    of_one_patch,
    plain_counterpart,
)
from cuda_cyclegan.engine.compiler.kernels.table import KERNELS
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.program.fitting import SPLIT_KERNEL, ProgramRequest
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    Conv,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Tensor, TensorView
from cuda_cyclegan.engine.cuda.tuning.cache import TuningCache
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.options import SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import bench, layer_check
    from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner, WrongKernelError, refused_kernels

ROOM = 1 << 30
EXTENTS, KERNEL = (2, 3, 20), (3, 1, 3)
TARGET = Tensor("target", 2, EXTENTS, 32, "fp16")
STEP = first_layer("convolve_patches", KERNEL, TARGET, EXTENTS, (-1, 0, -1), "replicate")
STRIDED = first_layer(
    "convolve_strided_patches",
    (4, 4, 4),
    replace(TARGET, extents=(1, 2, 10)),
    EXTENTS,
    (-1, -1, -1),
    "replicate",
    stride=(2, 2, 2),
)
LARGE = 2, 18, 20
MEASURED = with_statistics(
    first_layer(
        "convolve_patches", KERNEL, replace(TARGET, extents=LARGE), LARGE, (-1, 0, -1), "replicate"
    )
)
WIDE = (7, 7, 7)
OF_GROUPS = first_layer("convolve_patches_wgmma", WIDE, TARGET, EXTENTS, (-3, 0, -3), "replicate")
LOWERED = Lowered(Layout(EXTENTS, 2, "fp16", matrix_kernels=True), H200, (STEP,), {}, {})


compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "DeviceBuffer", used_buffer)
    monkeypatch.setattr(layer_check, "RUNS", 2)


@pytest.fixture
def cache() -> TuningCache:
    return TuningCache(None, {"card": "host"})


class LaneKernels(Kernels):
    """Kernels that keep the launches of outer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first_layers = []

    def run(self, launch) -> None:
        if launch.source.endswith(("_patches", "_wgmma", "_to_cells", "_strided")):
            self.first_layers.append(launch)
        super().run(launch)


def tuner_with(kernels, cache, settings):
    return Tuner(OpenGpu(None, Stream(), None, kernels), cache, ROOM, settings)


def check_layers(lowered, kernels, cache):
    tuner_with(kernels, cache, SearchSettings()).check_layers(lowered)


def wrong_in(trial, step, kernels, grid=None):
    """Return what a trial of another step finds wrong with a step."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layer_check, "plain_counterpart", lambda _: trial)
        return layer_check.wrong_step(step, kernels, Stream(), ROOM, grid) or ""


@compiled
@pytest.mark.parametrize(
    ("step", "grid"),
    [
        (STEP, None),
        (STRIDED, None),
        (STEP, BlockGrid(EXTENTS, EXTENTS)),
        (OF_GROUPS, None),
        (OF_GROUPS, BlockGrid(EXTENTS, EXTENTS)),
    ],
    ids=["dense", "strided", "in blocks", "warp groups", "warp groups in blocks"],
)
def test_the_first_layer_is_right_and_found_wrong_when_it_is(step, grid, cache):
    kernels = LaneKernels()
    layout = replace(LOWERED.layout, in_blocks=grid is not None)
    check_layers(replace(LOWERED, layout=layout, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    assert {launch.in_blocks for launch in kernels.first_layers} == {grid is not None}
    right = plain_counterpart(of_one_patch(step) if grid else step)
    moved = replace(step.geometry, before=(1, 0, 0))
    for geometry in (moved, replace(step.geometry, mode="zero")):
        trial = replace(right, conv=replace(right.conv, geometry=geometry))
        assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels, grid)


CHECKED = {
    f"{name} {number}": conv
    for name, samples in SAMPLES.items()
    for number, conv in enumerate(samples)
    if KERNELS[name].needs_tensor_cores
}


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
def test_a_sample_of_each_kernel_is_right_and_found_wrong_when_it_is(name):
    kernels, conv = LaneKernels(), CHECKED[name]
    assert layer_check.wrong_step(conv, kernels, Stream(), ROOM) is None
    right = plain_counterpart(conv)
    laid = right.weights[STORED_WEIGHT]
    negative = {**right.weights, STORED_WEIGHT: lambda kernel: laid(-kernel)}
    trial = replace(right, weights=negative)
    assert "wrong results in 2 of 2 runs" in wrong_in(trial, conv, kernels)


@compiled
def test_layers_to_a_joined_map_are_checked_by_their_own_channels(cache):
    """The text of a view, which is in the key of a check, lacks its channels."""
    extents = (3, 5, 18)
    joined = Tensor("joined", 1, extents, 40, "fp16")
    few, more = (
        narrow((view("source", extents, 16),), TensorView(joined, extents, lanes=lanes))
        for lanes in ((8, 16), (8, 24))
    )
    equal = replace(more, output=replace(more.output, lanes=(24, 40)))
    check_layers(replace(LOWERED, steps=(few, more, equal)), LaneKernels(), cache)
    assert list(cache.kernels.values()) == ["", ""]


def _left_out(partials, _run):
    """Set what one block has measured to zero."""
    partials[0, 1] = 0


def _counted_twice(partials, _run):
    partials[1, 0] = partials[1, 1]


def _of_one_channel(partials, _run):
    partials[0, 0, 5, 1] += 0.01


def _now_and_then(partials, run):
    if run == 2:
        partials[1, 0, 31, 2] *= 1.001


class SpoiltPartials(LaneKernels):
    """A kernel that is wrong in what it measures alone."""

    def __init__(self, fault) -> None:
        super().__init__()
        self._fault = fault

    def run(self, launch) -> None:
        super().run(launch)
        if launch.source in ("convolve_patches", "conv_transpose_to_cells"):
            blocks = launch.grid[0] * launch.grid[1]
            assert blocks > 1
            partials = array_at(launch.arguments.partials, np.float32, 2, blocks, 32, 3)
            self._fault(partials, len(self.first_layers))


@compiled
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_left_out, "wrong statistics"),
        (_counted_twice, "wrong statistics"),
        (_of_one_channel, "wrong statistics"),
        (_now_and_then, "different statistics in 1 of 2 runs"),
    ],
)
def test_a_first_layer_that_measures_wrongly_is_found(fault, words, cache):
    check = partial(check_layers, replace(LOWERED, steps=(MEASURED,)), cache=cache)
    with pytest.raises(WrongKernelError, match=words):
        check(kernels=SpoiltPartials(fault))
    assert not cache.kernels
    check(kernels=LaneKernels())
    assert list(cache.kernels.values()) == [""]


def _halving(table):
    """Two patches of two blocks each, of odd extents."""
    extents, made = (3, 5, 37), (2, 3, 19)
    source = Tensor("source", 2, extents, 32, "fp16")
    read = ActivatedView(source.whole, table, Activation(0.0) if table else IDENTITY)
    return with_statistics(by_planes((read,), Tensor("target", 2, made, 64, "fp16"), stride=2))


def _by_planes(extents):
    """Two patches, from what a norm gives and from cells."""
    norm = Tensor("norm", 2, extents, 32, "fp16")
    halves = tuple(extent // 2 for extent in extents)
    parts = (
        ActivatedView(cells("cells", halves, 32, 2)),
        ActivatedView(norm.whole, AffineTable("norm.table", 2, 32), Activation(0.01)),
    )
    return with_statistics(by_planes(parts, Tensor("target", 2, extents, 32, "fp16")))


@compiled
@pytest.mark.parametrize("extents", [(2, 6, 10), pytest.param((4, 6, 34), marks=pytest.mark.slow)])
def test_a_convolution_by_planes_is_right_and_found_wrong_when_it_is(extents, cache):
    kernels, step = LaneKernels(), _by_planes(extents)
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = plain_counterpart(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda k: laid(k.swapaxes(2, 3))}
    first, second = right.conv.views
    bent = replace(right.conv, inputs=(first, replace(second, activation=IDENTITY)))
    for trial in (replace(right, weights=turned), replace(right, conv=bent)):
        assert "2 of 2 runs" in wrong_in(trial, step, kernels)


@compiled
@pytest.mark.parametrize(
    "table", [None, pytest.param(AffineTable("first.table", 2, 32), marks=pytest.mark.slow)]
)
def test_a_halving_layer_is_right_and_found_wrong_when_it_is(table, cache):
    kernels, step = LaneKernels(), _halving(table)
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = plain_counterpart(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda k: laid(k.swapaxes(3, 4))}
    wrong_trials = [replace(right, weights=turned)]
    if table:
        other = replace(step.views[0], activation=Activation(0.5))
        wrong_trials.append(replace(right, conv=replace(right.conv, inputs=(other,))))
    for trial in wrong_trials:
        assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels)


def _doubling(outputs, beyond=0):
    """Two patches of two blocks each. beyond: voxels that the source has behind the cells'."""
    counts = 2, 1, 17
    seen = tuple(extent + beyond for extent in counts)
    source = view("source", seen, 64, 2)
    return with_statistics(doubling(source, cells("target", counts, outputs, 2)))


@compiled
@pytest.mark.parametrize("in_blocks", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("outputs", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_a_doubling_layer_is_right_and_found_wrong_when_it_is(in_blocks, outputs, cache):
    kernels, step = LaneKernels(), _doubling(outputs, int(in_blocks))
    layout = replace(LOWERED.layout, patch=(4, 2, 34), in_blocks=in_blocks)
    check_layers(replace(LOWERED, layout=layout, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    assert {launch.in_blocks for launch in kernels.first_layers} == {in_blocks}
    step = of_one_patch(step) if in_blocks else step
    grid = BlockGrid(layout.patch, layout.patch) if in_blocks else None
    right = plain_counterpart(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda kernel: laid(kernel.swapaxes(3, 4))}
    trial = replace(right, weights=turned)
    assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels, grid)


@compiled
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_left_out, "wrong statistics"),
        (_now_and_then, "different statistics in 1 of 2 runs"),
    ],
)
def test_a_doubling_layer_that_measures_wrongly_is_found(fault, words, cache):
    check = partial(check_layers, replace(LOWERED, steps=(_doubling(32),)), cache=cache)
    with pytest.raises(WrongKernelError, match=words):
        check(kernels=SpoiltPartials(fault))
    assert not cache.kernels


class BlindKernels(LaneKernels):
    """A kernel that measures what blocks hold past the volume, too."""

    def run(self, launch) -> None:
        if launch.in_blocks and launch.source in ("convolve_patches", "conv_transpose_to_cells"):
            blocks = launch.arguments.blocks
            blocks.volume = type(blocks.volume)(*blocks.extents)
        super().run(launch)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("outputs", [32, 64])
def test_a_layer_that_measures_what_lies_past_the_volume_is_found(outputs):
    step, grid = _doubling(outputs, 1), BlockGrid((4, 2, 34), (4, 2, 34))
    check = partial(layer_check.wrong_step, step, stream=Stream(), budget=ROOM, grid=grid)
    assert check(LaneKernels()) is None
    assert "wrong statistics" in check(BlindKernels())


@compiled
def test_the_transposed_last_layer_is_right_and_found_wrong_when_it_is(cache):
    kernels = LaneKernels()
    extents = (1, 2, 3)
    step = last_transposed((view("skip", extents, 32), view("up", extents, 32)))
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = plain_counterpart(step)
    swapped = replace(right.conv, inputs=right.conv.views[::-1])
    trial = replace(right, conv=swapped)
    assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels)


@compiled
@pytest.mark.parametrize(
    ("channels", "shuffled", "width", "mode"),
    [
        (32, True, 10, "reflect"),
        pytest.param(64, False, 10, "reflect", marks=pytest.mark.slow),
        pytest.param(64, False, 70, "reflect", marks=pytest.mark.slow),
        pytest.param(64, True, 10, "zero", marks=pytest.mark.slow),
    ],
)
def test_the_last_layer_of_warp_groups_is_right_and_found_wrong_when_it_is(
    channels, shuffled, width, mode, cache
):
    extents = 6, 4, width
    source = Tensor("source", 1, extents, channels, "fp16").whole
    source = cells("source", (3, 2, width // 2), channels) if shuffled else source
    part = ActivatedView(source, AffineTable("table", 1, channels), Activation(0.2))
    step = last_layer("convolve_to_patches_wgmma", WIDE, part, extents, mode=mode)
    kernels = LaneKernels()
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = plain_counterpart(step)
    geometry = replace(right.conv.geometry, mode="replicate")
    wrong = replace(right, conv=replace(right.conv, geometry=geometry))
    assert "wrong results in 2 of 2 runs" in wrong_in(wrong, step, kernels)


def test_each_layer_is_checked_once_and_with_one_patch_where_memory_is_short(cache, monkeypatch):
    asked = []

    def judged(step, *_):
        asked.append(step.target.batch)
        if step.target.batch > 1:
            raise DeviceMemoryError("full")

    monkeypatch.setattr(layer_check, "wrong_step", judged)
    for _ in range(2):
        check_layers(LOWERED, NumPyKernels(), cache)
    assert asked == [2, 1]


def test_equal_layers_are_checked_once(cache, monkeypatch):
    """Names make no difference; which tensors are the same, and their extents, do."""
    asked: list[str] = []
    monkeypatch.setattr(layer_check, "wrong_step", lambda step, *_: asked.append(step.layer))
    channels, target = 32, Tensor("target", 2, LARGE, 32, "fp16")

    def layer(name: str, *sources: str, target: Tensor = target) -> Conv:
        parts = tuple(view(source, target.extents, channels, 2) for source in sources)
        conv = by_planes(parts, replace(target, name=f"{name}.target"))
        return replace(conv, layer=name, weight=f"{name}.weight")

    small = replace(target, extents=EXTENTS)
    layers = (
        layer("first", "one"),
        layer("equal", "other"),
        layer("joined", "one", "other"),
        layer("doubled", "one", "one"),
        layer("joined again", "a", "b"),
        layer("small", "one", target=small),
    )
    check_layers(replace(LOWERED, steps=layers), NumPyKernels(), cache)
    assert asked == ["first", "joined", "doubled", "small"]


def test_a_wrong_kernel_is_left_out_until_it_is_compiled_anew(cache, monkeypatch):
    kernels = NumPyKernels()
    monkeypatch.setattr(kernels, "image_key", lambda source: f"first-{source}", raising=False)
    monkeypatch.setattr(layer_check, "wrong_step", lambda *_: "wrong results")
    reported: list[str] = []
    settings = SearchSettings(progress=lambda what, _share: reported.append(what))
    tuner = tuner_with(kernels, cache, settings)
    attempts: list[frozenset[str]] = []

    def attempt(without: frozenset[str]) -> None:
        attempts.append(without)
        if not without:
            tuner.check_layers(LOWERED)

    tuner.with_right_kernels(attempt)
    assert attempts == [frozenset(), {"convolve_patches"}]
    assert reported == [
        "Custom kernel convolve_patches gave wrong results in fp16 and is not used on this GPU."
    ]
    monkeypatch.setattr(kernels, "image_key", lambda source: f"second-{source}", raising=False)
    assert refused_kernels(cache, kernels) == frozenset()


@pytest.mark.parametrize(
    ("without", "precision", "matrix", "wgmma", "split"),
    [
        (set(), "fp16", True, True, False),
        ({"convolve_patches"}, "fp16", True, True, False),
        ({"convolve_strided_patches"}, "fp16", True, True, False),
        ({"convolve_to_patches"}, "bf16", True, True, False),
        ({"convolve_patches_wgmma"}, "fp16", True, True, False),
        ({"convolve_to_patches_wgmma"}, "bf16", True, True, False),
        ({"conv_transpose_to_cells"}, "fp16", True, True, False),
        ({SPLIT_KERNEL}, "fp16", True, True, False),
        (set(), "fp32", False, False, True),
        ({SPLIT_KERNEL}, "tf32", False, False, False),
    ],
)
def test_a_program_does_without_what_is_wrong(without, precision, matrix, wgmma, split):
    wanted = ProgramRequest((32, 32, 32), 1, precision, H200, frozenset(without))
    layouts = list(wanted.layouts())
    chosen = {(one.matrix_kernels, one.wgmma, one.split_fp16) for one in layouts}
    assert chosen == {(matrix, wgmma, split)}
    left_out = [KERNELS[kernel] for kernel in without - {SPLIT_KERNEL}]
    assert not any(spec.is_allowed(layout) for layout in layouts for spec in left_out)


def test_only_gpus_that_have_wgmma_get_kernels_for_warp_groups():
    for gpu in GPUS.values():
        wanted = ProgramRequest((32, 32, 32), 1, "fp16", gpu)
        has_wgmma = gpu.capability == (9, 0)
        assert {one.wgmma for one in wanted.layouts()} == {has_wgmma}
