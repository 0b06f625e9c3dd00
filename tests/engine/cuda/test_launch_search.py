"""Own kernels are launched as is fastest on the card, and never so that a bit changes.

Kernels run lane by lane on the CPU; the clock is a table.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_cards import H200
from support.gpu_networks import random_network
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.compiler import weight_layout
from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.compiler.launches.variants import launch_variants
from cuda_cyclegan.engine.compiler.lowered import Layout, Lowered
from cuda_cyclegan.engine.compiler.lowering.forms import ComparedStep
from cuda_cyclegan.engine.compiler.lowering.lowering import lower
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    Convolve,
    ConvTransposeToPatches,
    Pointwise,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Region, Tensor, TensorView
from cuda_cyclegan.engine.cuda.device_plan import form_key
from cuda_cyclegan.engine.cuda.plan_cache import OWN, Candidate, Findings, TuningCache, key_of
from cuda_cyclegan.engine.cuda.trial_memory import TrialMemory
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import Downsample, Upsample

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

SMALL = replace(H200, multiprocessors=1)
"""A card on which rows and runs are long, as they are for large tensors on others."""

MEMORY = TrialMemory(1 << 30)
EXTENTS = (4, 6, 10)
SOURCE = TensorView(Tensor("source", 2, EXTENTS, 16, "fp16"), EXTENTS)
WEIGHT = np.random.default_rng(1).normal(0, 0.1, (32, 1, 4, 4, 4)).astype(np.float32)
SPLIT_WEIGHT = np.random.default_rng(1).normal(0, 1, (64, 32, 1, 3, 3)).astype(np.float32)
WIDE = TensorView(Tensor("source", 1, (2, 9, 3), 32, "fp16"), (2, 9, 3))


def a_pass(sampling=None, extents=EXTENTS, **others) -> Pointwise:
    target = tuple(extent + 2 for extent in extents)
    return Pointwise(
        SOURCE,
        Tensor("target", 2, target, 16, "fp16"),
        Region(0, 2),
        extents,
        (-1, -1, -1),
        "reflect",
        table=AffineTable("table", 2, 16),
        activation=Activation(0.2),
        sampling=sampling,
        **others,
    )


RESIDUAL = TensorView(replace(SOURCE.tensor, name="residual"), EXTENTS)
DOUBLED = tuple(2 * extent for extent in EXTENTS)
PASS = a_pass()
SPLIT = Convolution(
    1, (2, 5, 9), 32, (2, 5, 9), 64, (1, 3, 3), (1, 1, 1), (0, 1, 1), (0, 1, 1), "fp32",
    split_fp16=True,
)  # fmt: skip
STEPS = {
    "a pass": PASS,
    "with a residual": a_pass(residual=RESIDUAL),
    "trilinear": a_pass(Upsample("trilinear", (2, 2, 2)), DOUBLED, residual=RESIDUAL),
    "with its corners": a_pass(Upsample("trilinear", (2, 2, 2), align_corners=True), DOUBLED),
    "nearest": a_pass(Upsample("nearest", (2, 2, 2)), DOUBLED),
    "binomial": a_pass(Downsample(3, (1, 1, 2), "zero"), (4, 6, 5)),
    "the last layer": ConvTransposeToPatches(
        "last", (ActivatedView(WIDE, None, IDENTITY),), "weight", 1, (4, 18, 6), None, IDENTITY
    ),
}
STEPS["split fp16"] = Convolve(
    "conv",
    SPLIT,
    Tensor("source", 1, (2, 5, 9), 32, "fp32", 1.0),
    Tensor("target", 1, (2, 5, 9), 64, "fp32"),
    Region(0, 1),
    "weight",
)


def program(step) -> Lowered:
    weights, precision = {}, "fp16"
    if isinstance(step, ConvTransposeToPatches):
        weights["weight"] = weight_layout.cell_operands(WEIGHT, range(32), 32)
    if isinstance(step, Convolve):
        precision, laid = "fp32", weight_layout.forward(SPLIT_WEIGHT, range(32), 32, 64)
        weights["weight"] = laid.split_fp16(1.0)
    return Lowered(Layout((4, 18, 6), 1, precision), SMALL, (step,), {}, weights)


class LaneKernels(Kernels):
    """All kernels, compiled for the CPU; spoils what a variant makes, if told which."""

    card = SMALL
    image = "image"

    def __init__(self, spoilt=None, precision="fp16") -> None:
        super().__init__(precision)
        self._spoilt = spoilt
        self.launched = 0

    def image_key(self, source) -> str:
        return f"{self.image} of {source}"

    def run(self, launch) -> None:
        super().run(launch)
        if launch.source == "check":
            return
        self.launched += 1
        if self._spoilt and (launch.arguments.rows, launch.block[1]) == self._spoilt:
            array_at(launch.arguments.target, np.uint16, 1)[0] ^= 1


@pytest.fixture
def searched(monkeypatch, tmp_path):
    """Starts a search on the same card; times: microseconds by name of a variant, 9 for others."""
    with cudnn_where_there_is_none():
        from cuda_cyclegan.engine.cuda import launch_search, trial_memory
        from cuda_cyclegan.engine.cuda.plan_search import SearchSettings

        monkeypatch.setattr(trial_memory, "DeviceBuffer", used_buffer)
        monkeypatch.setattr(launch_search, "RUNS", 2)
        told: list[str] = []

        def hear(what, share):
            if share is None:
                told.append(what)

        def start(step, times, effort="full", spoilt=None, image="image", memory=MEMORY):
            variants = launch_variants(step, SMALL)
            names = iter((*variants.steps, variants.default))

            def run_time(_stream, queue, _best) -> float:
                queue()
                return times.get(next(names), 9.0)

            monkeypatch.setattr(launch_search, "run_time", run_time)
            kernels = LaneKernels(spoilt)
            kernels.image = image
            cache = TuningCache(tmp_path, {"card": "host"})
            search = launch_search.LaunchSearch(kernels, Stream(), cache, memory)
            lowered = search.tuned(program(step), {}, SearchSettings(effort, progress=hear))
            return lowered.steps[0], kernels.launched

        yield start, told


def test_the_fastest_way_is_kept_and_found_again_without_a_try(searched):
    start, told = searched
    variants = launch_variants(PASS, SMALL)
    quick = list(variants.steps)[2]
    found, launched = start(PASS, {quick: 1.0})
    assert found == variants.steps[quick] != PASS
    assert launched == len(variants.steps) + 4
    assert start(PASS, {}) == (found, 0)
    assert start(PASS, {}, effort="off") == (found, 0)
    assert told == []


def test_the_usual_way_stays_where_it_is_fastest_and_where_nothing_is_tuned(searched):
    start, _ = searched
    assert start(PASS, {}, effort="off") == (PASS, 0)
    found, launched = start(PASS, {launch_variants(PASS, SMALL).default: 1.0})
    assert found == PASS
    assert launched == len(launch_variants(PASS, SMALL).steps) + 1
    assert start(PASS, {}) == (PASS, 0)


def test_a_way_that_is_hardly_faster_is_not_taken(searched):
    start, _ = searched
    hardly, clearly = list(launch_variants(PASS, SMALL).steps)[1:3]
    assert start(PASS, {hardly: 8.8})[0] == PASS
    assert start(a_pass(extents=(4, 6, 8)), {hardly: 8.6, clearly: 8.7})[0] != PASS


def test_a_way_that_changes_a_bit_is_struck_out_and_told(searched):
    start, told = searched
    variants = launch_variants(PASS, SMALL)
    wrong, right = list(variants.steps)[1:3]
    tile = variants.steps[wrong].tile
    found, _ = start(PASS, {wrong: 1.0, right: 2.0}, spoilt=(tile.rows, tile.columns))
    assert found == variants.steps[right]
    [sentence] = told
    assert f"wrong results in 2 of 2 runs with {wrong}" in sentence
    assert start(PASS, {}) == (found, 0)


def test_a_kernel_that_is_compiled_anew_is_tried_anew(searched):
    start, _ = searched
    first, second = list(launch_variants(PASS, SMALL).steps)[1:3]
    start(PASS, {first: 1.0})
    assert start(PASS, {}, effort="off", image="another") == (PASS, 0)
    found, launched = start(PASS, {second: 1.0}, image="another")
    assert found == launch_variants(PASS, SMALL).steps[second]
    assert launched


def test_without_memory_to_try_in_nothing_is_kept(searched):
    start, _ = searched
    assert start(PASS, {}, memory=TrialMemory(100)) == (PASS, 0)
    assert start(PASS, {})[1] > 0


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("full", [False, True])
def test_forms_of_layers_are_compared_with_the_passes_around_them(monkeypatch, full):
    """full: whether there is no memory to compare them in."""
    from cuda_cyclegan.engine.cuda import launch_search
    from cuda_cyclegan.engine.cuda.plan_search import SearchSettings

    network = random_network(build(ResNetSpec(1, 1, width=32, blocks=0, downsamplings=1)), 0)
    layout = Layout((4, 4, 6), 1, "fp16", matrix_kernels=True, wgmma=True)
    lowered, cache = lower(network, layout, SMALL), TuningCache(None, {"card": "host"})
    halving, doubling = (step for step in lowered.steps if isinstance(step, ComparedStep))

    class Plans:
        def algorithms(self, shapes, workspace, search) -> None:
            for shape in shapes:
                plan = Candidate("plan", 0, 2.0 if shape.transposed else sum(shape.stride) / 3)
                cache.put(key_of(shape), Findings(search.effort, workspace, (plan,)))

    def run_time(_stream, queue, _best) -> float:
        queue()
        [step] = queue.args
        return TOOK[work_of(step).text]

    memory = TrialMemory(100) if full else MEMORY
    monkeypatch.setattr(launch_search, "run_time", run_time)
    search = launch_search.LaunchSearch(LaneKernels(), Stream(), cache, memory)
    search.compare_forms(network, lowered, Plans(), SearchSettings("off"))
    assert cache.get(form_key(doubling)).candidates == ()
    for _ in range(2):
        search.compare_forms(network, lowered, Plans(), SearchSettings())
        found = [
            {one.plan: one.microseconds for one in cache.get(form_key(step)).candidates}
            for step in (halving, doubling)
        ]
        of_halving = {"plain": 2.0 + 1.5 + 3.0, "own": 4.0 + 3.0}
        of_doubling = {"gradient": 2.0 + 1.5, "subpixel": 1.0 + 2.5 + 4.0, "own": 7.0 + 4.0}
        assert found == ([{}, {}] if full else [of_halving, of_doubling])


TOOK = {
    "normalise, conv 3x3x3, 32 to 64, 2x2x3": 4.0,
    "statistics, normalise, 32, 4x4x6": 1.5,
    "statistics, normalise, 64, 2x2x3": 3.0,
    "transposed conv 3x3x3, 64 to 32, 4x4x6, statistics": 7.0,
    "statistics, 32, 4x4x6": 2.5,
    "normalise, 256, 2x2x3": 4.0,
}
"""Microseconds of steps; a layer's form also decides what is joined with the pass behind it."""


