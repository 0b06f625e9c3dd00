"""A lowered network in device memory, captured as one CUDA graph."""

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from ...compiler.kernels.launch import OVERFLOW, region_address
from ...compiler.kernels.step_launches import launches
from ...compiler.program.fitting import Fitted
from ...compiler.program.memory import scratch_name
from ...compiler.steps import Conv, Step, is_planned
from ...compiler.tensors import PATCHES, TRANSLATED
from ...errors import CudaError
from ..driver import CapturedGraph, CudaEvent, DeviceBuffer, Stream
from ..kernel_images import Kernels
from ..tuning.tactics import Tactic

_OFTEN = 20


@contextmanager
def open_program(
    fitted: Fitted[Tactic],
    constants: Iterable[tuple[str, bytes]],
    kernels: Kernels,
    stream: Stream,
) -> Generator["Program"]:
    """Open the program with its memory and its graph, to be run on the stream.

    constants: encoded, by name.
    """
    with DeviceBuffer(fitted.memory.bytes) as arena:
        placed = _Placed(fitted, kernels, stream, arena.address)
        for name, content in constants:
            stream.upload_now(placed.at(name), content)
        # Loads what is loaded on first use, which may not happen during a capture.
        placed.queue()
        stream.wait()
        with CapturedGraph(stream, placed.queue) as graph:
            yield Program(placed, graph)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A lowered network whose memory begins at the device address `base`."""

    fitted: Fitted[Tactic]
    kernels: Kernels
    stream: Stream
    base: int

    def at(self, name: str) -> int:
        """Return the device address of a tensor, table or constant, or of the input or output."""
        return self.base + self.fitted.memory.offsets[name]

    def queue(self) -> None:
        """Queue all steps."""
        self.stream.fill(self.at(OVERFLOW), 0, 4)
        for index, step in enumerate(self.fitted.lowered.steps):
            self.queue_step(index, step)

    def queue_step(self, index: int, step: Step) -> None:
        """Queue one step."""
        scratch = self.fitted.memory.offsets.get(scratch_name(index), 0) + self.base
        if is_planned(step):
            try:
                self._convolve(step, scratch)
            except CudaError as error:
                raise error.at(step.layer) from error
            return
        self._launch(step, scratch)

    def _convolve(self, step: Conv, scratch: int) -> None:
        tactic = self.fitted.tactics[step.shape]
        if tactic.plans is None:
            self._launch(step, scratch)
            return
        tactic.plans.run(
            tactic.index,
            self.at(step.source.name),
            self.at(step.weight),
            region_address(step, self.at),
            scratch,
        )

    def _launch(self, step: Step, scratch: int) -> None:
        for launch in launches(step, self.at, self.fitted.lowered.gpu, scratch):
            self.kernels.launch(self.stream, launch, early=True)


class Program:
    """Runs a batch of patches."""

    def __init__(self, placed: _Placed, graph: CapturedGraph) -> None:
        self._placed = placed
        self._stream = placed.stream
        self._graph = graph

    @property
    def patches(self) -> int:
        """Device address of the input."""
        return self._placed.at(PATCHES)

    @property
    def translated(self) -> int:
        """Device address of the output."""
        return self._placed.at(TRANSLATED)

    @property
    def overflow(self) -> int:
        """Device address of the int32 that becomes nonzero once a result was not finite."""
        return self._placed.at(OVERFLOW)

    def launch(self) -> None:
        """Queue one run."""
        self._graph.launch()

    def times(self, repeats: int) -> list[float]:
        """Return seconds of each of many runs on the GPU, queued without a pause between them."""
        with ExitStack() as opened:
            marks = [opened.enter_context(CudaEvent()) for _ in range(repeats + 1)]
            self.launch()  # so that the GPU is busy while the host queues the first timed run
            marks[0].record(self._stream)
            for mark in marks[1:]:
                self.launch()
                mark.record(self._stream)
            marks[-1].wait()
            return [after.seconds_since(before) for before, after in pairwise(marks)]

    def step_times(self, repeats: int) -> list[tuple[Step, float]]:
        """Return microseconds of each step, the median of repeated runs."""
        times: list[tuple[Step, float]] = []
        for index, step in enumerate(self._placed.fitted.lowered.steps):
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
            self._placed.queue_step(index, step)
