"""Volumes of several threads on one GPU, whose streams run in any order that events allow."""

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support.cudnn_stand_in import cudnn_where_there_is_none
from support.gpu_networks import random_network
from support.gpu_on_cpu.convolutions import convolved_exactly
from support.gpu_on_cpu.memory import Buffer
from support.gpu_on_cpu.streams import Event, Gpu, Graph
from support.volume_on_cpu import VolumeOnCpu, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.program.memory import Arena
from cuda_cyclegan.engine.cuda import in_flight, streaming
from cuda_cyclegan.engine.cuda.volume import lanes
from cuda_cyclegan.engine.cuda.volume.lanes import Lane, LanePlan, Lanes, plan_lanes
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.scaling import Stored

with cudnn_where_there_is_none():
    from cuda_cyclegan.engine.cuda.volume import compiled, streamed_volume
    from cuda_cyclegan.engine.cuda.volume.compiled import costs_of, parts_of_passes
    from cuda_cyclegan.engine.cuda.volume.preparation import Ready
    from cuda_cyclegan.engine.cuda.volume.streamed_volume import StreamedVolume

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]

GRID = BlockGrid((8, 4, 8), (4, 4, 4))
SLOT_VOXELS = 2 * 4 * 8
GRAPH = build(ResNetSpec(1, 1, 4, 1, downsamplings=1))
PLENTY = 1 << 40

FIRST = [
    pytest.param(Gpu.first_stream_first, id="passes ahead of copies"),
    pytest.param(lambda: Gpu(lambda ready: ready[-1]), id="copies ahead of passes"),
]
"""Progress of each stream while others wait; the stream of the passes is opened first."""

RANDOM = [
    pytest.param(partial(Gpu.in_random_order, seed), id=f"random {seed}", marks=pytest.mark.slow)
    for seed in range(8)
]


@cache
def network() -> VolumeOnCpu:
    return volume_on_cpu(random_network(GRAPH, seed=1), GRID, "fp32", convolve=convolved_exactly)


@cache
def volumes() -> tuple[FloatArray, ...]:
    random = np.random.default_rng(2)
    shape = 1, *GRID.extents
    return tuple(random.uniform(-1, 1, shape).astype(np.float32) for _ in range(3))


@cache
def alone() -> tuple[FloatArray, ...]:
    """Each volume's result, computed by itself."""
    return tuple(network()(volume) for volume in volumes())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Gpu:
    gpu: Gpu = request.param()
    monkeypatch.setattr(streaming, "PinnedBuffer", Buffer)
    for module in (streaming, lanes):
        monkeypatch.setattr(module, "CudaEvent", Event)
    monkeypatch.setattr(in_flight, "Stream", gpu.stream)
    monkeypatch.setattr(in_flight, "DeviceBuffer", Buffer)
    monkeypatch.setattr(lanes, "CapturedGraph", Graph)
    for module in (lanes, streamed_volume):
        monkeypatch.setattr(module, "slot_voxels", lambda _: SLOT_VOXELS)
    return gpu


@dataclass
class World:
    """Volumes without a GPU: their passes run kernel by kernel on the CPU."""

    ready: Ready
    lanes: Lanes
    computing: threading.Lock

    def run(self, volume: FloatArray, lane: Lane) -> FloatArray:
        made = np.full_like(volume, np.nan)
        ends = Stored(volume), Stored(made)
        StreamedVolume(self.ready, lane, self.computing, ends).run(lambda _: None)
        return made


@pytest.fixture
def world(gpu: Gpu) -> Iterator[World]:
    made = network()
    computing: Any = gpu.stream()

    def convolve(step: Any, addresses: Any) -> bool:
        computing.submit(lambda: convolved_exactly(step, addresses))
        return True

    late = replace(made.program, stream=computing, convolve=convolve)
    with made.placed() as placed, ExitStack() as opened:
        costs = costs_of(placed.memory.passes, GRID)
        taken = Lanes(opened)
        taken.arrange(plan_lanes(placed.memory, GRID, GRAPH, PLENTY))
        late_volume, none = replace(placed, program=late), LanePlan(0, Arena({}, 0), 0)
        compiled_blocks: Any = None
        parts = parts_of_passes(costs)
        ready = Ready(compiled_blocks, late_volume, none, costs, parts, runs=1)
        yield World(ready, taken, threading.Lock())


