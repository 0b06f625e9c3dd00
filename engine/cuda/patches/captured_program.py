"""A lowered network in device memory, captured as one CUDA graph."""

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median

from ...compiler.kernels.launch import OVERFLOW, region_address
from ...compiler.kernels.step_launches import launches
from ...compiler.program.fitting import Fitted
from ...compiler.program.memory import scratch_name
from ...compiler.steps import Conv, Step, is_planned
from ...compiler.tensors import PATCHES, TRANSLATED
from ...errors import CudaError
from ..driver import CapturedGraph, DeviceBuffer, Stream
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
    with ExitStack() as opened:
        yield Program(fitted, constants, kernels, stream, opened)


class Program:
    """Runs a batch of patches."""

    def __init__(
        self,
        fitted: Fitted[Tactic],
        constants: Iterable[tuple[str, bytes]],
        kernels: Kernels,
        stream: Stream,
        opened: ExitStack,
    ) -> None:
        """opened: closes memory and graph."""
        self._fitted = fitted
        self._kernels = kernels
        self._stream = stream
        self._base = opened.enter_context(DeviceBuffer(fitted.memory.bytes)).address
        for name, content in constants:
            stream.upload_now(self.at(name), content)
        # Loads what is loaded on first use, which may not happen during a capture.
        self._queue()
        stream.wait()
        self._graph = opened.enter_context(CapturedGraph(stream, self._queue))

    def at(self, name: str) -> int:
        """Return the device address of a tensor, table or constant, or of the input or output."""
        return self._base + self._fitted.memory.offsets[name]

    @property
    def patches(self) -> int:
        """Device address of the input."""
        return self.at(PATCHES)

    @property
    def translated(self) -> int:
        """Device address of the output."""
        return self.at(TRANSLATED)

    @property
    def overflow(self) -> int:
        """Device address of the int32 that becomes nonzero once a result was not finite."""
        return self.at(OVERFLOW)

    def launch(self) -> None:
        """Queue one run."""
        self._graph.launch()

    def _queue(self) -> None:
        """Queue all steps."""
        self._stream.fill(self.overflow, 0, 4)
        for index, step in enumerate(self._fitted.lowered.steps):
            self._queue_step(index, step)

    def _queue_step(self, index: int, step: Step) -> None:
        scratch = self._fitted.memory.offsets.get(scratch_name(index), 0) + self._base
        if not is_planned(step):
            self._launch(step, scratch)
            return
        try:
            self._convolve(step, scratch)
        except CudaError as error:
            raise error.at(step.layer) from error

    def _convolve(self, step: Conv, scratch: int) -> None:
        tactic = self._fitted.tactics[step.shape]
        if tactic.plans is None:
            self._launch(step, scratch)
            return
        source, weight = self.at(step.source.name), self.at(step.weight)
        tactic.plans.run(tactic.index, source, weight, region_address(step, self.at), scratch)

    def _launch(self, step: Step, scratch: int) -> None:
        for launch in launches(step, self.at, self._fitted.lowered.gpu, scratch):
            self._kernels.launch(self._stream, launch)

    def times(self, repeats: int) -> list[float]:
        """Return seconds of each of many runs on the GPU, queued without a pause between them."""
        return self._stream.times(self.launch, repeats)

    def step_times(self, repeats: int) -> list[tuple[Step, float]]:
        """Return microseconds of each step, the median of repeated runs."""
        times: list[tuple[Step, float]] = []
        for index, step in enumerate(self._fitted.lowered.steps):
            with CapturedGraph(self._stream, partial(self._queue_often, index, step)) as graph:
                measured = median(self._stream.times(graph.launch, repeats))
            times.append((step, measured * 1e6 / _OFTEN))
        return times

    def _queue_often(self, index: int, step: Step) -> None:
        for _ in range(_OFTEN):
            self._queue_step(index, step)
