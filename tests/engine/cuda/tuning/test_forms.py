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
from support.gpu_networks import ODD_GRAPHS, chain, random_network
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import used_buffer
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.forms import compared, forms_of, other_forms, passes_over
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Conv, planned
from cuda_cyclegan.engine.cuda.tuning.cache import (
    Candidate,
    TuningCache,
    TuningResult,
    faster_forms,
    form_key,
    key_of,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    Elu,
    Pool,
    Upsample,
)
from cuda_cyclegan.engine.options import SearchSettings

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning import bench, tuner

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

ONE, TWO, THREE, FOUR = (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)
FLAT = (4, 4, 32)
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


def test_a_dilated_gradient_is_compared_with_phases() -> None:
    """Extents are doubled, but not by the taps of sub-pixels."""
    two = (2, 2, 2)
    up = ConvTranspose3d(64, 64, (3, 3, 3), "u.weight", None, two, two, (1, 1, 1), two)
    down = Conv3d(1, 64, two, "d.weight", None, two)
    graph = chain(1, ("down", down), ("up", up), ("leave", Conv3d(64, 1, (1,) * 3, "l.weight")))
    network, layout = (
        random_network(graph, 0),
        Layout((8, 8, 8), 1, "fp16", forms={"up": "gradient"}),
    )
    lowered = lower(network, layout, SMALL)
    [step] = [one for one in planned(lowered.steps) if one.layer == "up"]
    [form] = other_forms(network, lowered, step)
    assert form.name == "phases"
    assert not form.convolve.geometry.transposed


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


def to_few_channels(outputs: int, groups: int = 1) -> Network:
    """Return a network of layers to few channels, the first of which two read activated."""
    first = Conv3d(1, 32, THREE, "wide.weight", padding=ONE)
    few = Conv3d(32, outputs, THREE, "few.weight", "few.bias", padding=ONE, groups=groups)
    more = Conv3d(outputs, outputs, THREE, "more.weight", padding=ONE)
    last = Conv3d(3 * outputs, 1, THREE, "last.weight", padding=ONE)
    nodes = (
        Node("wide", first, (INPUT,)),
        Node("few", few, ("wide",)),
        Node("bent", Elu(), ("few",)),
        Node("more", more, ("bent",)),
        Node("joined", Concat(), ("bent", "more")),
        Node("pooled", Pool("mean", TWO, TWO), ("bent",)),
        Node("up", Upsample("nearest", TWO), ("pooled",)),
        Node("all", Concat(), ("joined", "up")),
        Node("last", last, ("all",)),
    )
    return random_network(Graph(1, nodes), 0)


@pytest.mark.parametrize(
    ("gpu", "form", "times"),
    [
        (SMALL, "plain", {"custom": 3.0 + 0.5, "plain": 1.0 + 6.5 + 0.5}),
        (H200, "narrow", {"custom": 1.0 + 6.5 + 1.5, "narrow": 3.0 + 1.5}),
    ],
)
def test_layers_to_few_channels_are_timed_by_their_kernel_and_by_cudnn(
    monkeypatch: pytest.MonkeyPatch, gpu: GpuProperties, form: str, times: dict[str, float]
) -> None:
    """The kernel also activates its output, from which a map is pooled in either form.

    It does not fill an H200. There, the last layer is by cuDNN, for which the output is copied.
    """
    network, cache = to_few_channels(8), TuningCache(None, {"card": "host"})
    lowered = lower(network, Layout(FLAT, 1, "fp16", matrix_kernels=True), gpu)
    few, *_ = compared(lowered)
    settings = SearchSettings()
    opened = timed_by_table(monkeypatch, cache)
    tuner.Tuner(opened, cache, 1 << 30, settings).compare_forms(network, lowered)
    found = {one.name: one.microseconds for one in cache.get(form_key(few)).candidates}
    assert found == times
    forms = faster_forms(lowered, cache)
    assert forms.get("few") == (form if times[form] < times["custom"] else None)
    other = lower(network, replace(lowered.layout, forms={"few": form}), gpu)
    [step] = [one for one in other.steps if isinstance(one, Conv) and one.layer == "few"]
    assert (step.kernel is None) == (form == "plain")
    assert few.kernel != step.kernel
    nothing = TuningCache(None, {"card": "host"})
    tuner.Tuner(opened, nothing, 1 << 30, settings).compare_forms(network, other)
    assert not nothing.get(form_key(step)).candidates