@pytest.mark.parametrize("gpu", [*FIRST, *RANDOM], indirect=True)
def test_volumes_of_several_threads_are_as_each_by_itself(world: World) -> None:
    """Each thread takes the next volume; passes of different volumes share the maps."""
    right, left = alone(), iter(enumerate(volumes()))
    results: dict[int, FloatArray] = {}

    def translate(lane: Lane) -> None:
        for number, volume in left:
            results[number] = world.run(volume, lane)

    taken = [world.lanes.take() for _ in range(3)]
    assert world.lanes.take() is None
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(translate, lane) for lane in taken if lane]:
            done.result()
    assert len(results) == len(right)
    assert all(np.array_equal(results[number], right[number]) for number in results)


@pytest.mark.parametrize("gpu", FIRST[:1], indirect=True)
@pytest.mark.parametrize(("products", "graphs"), [(1e12, 1), (0, 4)], ids=["small", "large"])
def test_a_small_volume_is_queued_as_few_graphs(
    world: World, products: float, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass of a large one is a graph, but for the first and the last, which launches queue."""
    monkeypatch.setattr(compiled, "_PRODUCTS_AT_ONCE", products)
    world.ready.parts = compiled.parts_of_passes(world.ready.costs)
    captured: list[Any] = []

    class Counted(Graph):
        def __init__(self, stream: Any, queue: Any) -> None:
            captured.append(queue)
            super().__init__(stream, queue)

    monkeypatch.setattr(lanes, "CapturedGraph", Counted)
    lane = world.lanes.take()
    assert lane is not None
    for volume, right in zip(volumes(), alone(), strict=True):
        assert np.array_equal(world.run(volume, lane), right)
    between = [queue for queue in captured if queue.func.__name__ == "queue_passes"]
    assert len(between) == graphs
    assert (len(captured) > len(between)) == (graphs == 1)


@pytest.mark.parametrize("gpu", FIRST[:1], indirect=True)
def test_a_volume_that_comes_while_another_is_computed_waits_for_its_own_copies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamed_volume._Turn, "take_if_free", lambda _: False)
    lane = world.lanes.take()
    assert lane is not None
    assert np.array_equal(world.run(volumes()[0], lane), alone()[0])


@pytest.mark.parametrize("gpu", [Gpu.first_stream_first], indirect=True)
def test_a_lane_without_memory_is_done_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining lanes serve all volumes; without any, the error passes through."""

    def full(_size: int) -> Any:
        raise DeviceMemoryError("there is no more")

    first = world.lanes.take()
    monkeypatch.setattr(in_flight, "DeviceBuffer", full)
    assert first is not None
    assert world.lanes.take() is None
    world.lanes.return_lane(first)
    assert world.lanes.take() is first
    world.lanes.return_lane(first)
    world.lanes.release()
    with pytest.raises(DeviceMemoryError, match="no more"):
        world.lanes.take()


def test_lanes_take_no_more_than_the_maps_leave() -> None:
    memory = network().memory()
    free = plan_lanes(memory, GRID, GRAPH, PLENTY)
    each = free.bytes // free.count
    assert free.count == 3
    counts = [
        plan_lanes(memory, GRID, GRAPH, memory.device_bytes + room).count
        for room in (0, 2 * each - 1, 2 * each, 3 * each)
    ]
    assert counts == [1, 1, 2, 3]
    assert plan_lanes(memory, GRID, GRAPH, memory.device_bytes).bytes == 0
    away = replace(memory, host_bytes=1)
    assert plan_lanes(away, GRID, GRAPH, PLENTY).count == 1
