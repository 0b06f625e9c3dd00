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
from support.described_cards import CARDS, H200
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.numpy_kernels import NumPyKernels
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.layer_trials import STORED_WEIGHT, of_one_patch, trial_of
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.memory.fitting import SPLIT_KERNEL, ProgramRequest
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    ConvTransposeVoxels,
    Statistics,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Tensor, TensorView
from cuda_cyclegan.engine.cuda.tuning.cache import TuningCache
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.options import SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.card import OpenCard
    from cuda_cyclegan.engine.cuda.tuning import bench, layer_check
    from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner, WrongKernelError, refused_kernels

ROOM = 1 << 30
EXTENTS, KERNEL = (2, 3, 20), (3, 1, 3)
STEP = ConvolvePatches(
    "first",
    Tensor("target", 2, EXTENTS, 32, "fp16"),
    1,
    EXTENTS,
    (-1, 0, -1),
    "replicate",
    KERNEL,
    "weight",
)
STRIDED = replace(
    STEP,
    target=replace(STEP.target, extents=(1, 2, 10)),
    kernel=(4, 4, 4),
    origin=(-1,) * 3,
    stride=2,
)
MEASURED = replace(STEP, target=replace(STEP.target, extents=(2, 18, 20)), extents=(2, 18, 20))
MEASURED = replace(
    MEASURED,
    statistics=Statistics(
        TensorView(MEASURED.target, MEASURED.extents),
        AffineTable("table", 2, 32),
        1e-5,
        "scale",
        "shift",
    ),
)
WIDE = (7, 7, 7)
OF_GROUPS = replace(STEP, kernel=WIDE, origin=(-3, 0, -3), wgmma=True)
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
    """Keeps the launches of outer layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first_layers = []

    def run(self, launch) -> None:
        if launch.source.endswith(("_patches", "_wgmma", "_to_cells", "_strided")):
            self.first_layers.append(launch)
        super().run(launch)


def tuner_with(kernels, cache, settings):
    return Tuner(OpenCard(None, Stream(), None, kernels), cache, ROOM, settings)


def check_layers(lowered, kernels, cache):
    tuner_with(kernels, cache, SearchSettings()).check_layers(lowered)


def wrong_in(trial, step, kernels, grid=None):
    """What is found wrong with a step by a trial that is not its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layer_check, "trial_of", lambda _: trial)
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
    right = trial_of(of_one_patch(step) if grid else step)
    for wrong in (replace(step, origin=(-1, 0, 0)), replace(step, mode="zero")):
        trial = replace(right, step=trial_of(wrong).step)
        assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels, grid)


def _left_out(partials, _run):
    """What one block has measured."""
    partials[0, 1] = 0


def _counted_twice(partials, _run):
    partials[1, 0] = partials[1, 1]


def _of_one_channel(partials, _run):
    partials[0, 0, 5, 1] += 0.01


def _now_and_then(partials, run):
    if run == 5:
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
        (_now_and_then, "other statistics in 1 of 2 runs"),
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
    source, target = (
        Tensor("source", 2, extents, 32, "fp16"),
        Tensor("target", 2, made, 64, "fp16"),
    )
    statistics = Statistics(
        TensorView(target, made), AffineTable("table", 2, 64), 1e-5, "scale", "shift"
    )
    read = ActivatedView(TensorView(source, extents), table, Activation(0.0) if table else IDENTITY)
    return ConvolveByPlanes("down", (read,), target, "weight", statistics, stride=2)


