"""Device memory to try one convolution in, and the clock."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from statistics import median

from ..compiler.convolution import Convolution
from ..compiler.memory.plan import ALIGNMENT, aligned
from ..compiler.tensors import NUMBER_BYTES
from .driver import CapturedGraph, DeviceBuffer, Stream

GUARD = ALIGNMENT
"""Bytes of NaN on both sides of what a convolution may read or write."""

_NAN = 0xFF  # every byte of one, in all precisions

_SHORT = 100
"""Microseconds up to which the time of a run is hidden by what the host takes to launch it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Device addresses of a convolution's tensors.

    source, weight, target, workspace: addresses. target_bytes: of the target alone.
    """

    source: int
    weight: int
    target: int
    workspace: int
    target_bytes: int

    @property
    def fenced_bytes(self) -> int:
        """Of the target and of what lies behind it, which no plan may write."""
        return aligned(self.target_bytes) + GUARD

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Of source, weight, target and workspace."""
        return self.source, self.weight, self.target, self.workspace


@contextmanager
def open_bench(stream: Stream, shape: Convolution, workspace: int) -> Generator["PlanBench"]:
    """Memory for a convolution and so many bytes of workspace, all NaN."""
    item = NUMBER_BYTES[shape.precision]
    source = shape.batch * prod(shape.source_extents) * shape.source_channels * item
    target = shape.batch * prod(shape.target_extents) * shape.target_channels * item
    weight = shape.weights * item
    sizes = (source, weight, target, workspace)
    places, end = list[int](), GUARD
    for size in sizes:
        places.append(end)
        end += aligned(size) + GUARD
    with DeviceBuffer(end) as buffer:
        stream.fill(buffer.address, _NAN, end)
        at = [buffer.address + place for place in places]
        yield PlanBench(stream, Places(*at, target_bytes=target))


class PlanBench:
    """Runs a convolution again and again in its own memory."""

    def __init__(self, stream: Stream, places: Places) -> None:
        self._stream = stream
        self.places = places

    def spoil(self, workspace: int) -> None:
        """Queue filling target, what lies behind it, and so much of the workspace with NaN."""
        places = self.places
        self._stream.fill(places.target, _NAN, places.fenced_bytes)
        if workspace:
            self._stream.fill(places.workspace, _NAN, workspace)

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