@pytest.mark.parametrize(("outputs", "layers"), [(4, []), (8, ["few", "more"])])
def test_layers_that_share_a_vector_or_write_patches_have_one_form(
    outputs: int, layers: list[str]
) -> None:
    layout = Layout(FLAT, 1, "fp16", matrix_kernels=True)
    lowered = lower(to_few_channels(outputs), layout, SMALL)
    kernels = [step.kernel for step in lowered.steps if isinstance(step, Conv)]
    assert kernels[1:] == ["convolve_narrow"] * 3
    assert [step.layer for step in compared(lowered)] == layers


def test_groups_that_share_vectors_are_not_compared_with_the_kernel_for_few_channels() -> None:
    network = to_few_channels(8, groups=4)
    lowered = lower(network, Layout(FLAT, 1, "fp16", matrix_kernels=True), H200)
    few, more, _ = compared(lowered)
    assert not [*other_forms(network, lowered, few)]
    assert [one.convolve.kernel for one in other_forms(network, lowered, more)] == [
        "convolve_narrow"
    ]


@pytest.mark.parametrize(
    ("is_read_again", "of_few", "of_third"),
    [(False, ["normalise"], ["activate", "activate"]), (True, ["normalise"], [])],
)
def test_only_passes_that_a_form_needs_for_its_source_are_added(
    is_read_again: bool, of_few: list[str], of_third: list[str]
) -> None:
    """Both maps that `third` reads are copied for cuDNN, unless `again` needs them copied, too.

    What `few` reads is written in either form, though its output is then copied, with the map
    beside it.
    """
    nodes = [
        Node("first", Conv3d(1, 32, THREE, "first.weight", padding=ONE), (INPUT,)),
        Node("wide", Elu(), ("first",)),
        Node("few", Conv3d(32, 8, THREE, "few.weight", "few.bias", padding=ONE), ("wide",)),
        Node("bent", Elu(), ("few",)),
        Node("other", Conv3d(32, 8, THREE, "other.weight", padding=ONE), ("wide",)),
        Node("joined", Concat(), ("bent", "other")),
        Node("third", Conv3d(16, 8, THREE, "third.weight", padding=ONE), ("joined",)),
        Node("end", Conv3d(8, 1, THREE, "end.weight", padding=ONE), ("third",)),
    ]
    if is_read_again:
        again = Conv3d(16, 32, THREE, "again.weight", padding=ONE)
        nodes[-1:] = [
            Node("again", again, ("joined",)),
            Node("all", Concat(), ("third", "again")),
            Node("end", Conv3d(40, 1, THREE, "end.weight", padding=ONE), ("all",)),
        ]
    network = random_network(Graph(1, tuple(nodes)), 0)
    lowered = lower(network, Layout(FLAT, 1, "fp16", matrix_kernels=True), SMALL)
    few, _, third = compared(lowered)
    for step, expected in ((few, of_few), (third, of_third)):
        [form] = other_forms(network, lowered, step)
        assert [work_of(one).text.split(",")[0] for one in form.passes] == expected


def test_passes_over_other_channels_of_a_joined_map_do_not_count() -> None:
    """The next layer scales them, and they are added; cuDNN's result is copied to the map, too."""
    network = random_network(ODD_GRAPHS["list of joined maps"], 0)
    lowered = lower(network, Layout(FLAT, 1, "fp16", matrix_kernels=True), SMALL)
    [step] = [one for one in compared(lowered) if one.layer == "c0"]
    [form] = other_forms(network, lowered, step)
    own, others = (
        sorted(work_of(one).text for one in passes)
        for passes in (passes_over(lowered, step.output), form.passes)
    )
    assert own == ["activate and add, 8, 4x4x32", "normalise, 8, 4x4x32"]
    assert others == ["activate and add, 8, 4x4x32", "activate, 8, 4x4x32", own[1]]
    assert form_key(step) != form_key(replace(step, output=form.convolve.output))


def test_a_layer_that_reads_packed_patches_has_one_form() -> None:
    """The layer looks like a convolution to few channels if its kernel for patches was wrong."""
    network = random_network(chain(1, ("a", Conv3d(1, 8, THREE, "a.weight", padding=ONE))), 0)
    rejected = Layout(FLAT, 1, "fp16", matrix_kernels=True, without=("convolve_patches",))
    lowered = lower(network, rejected, H200)
    [step] = [one for one in lowered.steps if isinstance(one, Conv)]
    assert step.kernel is None
    assert forms_of(lowered, step) == ()


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
    "conv 3x3x3, 32 to 8, 4x4x32": 3.0,
    "conv 3x3x3, 8 to 8, 4x4x32": 1.0,
    "conv 3x3x3, 24 to 8, 4x4x32": 1.0,
    "normalise, 8, 4x4x32": 6.5,
    "activate, 8, 2x2x16": 0.5,
    "activate, 8, 4x4x32": 1.0,
}
"""Microseconds of steps; a layer's form also decides what is joined with the pass behind it."""
