"""OpenVINO computes on the CPU what ONNX Runtime computes there."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.covering_networks import MIXED, SPECS
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, chain, random_network
from support.volumes_at_once import at_once, in_one_pass
from support.zero_weights import zero_network

from cuda_cyclegan.engine import devices
from cuda_cyclegan.engine.cpu import openvino as openvino_generator
from cuda_cyclegan.engine.cpu import slabs
from cuda_cyclegan.engine.cpu.onnx_model import to_onnx
from cuda_cyclegan.engine.cpu.openvino import (
    OpenVino,
    OpenVinoGenerator,
    open_openvino_generator,
)
from cuda_cyclegan.engine.cpu.openvino_support import has_bf16, is_installed, pays
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import DeviceUnavailableError, PatchShapeError
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Triple,
)
from cuda_cyclegan.engine.options import CudaLimits

pytestmark = pytest.mark.skipif(not is_installed(), reason="no wheel of OpenVINO for this machine")
TESTS = Path(__file__).parents[2]
needs_bf16 = pytest.mark.skipif(not has_bf16(), reason="the processor has no bf16")


def noise(*shape: int) -> FloatArray:
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def small_network() -> Network:
    return random_network(build(ResNetSpec(1, 2, 4, 1)), seed=0)


def quarters() -> Network:
    """A network that opens fast, of a quarter of the extents between its two layers."""
    four = (4, 4, 4)
    down = Conv3d(1, 2, four, "down.weight", "down.bias", four)
    up = ConvTranspose3d(2, 1, four, "up.weight", "up.bias", four)
    return random_network(chain(1, ("down", down), ("up", up)), seed=0)


def error(network: Network, patches: FloatArray) -> float:
    with open_openvino_generator(network) as ours, open_cpu_generator(network) as judge:
        return relative_error(ours(patches), judge(patches))


def test_patches_and_weights_that_are_read_only() -> None:
    network, patch = quarters(), noise(1, 1, 8, 8, 8)
    for array in (patch, *network.weights.values()):
        array.setflags(write=False)
    assert error(network, patch) < 1e-5
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(slabs, "_LONG", 0)
        made = at_once(network, patch[0])
    assert relative_error(made, in_one_pass(network, patch[0])) < 1e-5


@pytest.fixture
def generator() -> Iterator[OpenVinoGenerator]:
    with open_openvino_generator(small_network(), threads=2) as opened:
        yield opened


FAST = {"resnet 0", *list(ODD_GRAPHS)[:4]}


def few(names: Any) -> list[Any]:
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", few(MIXED))
def test_generators(name: str) -> None:
    network = random_network(build(SPECS[name]), seed=0)
    extents = [8 * max(2, -(-16 // (8 * step))) * step for step in network.graph.stride]
    assert error(network, noise(1, SPECS[name].in_channels, *extents)) < 1e-5


@pytest.mark.parametrize("name", few(ODD_GRAPHS))
def test_odd_graphs(name: str) -> None:
    network = random_network(ODD_GRAPHS[name], seed=0)
    assert error(network, noise(2, network.graph.in_channels, *ODD_PATCH)) < 1e-5


@pytest.mark.parametrize("groups", [4, 1])
def test_norms_of_large_maps_are_exact(groups: int) -> None:
    """OpenVINO's own operator is 6e-5 to 3e-4 off there."""
    patch = np.full((1, 4, 64, 72, 60), -1, np.float32)
    patch[..., 20:50, 20:60, 10:40] = 0.4 * noise(1, 4, 30, 40, 30)
    layer = InstanceNorm(4) if groups == 4 else GroupNorm(4, groups)
    network = Network(Graph(4, (Node("layer", layer, (INPUT,)),)), {})
    with open_openvino_generator(network) as generator:
        ours = generator(patch)
    runs = patch.reshape(groups, -1).astype(np.float64)
    runs -= runs.mean(axis=1, keepdims=True)
    runs /= np.sqrt(np.square(runs).mean(axis=1, keepdims=True) + layer.epsilon)
    assert relative_error(ours.ravel(), runs.ravel().astype(np.float32)) < 1e-6


