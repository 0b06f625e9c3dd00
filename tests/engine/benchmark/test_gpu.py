"""Parts of a measurement on a GPU, with a simulated GPU."""

from collections.abc import Generator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cudnn_stand_in import cudnn_where_there_is_none
from support.described_gpus import H200
from support.gpu_networks import random_network

from cuda_cyclegan.engine.benchmark.measurement import Budget, Ceilings
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.engine.network.layers import FloatArray

PATCH = (16, 16, 16)
PLANNED, KERNELS = 100 << 20, 30 << 20


@pytest.fixture(scope="module")
def network() -> Network:
    return random_network(build(ResNetSpec(1, 1, 8, 1)), seed=0)


class Gpu:
    """Free memory that an open program takes from, and what it was asked."""

    def __init__(self) -> None:
        self.free = 8 << 30
        self.room_for_ceilings = 0

    def context(self, _index: int) -> Any:
        gpu = self

        class Context:
            bus = "0000:01:00.0"

            @property
            def memory(self) -> tuple[int, int]:
                return gpu.free, 10 << 30

        return nullcontext(Context())

    def ceilings(self, _index: int, _precision: str, room: int) -> Ceilings:
        self.room_for_ceilings = room
        return Ceilings(1e12, 1e11)

    def generator(self, network: Any, options: Any, patch: Any, batch: int) -> Any:
        del options
        assert batch in (2, 4)
        return FakeGenerator(self, network, patch)


class FakeGenerator:
    """Generator that runs two patches at a time, whatever is requested: one millisecond each."""

    device, batch = "a made-up GPU", 2
    memory = SimpleNamespace(bytes=PLANNED)

    def __init__(self, gpu: Gpu, network: Any, patch: Any) -> None:
        self._gpu, self._network, self.patch = gpu, network, patch
        self.graph = network.graph

    def __enter__(self) -> "FakeGenerator":
        self._gpu.free -= PLANNED
        return self

    def __exit__(self, *_: object) -> None:
        self._gpu.free += PLANNED

    def __call__(self, patches: FloatArray) -> FloatArray:
        if len(patches) > self.batch:
            self._gpu.free -= KERNELS
        return -patches

    def times(self, repeats: int) -> list[float]:
        return [2e-3] * repeats

    def step_times(self, _: int) -> list[tuple[Any, float]]:
        steps = lower(self._network, Layout(PATCH, self.batch, "fp16"), H200).steps
        return [(step, 10.0) for step in steps]

    def tactic(self, _: object) -> str:
        return "eng3_k2=1"


@pytest.fixture
def cuda_bench() -> Generator[Any]:
    """The module, with a stand-in for cuDNN's frontend where there is none."""
    pytest.importorskip("cuda.bindings.driver")
    with cudnn_where_there_is_none():
        from cuda_cyclegan.engine.benchmark import gpu as cuda_bench

        yield cuda_bench


@pytest.fixture
def gpu(cuda_bench: Any, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(cuda_bench, "Context", gpu.context)
    monkeypatch.setattr(cuda_bench, "open_cuda_generator", gpu.generator)
    monkeypatch.setattr(cuda_bench, "measure_ceilings", gpu.ceilings)
    return gpu


def test_it_shows_of_the_batch_that_runs_and_of_the_memory_that_is_gone(
    cuda_bench: Any, gpu: Gpu, network: Network
) -> None:
    patches = np.random.default_rng(0).random((4, 1, *PATCH), np.float32)
    kept: list[FloatArray] = []
    options = cuda_bench.CudaOptions(vram_limit=1 << 30)
    found = cuda_bench.measure_on_gpu(network, options, 4, patches, Budget(0.1), kept.append)
    assert np.array_equal(kept[0], -patches)
    assert found.batch == 2, "there was no room for four"
    assert found.patches_per_second == pytest.approx(1000)
    assert found.flops == 2 * flops(network.graph, PATCH)
    assert sum(layer.flops for layer in found.layers) == pytest.approx(found.flops)
    assert found.layers[0].seconds == pytest.approx(1e-5)
    assert (found.memory.planned, found.memory.taken) == (PLANNED, PLANNED + KERNELS)
    assert found.ceilings == Ceilings(1e12, 1e11)
    assert gpu.room_for_ceilings == 1 << 30, "the limit holds for the measuring too"


def test_without_layers_nothing_else_is_measured(
    cuda_bench: Any, gpu: Gpu, network: Network
) -> None:
    patches = np.zeros((2, 1, *PATCH), np.float32)
    options, budget = cuda_bench.CudaOptions(), Budget(0.1, layers=False)
    found = cuda_bench.measure_on_gpu(network, options, 2, patches, budget, lambda _: None)
    assert found.layers == ()
    assert found.ceilings is None
    assert gpu.room_for_ceilings == 0