def _by_planes(extents):
    """Two patches, from what a norm gives and from cells."""
    norm = Tensor("norm", 2, extents, 32, "fp16")
    halves = tuple(extent // 2 for extent in extents)
    cells = Tensor("cells", 2, halves, 8 * 32, "fp16")
    target = Tensor("target", 2, extents, 32, "fp16")
    statistics = Statistics(
        TensorView(target, extents), AffineTable("table", 2, 32), 1e-5, "scale", "shift"
    )
    parts = (
        ActivatedView(TensorView(cells, extents, shuffled=True), None, IDENTITY),
        ActivatedView(
            TensorView(norm, extents), AffineTable("norm.table", 2, 32), Activation(0.01)
        ),
    )
    return ConvolveByPlanes("conv", parts, target, "weight", statistics)


@compiled
@pytest.mark.parametrize("extents", [(2, 6, 10), pytest.param((4, 6, 34), marks=pytest.mark.slow)])
def test_a_convolution_by_planes_is_right_and_found_wrong_when_it_is(extents, cache):
    kernels, step = LaneKernels(), _by_planes(extents)
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = trial_of(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda k: laid(k.swapaxes(2, 3))}
    first, second = right.step.parts
    bent = replace(right.step, parts=(first, replace(second, activation=IDENTITY)))
    for trial in (replace(right, weights=turned), replace(right, step=bent)):
        assert "2 of 2 runs" in wrong_in(trial, step, kernels)


@compiled
@pytest.mark.parametrize("table", [None, AffineTable("first.table", 2, 32)])
def test_a_halving_layer_is_right_and_found_wrong_when_it_is(table, cache):
    kernels, step = LaneKernels(), _halving(table)
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = trial_of(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda k: laid(k.swapaxes(3, 4))}
    wrong_trials = [replace(right, weights=turned)]
    if table:
        other = replace(step.parts[0], activation=Activation(0.5))
        wrong_trials.append(replace(right, step=replace(right.step, parts=(other,))))
    for trial in wrong_trials:
        assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels)


@compiled
@pytest.mark.parametrize("table", [None, AffineTable("norm.table", 2, 64)])
def test_a_doubling_layer_of_voxels_is_right_and_found_wrong_when_it_is(table, cache):
    cells, kernels = (2, 3, 17), LaneKernels()
    source = TensorView(Tensor("norm", 2, cells, 64, "fp16"), cells)
    read = ActivatedView(source, table, Activation(0.01) if table else IDENTITY)
    view = TensorView(Tensor("target", 2, cells, 8 * 32, "fp16"), (4, 6, 34), shuffled=True)
    step = ConvTransposeVoxels("up", read, view, "weight")
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = trial_of(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda kernel: laid(kernel.swapaxes(3, 4))}
    wrong_trials = [replace(right, weights=turned)]
    if table:
        bent = replace(right.step.source, activation=Activation(0.5))
        wrong_trials.append(replace(right, step=replace(right.step, source=bent)))
    for trial in wrong_trials:
        assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels)


def _doubling(outputs, beyond=0):
    """Two patches of two blocks each. beyond: voxels that the source has behind the cells'."""
    cells, extents = (2, 1, 17), (4, 2, 34)
    view = TensorView(Tensor("target", 2, cells, 8 * outputs, "fp16"), extents, shuffled=True)
    statistics = Statistics(view, AffineTable("table", 2, outputs), 1e-5, "scale", "shift")
    seen = tuple(extent + beyond for extent in cells)
    source = Tensor("source", 2, seen, 64, "fp16")
    return ConvTransposeToCells("up", source, view, "weight", statistics)