@needs_bf16
def test_bf16_is_as_near_as_bf16_is() -> None:
    network, patch = small_network(), noise(1, 1, 32, 32, 32)
    with open_openvino_generator(network, "bf16") as generator, open_cpu_generator(network) as cpu:
        assert 1e-4 < relative_error(generator(patch), cpu(patch)) < 3e-2


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_known_extents_take_fewer_operators_and_change_no_byte(groups: int) -> None:
    conv = Node("conv", Conv3d(1, 8, (3, 3, 3), "weight", padding=(1, 1, 1)), (INPUT,))
    norm = Node("norm", GroupNorm(8, groups) if groups < 8 else InstanceNorm(8), ("conv",))
    network = random_network(Graph(1, (conv, norm)), seed=0)
    source, runtime = noise(2, 1, 12, 20, 28), OpenVino("fp32", 2)
    models = [to_onnx(network, exact_norms=True, patch=patch) for patch in (None, (12, 20, 28))]
    outputs = [runtime.compiled(model, {INPUT: source.shape})({INPUT: source}) for model in models]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    open_, known = ({node.op_type for node in model.graph.node} for model in models)
    assert open_ - known == {"Shape", "Concat", "Cast"}


def test_extents_and_batch_may_change() -> None:
    with open_openvino_generator(quarters()) as generator, open_cpu_generator(quarters()) as judge:
        for shape in ((1, 1, 8, 8, 8), (2, 1, 12, 8, 16), (1, 1, 8, 8, 8)):
            assert relative_error(generator(noise(*shape)), judge(noise(*shape))) < 1e-5


def test_threads_share_it_and_results_are_bit_identical(generator: OpenVinoGenerator) -> None:
    patches = [noise(1, 1, 16, 16, 16) * factor for factor in np.linspace(0.1, 1, 12, dtype="f4")]
    alone = [generator(patch) for patch in patches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(generator, patches))
    assert all(map(np.array_equal, together, alone))


def test_wrong_extents_are_refused_before_running(generator: OpenVinoGenerator) -> None:
    with pytest.raises(PatchShapeError, match="multiple of 4x4x4"):
        generator(noise(1, 1, 8, 10, 8))


