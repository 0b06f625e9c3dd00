"""The clock of trials, against a GPU that only counts, and their guarded memory."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Self

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.numpy_kernels import NumPyKernels
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.compiler.program.memory import GUARD, between_guards
from cuda_cyclegan.engine.cuda.tuning import bench as benches
from cuda_cyclegan.engine.cuda.tuning.bench import TrialBench, open_bench
from cuda_cyclegan.engine.errors import DeviceMemoryError

HOST, BUSY, WORK, LONG = 30.0, 800.0, 5.0, 400.0
"""Microseconds: what a launch takes the host, idle and busy, and what work takes the GPU."""


class CountingStream:
    """Launches work that takes the GPU so long, but one by one never less than the host."""

    def __init__(self, work: float, host: float = HOST) -> None:
        self.work, self.host, self.now, self.launched = work, host, 0.0, 0
        self.captured: list[float] | None = None

    def queue(self) -> None:
        self.launched += 1
        if self.captured is not None:
            self.captured.append(self.work)
            return
        self.now += max(self.host, self.work)

    def wait(self) -> None:
        pass

    @contextmanager
    def timed(self) -> Generator[list[float]]:
        elapsed: list[float] = []
        begin = self.now
        yield elapsed
        elapsed.append((self.now - begin) / 1000)


class CountingGraph:
    def __init__(self, stream: CountingStream, queue_work: Callable[[], None]) -> None:
        self._stream = stream
        stream.captured = []
        queue_work()
        self._work, stream.captured = sum(stream.captured), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def launch(self) -> None:
        self._stream.now += self._work


INFINITE = float("inf")


@pytest.mark.parametrize(
    ("work", "best", "host", "launched"),
    [
        (WORK, INFINITE, HOST, 24),
        (WORK, INFINITE, BUSY, 5),
        (WORK, WORK, HOST, 24),
        (LONG, INFINITE, BUSY, 5),
        (LONG, LONG, HOST, 6),
        (LONG, WORK, HOST, 4),
    ],
)
def test_time_is_that_of_the_gpu(monkeypatch, work, best, host, launched):
    """launched: runs one by one, the first of which is not timed, and runs of the graph."""
    monkeypatch.setattr(benches, "CapturedGraph", CountingGraph)
    stream = CountingStream(work, host)
    bench = TrialBench(None, stream, {})  # type: ignore[arg-type]
    assert bench.time(stream.queue, best) == pytest.approx(work)
    assert stream.launched == launched


class SharedGraph(CountingGraph):
    """A graph of a GPU that others use too: two of three launches take ten times as long."""

    launches = 0

    def launch(self) -> None:
        SharedGraph.launches += 1
        self._stream.now += self._work * (1 if SharedGraph.launches % 3 == 0 else 10)


def test_other_programs_on_the_gpu_do_not_count(monkeypatch):
    monkeypatch.setattr(benches, "CapturedGraph", SharedGraph)
    stream = CountingStream(WORK, HOST)
    bench = TrialBench(None, stream, {})  # type: ignore[arg-type]
    assert bench.time(stream.queue) == pytest.approx(WORK)


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