@compiled
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("outputs", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_a_doubling_layer_is_right_and_found_wrong_when_it_is(in_blocks, outputs, cache):
    kernels, step = LaneKernels(), _doubling(outputs, int(in_blocks))
    layout = replace(LOWERED.layout, patch=(4, 2, 34), in_blocks=in_blocks)
    check_layers(replace(LOWERED, layout=layout, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    assert {launch.in_blocks for launch in kernels.first_layers} == {in_blocks}
    step = of_one_patch(step) if in_blocks else step
    grid = BlockGrid(layout.patch, layout.patch) if in_blocks else None
    right = trial_of(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda kernel: laid(kernel.swapaxes(3, 4))}
    trial = replace(right, weights=turned)
    assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels, grid)


@compiled
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_left_out, "wrong statistics"),
        (_now_and_then, "other statistics in 1 of 2 runs"),
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
@pytest.mark.parametrize("outputs", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_a_layer_that_measures_what_lies_past_the_volume_is_found(outputs):
    step, grid = _doubling(outputs, 1), BlockGrid((4, 2, 34), (4, 2, 34))
    check = partial(layer_check.wrong_step, step, stream=Stream(), room=ROOM, grid=grid)
    assert check(LaneKernels()) is None
    assert "wrong statistics" in check(BlindKernels())


@compiled
def test_the_transposed_last_layer_is_right_and_found_wrong_when_it_is(cache):
    kernels = LaneKernels()
    extents = (1, 2, 3)
    parts = tuple(
        ActivatedView(TensorView(Tensor(name, 1, extents, 32, "fp16"), extents), None, IDENTITY)
        for name in ("skip", "up")
    )
    step = ConvTransposeToPatches("last", parts, "weight", 1, (2, 4, 6), None, IDENTITY)
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = trial_of(step)
    swapped = replace(right.step, parts=right.step.parts[::-1])
    trial = replace(right, step=swapped)
    assert "wrong results in 2 of 2 runs" in wrong_in(trial, step, kernels)


@compiled
@pytest.mark.parametrize(
    ("channels", "shuffled", "width", "mode"),
    [
        (32, True, 10, "reflect"),
        (64, False, 10, "reflect"),
        pytest.param(64, False, 70, "reflect", marks=pytest.mark.slow),
        pytest.param(64, True, 10, "zero", marks=pytest.mark.slow),
    ],
)
def test_the_last_layer_of_warp_groups_is_right_and_found_wrong_when_it_is(
    channels, shuffled, width, mode, cache
):
    extents = 6, 4, width
    cells = Tensor("source", 1, (3, 2, width // 2), 8 * channels, "fp16")
    tensor = cells if shuffled else Tensor("source", 1, extents, channels, "fp16")
    source = TensorView(tensor, extents, shuffled=shuffled)
    part = ActivatedView(source, AffineTable("table", 1, channels), Activation(0.2))
    step = ConvolveToPatches(
        "last", part, (-3, -3, -3), mode, WIDE, "weight", 1, extents, None, IDENTITY, True
    )
    kernels = LaneKernels()
    check_layers(replace(LOWERED, steps=(step,)), kernels, cache)
    assert list(cache.kernels.values()) == [""]
    right = trial_of(step)
    wrong = replace(right, step=replace(right.step, mode="replicate"))
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


def test_a_wrong_kernel_is_left_out_until_it_is_compiled_anew(cache, monkeypatch):
    kernels = NumPyKernels()
    monkeypatch.setattr(kernels, "image_key", lambda source: f"first-{source}", raising=False)
    monkeypatch.setattr(layer_check, "wrong_step", lambda *_: "wrong results")
    told: list[str] = []
    settings = SearchSettings(progress=lambda what, _share: told.append(what))
    tuner = tuner_with(kernels, cache, settings)
    attempts: list[frozenset[str]] = []

    def attempt(without: frozenset[str]) -> None:
        attempts.append(without)
        if not without:
            tuner.check_layers(LOWERED)

    tuner.with_right_kernels(attempt)
    assert attempts == [frozenset(), {"convolve_patches"}]
    assert told == [
        "The own kernel convolve_patches gave wrong results in fp16, and is not used on this card."
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
        ({"conv_transpose_voxels"}, "fp16", True, True, False),
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
    assert not any(
        layout.takes(kernel) for layout in layouts for kernel in without - {SPLIT_KERNEL}
    )


def test_only_cards_that_have_wgmma_get_kernels_for_warp_groups():
    for card in CARDS.values():
        wanted = ProgramRequest((32, 32, 32), 1, "fp16", card)
        has_wgmma = card.capability == (9, 0)
        assert {one.wgmma for one in wanted.layouts()} == {has_wgmma}