@pytest.mark.parametrize("opening", [open_openvino_generator, open_cpu_generator])
def test_extents_are_checked_once_not_for_each_patch(
    opening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check takes a millisecond of Python: as long as a small patch."""
    checked, check = list[Triple](), Graph.check_patch

    def counted(graph: Graph, patch: Triple) -> None:
        checked.append(patch)
        check(graph, patch)

    with opening(quarters()) as generator:
        monkeypatch.setattr(Graph, "check_patch", counted)
        for edge in (8, 8, 12, 12, 8):
            generator(noise(1, 1, 8, 8, edge))
        with pytest.raises(PatchShapeError):
            generator(noise(1, 1, 8, 8, 10))
        generator(noise(1, 1, 8, 8, 8))
    assert checked == [(8, 8, edge) for edge in (8, 12, 8, 10)]


def test_runs_only_while_open() -> None:
    with open_openvino_generator(small_network(), threads=1) as generator:
        generator(noise(1, 1, 8, 8, 8))
    with pytest.raises(RuntimeError, match="closed"):
        generator(noise(1, 1, 8, 8, 8))


def test_device_names_threads_and_runtime() -> None:
    with open_openvino_generator(small_network(), threads=3) as generator:
        assert generator.device.startswith("CPU, 3 threads, OpenVINO 20")


def test_bf16_is_refused_on_a_processor_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    core = SimpleNamespace(get_property=lambda *_: ["FP32", "INT8"])
    monkeypatch.setattr(openvino_generator, "openvino_core", lambda: core)
    with (
        pytest.raises(DeviceUnavailableError, match="no bf16 arithmetic"),
        open_openvino_generator(small_network(), "bf16"),
    ):
        pass


def test_large_patches_are_computed_by_it_and_small_ones_by_onnx_runtime() -> None:
    network = zero_network(build(ResNetSpec(1, 1, 16, 2)))
    device = devices.choose_device("cpu")
    for extents, runtime in (((64, 64, 64), "OpenVINO"), ((16, 16, 16), "ONNX Runtime")):
        assert pays(network.graph, extents) == (runtime == "OpenVINO")
        with devices.open_generator(network, device, "fp32", extents) as generator:
            assert runtime in generator.device


@pytest.mark.parametrize("extents", [(64, 64, 64), (16, 16, 16)])
def test_a_network_takes_no_more_threads_than_it_may(extents: tuple[int, int, int]) -> None:
    network = zero_network(build(ResNetSpec(1, 1, 16, 2)))
    device = devices.choose_device("cpu", CudaLimits(threads=1))
    with devices.open_generator(network, device, "fp32", extents) as generator:
        assert generator.device.startswith("CPU, 1 threads, ")
    with devices.open_volume_generator(network, device, "fp32", lambda: 1 << 30) as whole:
        assert whole.device.startswith("CPU, 1 threads, ")


_SIGNAL = """
import os, signal, numpy
from support.volumes_at_once import at_once, in_one_pass
from support.zero_weights import zero_network
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.cpu.openvino import open_openvino_generator
network = zero_network(build(ResNetSpec(1, 1, 4, 1)))
patch = numpy.zeros((1, 1, 16, 16, 16), numpy.float32)
first = open_openvino_generator(network)
first.__enter__()(patch)
with open_openvino_generator(network) as second:
    second(patch)
    first.__exit__(None, None, None)
del first, second
signal.signal(signal.SIGTERM, lambda *_: print("heard"))
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.process
def test_a_signal_is_handled_after_two_networks_were_open_at_a_time() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SIGNAL], capture_output=True, text=True, check=False, cwd=TESTS
    )
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


_TOGETHER = """
import threading
from concurrent.futures import ThreadPoolExecutor
from cuda_cyclegan.engine.cpu.openvino import openvino_core
together = threading.Barrier(4)
def start(_):
    together.wait()
    return openvino_core()
with ThreadPoolExecutor(4) as threads:
    cores = list(threads.map(start, range(4)))
print(len({id(core) for core in cores}))
"""


@pytest.mark.process
def test_threads_that_start_it_at_the_same_time_share_one_core() -> None:
    found = subprocess.check_output([sys.executable, "-c", _TOGETHER], text=True)
    assert found == "1\n"


@needs_bf16
def test_the_cpu_offers_bf16_for_patches_and_whole_volumes() -> None:
    device = devices.choose_device("cpu")
    network = small_network()
    assert device.default_precision == "fp32"
    assert device.precisions == ("fp32", "bf16")
    assert devices.why_not_whole_volume(network.graph, device) is None
    with devices.open_generator(network, device, "bf16", (16, 16, 16)) as generator:
        assert "OpenVINO" in generator.device
    with devices.open_volume_generator(network, device, "bf16", lambda: 1 << 30) as whole:
        assert "OpenVINO" in whole.device


def test_a_processor_without_bf16_offers_fp32_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda_cyclegan.engine.cpu import openvino_support

    monkeypatch.setattr(openvino_support, "_BF16_FLAGS", frozenset({"made_up"}))
    assert devices.choose_device("cpu").precisions == ("fp32",)


@pytest.mark.process
def test_its_telemetry_is_not_loaded() -> None:
    code = (
        "import sys; from cuda_cyclegan.engine.cpu.openvino import openvino; openvino(); "
        "print([name for name in sys.modules if name.startswith('openvino_telemetry')])"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert found == "['openvino_telemetry']\n", "a stub in its place"
