"""Device memory to try one convolution in, and the clock."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..compiler.convolution import Convolution
from ..compiler.memory.plan import aligned
from ..compiler.memory.trials import GUARD, bytes_of_blocks, convolution_blocks
from .driver import CapturedGraph, Stream
from .trial_memory import NAN, TrialMemory

_SHORT = 100
"""Microseconds up to which the time of a run is hidden by what the host takes to launch it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Device addresses of a convolution's tensors, and of what its check notes.

    source, weight, target, workspace: of the tensors. target_bytes: of the target alone.
    fingerprints: of results. found: where they were furthest off. voxels, sums: what is compared in
    double.
    """

    source: int
    weight: int
    target: int
    workspace: int
    target_bytes: int
    fingerprints: int
    found: int
    voxels: int
    sums: int

    @property
    def fenced_bytes(self) -> int:
        """Of the target and of what lies behind it, which no plan may write."""
        return aligned(self.target_bytes) + GUARD

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Of source, weight, target and workspace."""
        return self.source, self.weight, self.target, self.workspace


def bench_bytes(shape: Convolution, workspace: int) -> int:
    """What `open_bench` takes of the card."""
    return bytes_of_blocks(convolution_blocks(shape, workspace))


@contextmanager
def open_bench(
    memory: TrialMemory, stream: Stream, shape: Convolution, workspace: int
) -> Generator["PlanBench"]:
    """Memory for a convolution and so many bytes of workspace, all NaN."""
    blocks = convolution_blocks(shape, workspace)
    with memory.opened(stream, blocks) as places:
        yield PlanBench(stream, Places(**places, target_bytes=blocks["target"]))


class PlanBench:
    """Runs a convolution again and again in its own memory."""

    def __init__(self, stream: Stream, places: Places) -> None:
        self._stream = stream
        self.places = places

    def spoil(self, workspace: int) -> None:
        """Queue filling target, what lies behind it, and so much of the workspace with NaN."""
        places = self.places
        self._stream.fill(places.target, NAN, places.fenced_bytes)
        if workspace:
            self._stream.fill(places.workspace, NAN, workspace)

    def time(self, queue: Callable[[], None], best: float) -> float:
        """Microseconds of one run, median; fewer runs where it is far from the best."""
        return run_time(self._stream, queue, best)


def run_time(stream: Stream, queue: Callable[[], None], best: float) -> float:
    """Microseconds of one run, median; fewer runs where it is far from the best.

    Short ones are launched as one graph, as a program is: one by one they would take as long as the
    host needs to launch them.
    """
    queue()
    stream.wait()
    first = _timed(stream, queue, 1)
    if first > max(2 * best, _SHORT):
        return first
    repeats = int(min(20, max(3, 1000 // max(first, 1))))
    if first > _SHORT:
        return median(_timed(stream, queue, repeats) for _ in range(3))
    with CapturedGraph(stream, partial(_repeat, queue, repeats)) as graph:
        graph.launch()
        return median(_timed(stream, graph.launch, 1) for _ in range(3)) / repeats


def _timed(stream: Stream, queue: Callable[[], None], repeats: int) -> float:
    with stream.timed() as elapsed:
        _repeat(queue, repeats)
    return elapsed[0] / repeats * 1000


def _repeat(queue: Callable[[], None], repeats: int) -> None:
    for _ in range(repeats):
        queue()
