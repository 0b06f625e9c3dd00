"""Measurements on the CPU, compared with the network itself."""

from types import ModuleType

import numpy as np
import pytest
from support.gpu_networks import random_network

from cuda_cyclegan.engine.benchmark.measurement import Budget, Latency
from cuda_cyclegan.engine.cpu.openvino import open_openvino_generator
from cuda_cyclegan.engine.cpu.openvino_support import has_bf16, is_installed
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.engine.network.layers import FloatArray


@pytest.fixture(scope="module")
def cpu() -> ModuleType:
    """The module, which loads onnx."""
    from cuda_cyclegan.engine.benchmark import cpu

    return cpu


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(build(ResNetSpec(1, 1, 8, 1)), seed=0)


def test_the_table_has_every_layer_and_the_whole_network_s_arithmetic(
    cpu: ModuleType, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_EDGE", 256)
    monkeypatch.setattr(cpu, "_COPIED", 1 << 20)
    monkeypatch.setattr(cpu, "_SECONDS", 0.01)
    patches = np.random.default_rng(0).uniform(-1, 1, (2, 1, 16, 16, 16)).astype(np.float32)
    kept: list[FloatArray] = []
    opening = open_cpu_generator(network)
    found = cpu.measure_on_cpu(
        network, opening, "fp32", patches, Budget(0.1), kept.append, lambda: 7
    )
    with open_cpu_generator(network) as generator:
        assert np.array_equal(kept[0], generator(patches))
    assert found.flops == 2 * flops(network.graph, (16, 16, 16))
    if is_installed():
        assert sum(layer.flops for layer in found.layers) == found.flops
        assert {"first", "block0.conv0", "last"} <= {layer.layer for layer in found.layers}
        assert all(layer.seconds >= 0 and layer.bytes for layer in found.layers)
    assert found.ceilings is not None
    assert found.memory.taken == 7
    assert found.voxels_per_second == pytest.approx(2 * 16**3 / found.latency.median)


@pytest.mark.skipif(not has_bf16(), reason="needs a processor with bf16")
def test_the_error_of_bf16_is_measured(cpu: ModuleType, network: Network) -> None:
    patches = np.random.default_rng(0).uniform(-1, 1, (2, 1, 16, 16, 16)).astype(np.float32)
    kept: list[FloatArray] = []
    found = cpu.measure_on_cpu(
        network,
        open_openvino_generator(network, "bf16"),
        "bf16",
        patches,
        Budget(0.01, layers=False),
        kept.append,
        lambda: 0,
    )
    with open_cpu_generator(network) as generator:
        right = generator(patches[:1])
    assert found.error == pytest.approx(relative_error(kept[0][:1], right), rel=1e-3)
    assert 1e-4 < found.error < 0.1


def test_a_patch_that_does_not_fit_is_refused(cpu: ModuleType, network: Network) -> None:
    patches = np.zeros((1, 1, 15, 16, 16), np.float32)
    with pytest.raises(PatchShapeError):
        cpu.measure_on_cpu(
            network,
            open_cpu_generator(network),
            "fp32",
            patches,
            Budget(0.1),
            lambda _: None,
            lambda: 0,
        )


def test_quantiles_lie_within_what_was_seen() -> None:
    assert Latency.of([3.0]) == Latency(3.0, 3.0, 3.0, 1)
    found = Latency.of([1.0, 2.0, 10.0])
    assert 1.0 <= found.p5 < found.median == 2.0 < found.p95 <= 10.0
    assert Budget(2.0).runs(1e-3, 5, 500) == 500
    assert Budget(2.0).runs(10.0, 5, 500) == 5
    assert Budget(2.0).runs(0.1, 5, 500) == 20