def test_findings_of_a_version_without_own_launches_are_read(searched, tmp_path):
    start, _ = searched
    cache = TuningCache(tmp_path, {"card": "host"})
    found = Findings("full", 0, (Candidate(OWN, 0, 1.0),))
    cache.put("a convolution", found)
    start(PASS, {})
    assert TuningCache(tmp_path, {"card": "host"}).get("a convolution") == found


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("name", STEPS)
def test_all_ways_of_a_step_come_to_the_same_bits(name):
    """Of each the bench finds no wrong run, and it finds what is wrong."""
    from cuda_cyclegan.engine.cuda import launch_search

    step = STEPS[name]
    lowered = program(step)
    kernels = LaneKernels(precision=lowered.layout.precision)
    with launch_search._open_bench(step, lowered, kernels, Stream(), MEMORY) as bench:
        variants = launch_variants(step, SMALL).steps
        assert {
            name: bench.wrong_runs(variant) for name, variant in variants.items()
        } == dict.fromkeys(variants, 0)
        assert bench.wrong_runs(WRONG[type(step)](step)) == 2


WRONG = {
    Pointwise: lambda step: replace(step, activation=Activation(0.3)),
    ConvTransposeToPatches: lambda step: replace(step, activation=Activation(curve="tanh")),
    Convolve: lambda step: replace(step, scale=0.5),
}
