"""A lowered network in device memory, captured as one CUDA graph."""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Self

from ..compiler.launches.launch import OVERFLOW, region_address
from ..compiler.launches.steps import launches
from ..compiler.memory.plan import MemoryPlan, scratch_name
from ..compiler.steps import PATCHES, TRANSLATED, Convolution, Convolve, Lowered, Step
from ..compiler.weight_layout import encoded
from ..errors import CudaError
from .driver import CapturedGraph, DeviceBuffer, Event, Stream
from .kernel_images import Kernels
from .plan_search import Algorithm

_OFTEN = 20


class Program:
    """Runs a batch of patches; a context manager that owns the memory and the graph."""

    def __init__(
        self,
        lowered: Lowered,
        plan: MemoryPlan,
        algorithms: Mapping[Convolution, Algorithm],
        kernels: Kernels,
        stream: Stream,
    ) -> None:
        self._lowered = lowered
        self._plan = plan
        self._algorithms = algorithms
        self._kernels = kernels
        self._stream = stream
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._arena = opening.enter_context(DeviceBuffer(self._plan.bytes))
            for name, array in self._lowered.constants.items():
                precision = (
                    self._lowered.layout.precision if name in self._lowered.weights else "fp32"
                )
                self._stream.upload_now(self._at(name), encoded(array, precision))
            # Loads what is loaded on first use, which may not happen during a capture.
            self._queue()
            self._stream.wait()
            self._graph = opening.enter_context(CapturedGraph(self._stream, self._queue))
            self._opened = opening.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _at(self, name: str) -> int:
        return self._arena.address + self._plan.offsets[name]

    @property
    def patches(self) -> int:
        """Device address of the input."""
        return self._at(PATCHES)

    @property
    def translated(self) -> int:
        """Device address of the output."""
        return self._at(TRANSLATED)

    @property
    def overflow(self) -> int:
        """Device address of the int32 that is not 0 once a result was not finite."""
        return self._at(OVERFLOW)

    def launch(self) -> None:
        """Queue one run."""
        self._graph.launch()

    def times(self, repeats: int) -> list[float]:
        """Seconds of each of many runs on the card, queued without a pause between them."""
        with ExitStack() as opened:
            marks = [opened.enter_context(Event()) for _ in range(repeats + 1)]
            self.launch()  # so that the card is at work while the host queues the first timed run
            marks[0].record(self._stream)
            for mark in marks[1:]:
                self.launch()
                mark.record(self._stream)
            marks[-1].wait()
            return [after.seconds_since(before) for before, after in pairwise(marks)]

    def step_times(self, repeats: int) -> list[tuple[Step, float]]:
        """Microseconds of each step, run again and again by itself; median."""
        times: list[tuple[Step, float]] = []
        for index, step in enumerate(self._lowered.steps):
            measured: list[float] = []
            with CapturedGraph(self._stream, partial(self._queue_often, index, step)) as graph:
                for _ in range(repeats):
                    with self._stream.timed() as elapsed:
                        graph.launch()
                    measured.append(elapsed[0] * 1000 / _OFTEN)
            times.append((step, median(measured)))
        return times

    def _queue_often(self, index: int, step: Step) -> None:
        for _ in range(_OFTEN):
            self._queue_step(index, step)

    def poison(self) -> None:
        """Set every byte that a run must write before reading to NaN; for tests."""
        kept = {*self._lowered.constants, PATCHES}
        bounds = sorted((o, n in kept) for n, o in self._plan.offsets.items())
        for (start, is_kept), (end, _) in pairwise([*bounds, (self._plan.bytes, True)]):
            if not is_kept:
                self._stream.fill(self._arena.address + start, 0xFF, end - start)

    def _queue(self) -> None:
        self._stream.fill(self.overflow, 0, 4)
        for index, step in enumerate(self._lowered.steps):
            self._queue_step(index, step)

    def _queue_step(self, index: int, step: Step) -> None:
        scratch = self._plan.offsets.get(scratch_name(index), 0) + self._arena.address
        if isinstance(step, Convolve):
            try:
                self._convolve(step, scratch)
            except CudaError as error:
                raise error.at(step.layer) from error
            return
        for launch in launches(step, self._at, scratch):
            self._kernels.launch(self._stream, launch)

    def _convolve(self, step: Convolve, scratch: int) -> None:
        algorithm = self._algorithms[step.shape]
        if algorithm.plans is None:
            for launch in launches(step, self._at):
                self._kernels.launch(self._stream, launch)
            return
        algorithm.plans.run(
            algorithm.index,
            self._at(step.source.name),
            self._at(step.weight),
            region_address(step, self._at),
            scratch,
        )
