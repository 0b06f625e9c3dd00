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

from cuda_cyclegan.engine.compiler.program.memory import GUARD, bytes_of_blocks
from cuda_cyclegan.engine.cuda.tuning import bench as benches
from cuda_cyclegan.engine.cuda.tuning.bench import TrialBench, open_bench
from cuda_cyclegan.engine.errors import DeviceMemoryError

HOST, WORK, LONG = 30.0, 5.0, 400.0
"""Microseconds: what a launch takes the host, and what short and long work takes the GPU."""


class CountingStream:
    """Launches work that takes the GPU so long, but one by one never less than the host."""

    def __init__(self, work: float) -> None:
        self.work, self.now, self.launched = work, 0.0, 0
        self.captured: list[float] | None = None

    def queue(self) -> None:
        if self.captured is not None:
            self.captured.append(self.work)
            return
        self.now += max(HOST, self.work)
        self.launched += 1

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


@pytest.mark.parametrize(
    ("work", "best", "launched"),
    [(WORK, float("inf"), 2), (WORK, WORK, 2), (LONG, LONG, 11), (LONG, WORK, 2)],
)
def test_short_plans_are_told_apart_and_long_ones_given_up_soon(monkeypatch, work, best, launched):
    """launched: runs one by one, the first of which is not timed."""
    monkeypatch.setattr(benches, "CapturedGraph", CountingGraph)
    stream = CountingStream(work)
    bench = TrialBench(None, stream, {})  # type: ignore[arg-type]
    assert bench.time(stream.queue, best) == pytest.approx(work)
    assert stream.launched == launched


SIZES = {"source": 1000, "empty": 0, "target": 8}


def test_blocks_lie_between_nan(monkeypatch):
    taken = []

    def buffer(size):
        taken.append(size)
        return used_buffer(size)

    monkeypatch.setattr(benches, "DeviceBuffer", buffer)
    room = bytes_of_blocks(SIZES)
    with open_bench(NumPyKernels(), Stream(), SIZES, room) as bench:
        assert taken == [room]
        for name, size in SIZES.items():
            around = array_at(bench.at(name) - GUARD, np.uint8, size + 2 * GUARD)
            assert (around == 0xFF).all()
            around[GUARD : GUARD + size] = 0


def test_what_is_more_than_may_be_taken_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(benches, "DeviceBuffer", None)
    room = bytes_of_blocks(SIZES) - 1
    with (
        pytest.raises(DeviceMemoryError, match="larger setting vram-limit") as refused,
        open_bench(NumPyKernels(), Stream(), SIZES, room),
    ):
        pass
    assert refused.value.wanted == room + 1
