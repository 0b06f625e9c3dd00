"""Checks of plans and kernels on a GPU: right ones pass, and planted faults are found."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from support.gpu_networks import random_network
from support.kernel_samples import computed_by

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.gpu_properties import WGMMA_CAPABILITY
from cuda_cyclegan.engine.compiler.kernels.plain import STORED_WEIGHT, plain_counterpart
from cuda_cyclegan.engine.compiler.kernels.table import checked
from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.fusion import with_fused_statistics
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import ConvShape, planned
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.options import SearchSettings

ONE, TWO, NONE = (1, 1, 1), (2, 2, 2), (0, 0, 0)
CUBE = (12, 10, 14)
SAME = ConvShape(3, CUBE, 32, CUBE, 40, (3, 3, 3), ONE, ONE, ONE, "fp16")
SHAPES = {
    "same": SAME,
    "strided": replace(SAME, target_extents=(6, 5, 7), stride=TWO),
    "deep": replace(SAME, source_channels=512, kernel=(4, 4, 4), target_extents=(11, 9, 13)),
    "gradient": replace(
        SAME, source_extents=(6, 5, 7), target_extents=CUBE, stride=TWO, transposed=True
    ),
    "groups": replace(SAME, source_channels=64, target_channels=32, groups=4),
    "gradient of groups": replace(
        SAME,
        source_channels=64,
        target_channels=32,
        source_extents=(6, 5, 7),
        target_extents=CUBE,
        stride=TWO,
        transposed=True,
        groups=2,
    ),
    "each channel by itself": replace(SAME, target_channels=32, groups=32),
    "gradient of each channel by itself": replace(
        SAME,
        target_channels=32,
        source_extents=(6, 5, 7),
        target_extents=CUBE,
        stride=TWO,
        transposed=True,
        groups=32,
    ),
    "gradient with dilation": replace(
        SAME, source_extents=(10, 8, 12), target_extents=CUBE, dilation=TWO, transposed=True
    ),
}
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    """Function that opens a search in a precision; kernels stay compiled between tests."""
    from cuda_cyclegan.engine.cuda.cudnn import Cudnn
    from cuda_cyclegan.engine.cuda.driver import Context, Stream
    from cuda_cyclegan.engine.cuda.kernel_images import Kernels

    folder = tmp_path_factory.mktemp("kernels")
    with ExitStack() as opened:
        context = opened.enter_context(Context(0))
        stream = opened.enter_context(Stream())
        library = opened.enter_context(Cudnn(stream))
        kernels = {
            one: opened.enter_context(Kernels(one, context.properties, folder))
            for one in PRECISIONS
        }
        yield library, kernels, stream


def found(gpu, shape, reported, effort="full"):
    from cuda_cyclegan.engine.cuda.open_gpu import OpenGpu
    from cuda_cyclegan.engine.cuda.tuning.cache import TuningCache
    from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner

    library, kernels, stream = gpu
    opened = OpenGpu(None, stream, library, kernels[shape.precision])
    settings = SearchSettings(
        effort, 60, lambda what, share: share is None and reported.append(what)
    )
    tuner = Tuner(opened, TuningCache(None, {}), 1 << 34, settings)
    return tuner.convolutions([shape], 64 << 20)[shape].name


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_plans_are_right(gpu, name, precision):
    reported: list[str] = []
    found(gpu, replace(SHAPES[name], precision=precision), reported)
    assert reported == []


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_own_kernel_is_right(gpu, name, precision, monkeypatch):
    """Kernels are chosen where cuDNN offers nothing."""
    from cuda_cyclegan.engine.cuda.tuning import tuner
    from cuda_cyclegan.engine.cuda.tuning.cache import CUSTOM

    monkeypatch.setattr(tuner, "plans_of", lambda *_, **__: None)
    reported: list[str] = []
    assert found(gpu, replace(SHAPES[name], precision=precision), reported) == CUSTOM
    assert reported == []


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_kernel_for_split_fp16_is_right(gpu, precision):
    reported: list[str] = []
    for name in ("same", "strided", "deep"):
        found(gpu, replace(SHAPES[name], precision=precision, split_fp16=True), reported)
    assert reported == []


def wrong_in(step, kernels, stream, grid=None):
    from cuda_cyclegan.engine.cuda.tuning.layer_check import wrong_step

    return wrong_step(step, kernels, stream, 1 << 34, grid)


def last_channel_dropped(result):
    result[..., -1] = 0


def halo_wrong(result):
    result[:, :, -1] = result[:, :, -2]


def batch_wrong(result):
    result[1:] = result[:1]


def nan_in_padding(result):
    result[0, 0, 0, 0, 0] = np.nan


FAULTS = (last_channel_dropped, halo_wrong, batch_wrong, nan_in_padding)
KINDS = {"fp16": np.float16, "tf32": np.float32}


def planted(tactics, stream, monkeypatch, faults: dict[str, Callable | None]):
    """Have all that cuDNN offers do what the first plans do, and then the faults."""
    offered = tactics.ConvolutionPlans

    class Planted(offered):
        def __init__(self, library, shape, _name=None, **_):
            super().__init__(library, shape)
            self._shape = shape
            self._names = list(faults)
            self.count = min(self.count, len(faults))

        def name(self, index):
            return self._names[index]

        def run(self, index, source, weight, target, workspace):
            super().run(index, source, weight, target, workspace)
            fault, shape = faults[self._names[index]], self._shape
            if fault is None:
                return
            size = shape.batch, *shape.target_extents, shape.target_channels
            result = np.empty(size, KINDS[shape.precision])
            stream.download(result.ctypes.data, target, result.nbytes)
            stream.wait()
            fault(result)
            stream.upload_now(target, result.tobytes())

    monkeypatch.setattr(tactics, "ConvolutionPlans", Planted)


@pytest.mark.parametrize("precision", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(gpu, monkeypatch, fault, precision):
    from cuda_cyclegan.engine.cuda.tuning import tactics

    planted(tactics, gpu[2], monkeypatch, {"wrong": fault, "right": None})
    reported: list[str] = []
    assert found(gpu, replace(SAME, precision=precision), reported, "off") == "right"
    assert len(reported) == 1


def test_a_plan_that_is_wrong_in_one_of_20_runs_is_found(gpu, monkeypatch):
    from cuda_cyclegan.engine.cuda.tuning import tactics

    random = np.random.default_rng(1)
    small = replace(SAME, source_extents=(4, 4, 4), target_extents=(4, 4, 4))

    def seldom(result):
        if random.random() < 1 / 20:
            result[-1, -1, -1, -1, -1] += 1

    planted(tactics, gpu[2], monkeypatch, {"wrong": seldom, "right": None})
    caught = sum(found(gpu, small, [], "off") == "right" for _ in range(100))
    assert caught >= 99


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "spec",
    [ResNetSpec(1, 1, 32, 1), ResNetSpec(1, 1, 64, 1, first_kernel=3), UNetSpec(1, 1, 32, 3)],
    ids=["r", "r3", "u"],
)
def test_kernels_of_the_outermost_layers(gpu, spec, precision, monkeypatch):
    from cuda_cyclegan.engine.cuda.tuning import layer_check

    _, kernels, stream = gpu
    network = random_network(build(spec), 0)
    wanted = ProgramRequest((40, 48, 56), 2, precision, kernels[precision].gpu)
    lowered = lower(network, wanted.fastest, wanted.gpu)
    outer = [step for step in checked(lowered.steps) if step.patches or step.translated]
    assert len(outer) == 2
    for step in outer:
        assert wrong_in(step, kernels[precision], stream) is None
        if step.geometry.transposed:
            continue
        right, (depth, height, width) = plain_counterpart(step), step.geometry.before
        geometry = replace(step.geometry, before=(depth, height - 1, width))
        moved = replace(right, conv=replace(right.conv, geometry=geometry))
        with monkeypatch.context() as patched:
            patched.setattr(layer_check, "plain_counterpart", lambda _, moved=moved: moved)
            assert wrong_in(step, kernels[precision], stream) is not None


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("extents", [(40, 48, 56), (36, 100, 132)])
def test_kernels_of_halving_and_doubling_layers(gpu, extents, precision, monkeypatch):
    from cuda_cyclegan.engine.cuda.tuning import layer_check

    _, kernels, stream = gpu
    network = random_network(build(ResNetSpec(1, 1, 32, 1)), 0)
    wanted = ProgramRequest(extents, 2, precision, kernels[precision].gpu)
    lowered = lower(network, wanted.fastest, wanted.gpu)
    inner = [s for s in checked(lowered.steps) if not (s.patches or s.translated)]
    assert len(inner) == (3 if wanted.gpu.capability == WGMMA_CAPABILITY else 0)
    for step in inner:
        assert wrong_in(step, kernels[precision], stream) is None
        with monkeypatch.context() as patched:
            patched.setattr(layer_check, "plain_counterpart", with_turned_weights)
            assert "wrong results" in wrong_in(step, kernels[precision], stream)


def with_turned_weights(step):
    right = plain_counterpart(step)
    laid = right.weights[STORED_WEIGHT]
    turned = {**right.weights, STORED_WEIGHT: lambda kernel: laid(kernel.swapaxes(3, 4))}
    return replace(right, weights=turned)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("edge", [7, 3])
def test_statistics_of_layers_by_own_kernels(gpu, edge, precision, monkeypatch):
    from cuda_cyclegan.engine.cuda.tuning import layer_check

    _, kernels, stream = gpu
    network = random_network(build(ResNetSpec(1, 1, 32, 1, first_kernel=edge)), 0)
    wanted = ProgramRequest((128, 128, 128), 2, precision, kernels[precision].gpu)
    lowered = lower(network, wanted.fastest, wanted.gpu)
    measured = [step for step in checked(lowered.steps) if step.statistics is not None]
    assert measured[0].patches
    for step in measured:
        assert wrong_in(step, kernels[precision], stream) is None
    launches = layer_check.launches

    def without_the_last_block(*given):
        made = launches(*given)
        for launch in made:
            if launch.kernel == "conclude":
                launch.arguments.chunks -= 1
        return made

    monkeypatch.setattr(layer_check, "launches", without_the_last_block)
    for step in measured:
        assert "wrong statistics" in wrong_in(step, kernels[precision], stream)


@pytest.mark.parametrize("extents", [(40, 48, 56), (96, 96, 96), (128, 128, 60)])
@pytest.mark.parametrize("edge", [7, 3])
def test_kernels_of_blocks_measure_right(gpu, edge, extents):
    """Statistics of a volume that fills its block, and of one that ends within block and boxes."""

    _, kernels, stream = gpu
    network = random_network(build(ResNetSpec(1, 1, 32, 1, first_kernel=edge)), 0)
    wanted = ProgramRequest(extents, 1, "fp16", kernels["fp16"].gpu)
    layout = replace(wanted.fastest, in_blocks=True)
    steps = with_fused_statistics(lower(network, layout, wanted.gpu).steps)
    names = "convolve_patches_wgmma", "convolve_patches", "conv_transpose_to_cells"
    measuring = [step for step in computed_by(steps, *names) if step.statistics is not None]
    assert measuring[0].patches
    for step in measuring:
        grid = BlockGrid(extents, extents)
        assert wrong_in(step, kernels["fp16"], stream, grid) is None


def test_a_refused_kernel_is_left_out_and_the_result_stays(monkeypatch, tmp_path):
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
    from cuda_cyclegan.engine.cuda.tuning import layer_check

    network = random_network(build(ResNetSpec(1, 1, 32, 1)), 0)
    patch, reported = (24, 24, 24), []
    search = SearchSettings("off", 60, lambda what, share: share is None and reported.append(what))
    options = CudaOptions("fp16", cache=tmp_path / "right", search=search)
    patches = np.random.default_rng(0).uniform(-1, 1, (1, 1, *patch)).astype(np.float32)
    with open_cuda_generator(network, options, patch) as generator:
        wanted = generator(patches)
    assert reported == []
    monkeypatch.setattr(layer_check, "wrong_step", lambda *_: "planted results")
    wrong = replace(options, cache=tmp_path / "wrong")
    for _ in range(2):
        with open_cuda_generator(network, wrong, patch) as generator:
            steps = generator._fitted.lowered.steps
            assert not list(checked(steps))
            assert list(planned(steps))
            assert np.linalg.norm(generator(patches) - wanted) < 5e-3 * np.linalg.norm(wanted)
    assert reported
    assert len(set(reported)) == len(reported)
