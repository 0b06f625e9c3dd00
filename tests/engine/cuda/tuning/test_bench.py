"""The clock of trials, against a GPU that only counts, and their guarded memory."""

from collections.abc import Callable
from typing import Self

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.numpy_kernels import NumPyKernels
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.compiler.program.memory import GUARD, between_guards
from cuda_cyclegan.engine.cuda import driver as cuda_driver
from cuda_cyclegan.engine.cuda.tuning import bench as benches
from cuda_cyclegan.engine.cuda.tuning.bench import TrialBench, open_bench
from cuda_cyclegan.engine.errors import DeviceMemoryError

HOST, BUSY, WORK, LONG, GRAPH = 30.0, 800.0, 5.0, 400.0, 6.0
"""Microseconds: what a launch takes the host, idle and busy; what work takes the GPU; and what the
launch of a graph takes the host.
"""

TURN = 18_000.0
"""Microseconds for which others have a GPU that has nothing to do for us."""


class CountingGpu:
    """Takes its time for work, and the host for launches.

    turn: for which others have it as soon as it has nothing to do.
    """

    def __init__(self, work: float, host: float = HOST, turn: float = 0.0) -> None:
        self.work, self.host, self.turn = work, host, turn
        self.now, self.done, self.launched = 0.0, 0.0, 0
        self.captured: list[float] | None = None

    def queue(self) -> None:
        self.launched += 1
        if self.captured is None:
            self.submit(self.host, self.work)
        else:
            self.captured.append(self.work)

    def submit(self, host: float, work: float) -> None:
        self.now += host
        start = self.now + self.turn if self.now > self.done else self.done
        self.done = start + work

    def wait(self) -> None:
        self.now = max(self.now, self.done)

    times = cuda_driver.Stream.times


class CountingEvent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def record(self, gpu: CountingGpu) -> None:
        self.gpu, self.at = gpu, max(gpu.now, gpu.done)

    def wait(self) -> None:
        self.gpu.wait()

    def seconds_since(self, earlier: Self) -> float:
        return (self.at - earlier.at) / 1e6


class CountingGraph:
    def __init__(self, gpu: CountingGpu, queue_work: Callable[[], None]) -> None:
        self._gpu = gpu
        gpu.captured = []
        queue_work()
        self._work, gpu.captured = sum(gpu.captured), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def launch(self) -> None:
        self._gpu.submit(GRAPH, self._work)


INFINITE = float("inf")


@pytest.mark.parametrize("turn", [0, TURN], ids=["alone", "shared"])
@pytest.mark.parametrize(
    ("work", "best", "host", "launched"),
    [
        (WORK, INFINITE, HOST, 23),
        (WORK, INFINITE, BUSY, 23),
        (WORK, WORK, HOST, 23),
        (LONG, INFINITE, BUSY, 5),
        (LONG, LONG, HOST, 5),
        (LONG, WORK, HOST, 3),
    ],
)
def test_time_is_that_of_the_gpu(monkeypatch, work, best, host, launched, turn):
    """launched: runs one by one, the first of which is not timed, and runs of the graphs."""
    monkeypatch.setattr(benches, "CapturedGraph", CountingGraph)
    monkeypatch.setattr(cuda_driver, "CudaEvent", CountingEvent)
    gpu = CountingGpu(work, host, turn)
    bench = TrialBench(None, gpu, {})  # type: ignore[arg-type]
    assert bench.time(gpu.queue, best) == pytest.approx(work)
    assert gpu.launched == launched


class SharedGraph(CountingGraph):
    """A graph of a GPU that others use too: two of three launches take ten times as long."""

    launches = 0

    def launch(self) -> None:
        SharedGraph.launches += 1
        self._gpu.submit(GRAPH, self._work * (1 if SharedGraph.launches % 3 == 0 else 10))


def test_other_programs_on_the_gpu_do_not_count(monkeypatch):
    monkeypatch.setattr(benches, "CapturedGraph", SharedGraph)
    monkeypatch.setattr(cuda_driver, "CudaEvent", CountingEvent)
    gpu = CountingGpu(WORK)
    bench = TrialBench(None, gpu, {})  # type: ignore[arg-type]
    assert bench.time(gpu.queue) == pytest.approx(WORK)


SIZES = {"source": 1000, "empty": 0, "target": 8}


def test_blocks_lie_between_nan(monkeypatch):
    taken = []

    def buffer(size):
        taken.append(size)
        return used_buffer(size)

    monkeypatch.setattr(benches, "DeviceBuffer", buffer)
    room = between_guards(SIZES).bytes
    with open_bench(NumPyKernels(), Stream(), SIZES, room) as bench:
        assert taken == [room]
        for name, size in SIZES.items():
            around = array_at(bench.at(name) - GUARD, np.uint8, size + 2 * GUARD)
            assert (around == 0xFF).all()
            around[GUARD : GUARD + size] = 0


def test_more_memory_than_allowed_is_not_requested(monkeypatch):
    monkeypatch.setattr(benches, "DeviceBuffer", None)
    room = between_guards(SIZES).bytes - 1
    with (
        pytest.raises(DeviceMemoryError, match="larger setting vram-limit") as refused,
        open_bench(NumPyKernels(), Stream(), SIZES, room),
    ):
        pass
    assert refused.value.wanted == room + 1
