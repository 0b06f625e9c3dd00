"""Guarded GPU memory of one trial, with its clock and fingerprints of its results."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from ...compiler.gpu_properties import GpuProperties
from ...compiler.kernels import checks
from ...compiler.kernels.checks import NOISE
from ...compiler.kernels.launch import Launch
from ...compiler.kernels.step_launches import launches, scratch_bytes
from ...compiler.lowered import Lowered
from ...compiler.program.memory import FINGERPRINTS, PARTIALS, between_guards
from ...compiler.steps import Step
from ...compiler.tensors import AffineTable, Tensor
from ...errors import DeviceMemoryError
from ..driver import CapturedGraph, DeviceBuffer, Stream
from ..kernel_images import Kernels

_NAN = 0xFF
"""Every byte of a NaN, in all precisions."""


@dataclass(frozen=True, slots=True)
class Output:
    """Start of a block that a run writes. name: of the block. bytes: of whole words.

    number_bytes: of a number.
    """

    name: str
    bytes: int
    number_bytes: int


@contextmanager
def open_bench(
    kernels: Kernels, stream: Stream, sizes: Mapping[str, int], budget: int
) -> Generator["TrialBench"]:
    """Memory blocks of these sizes by name, with NaN in and around them.

    budget: bytes that a trial may take at most. Raises DeviceMemoryError if the blocks need more,
    or more than the GPU has left.
    """
    arena = between_guards(sizes)
    if arena.bytes > budget:
        raise DeviceMemoryError(
            f"A test of a layer needs {-(-arena.bytes // 2**20)} MiB of GPU memory, but only "
            f"{budget >> 20} MiB may be used; use a larger setting vram-limit.",
            wanted=arena.bytes,
            free=budget,
        )
    with DeviceBuffer(arena.bytes) as buffer:
        stream.fill(buffer.address, _NAN, arena.bytes)
        addresses = {name: buffer.address + offset for name, offset in arena.offsets.items()}
        yield TrialBench(kernels, stream, addresses)


class TrialBench:
    """Runs trials in blocks of memory at `addresses`."""

    def __init__(self, kernels: Kernels, stream: Stream, addresses: Mapping[str, int]) -> None:
        self.kernels = kernels
        self.stream = stream
        self._addresses = addresses
        self._taken = 0

    def at(self, name: str) -> int:
        """Return the address of a block."""
        return self._addresses[name]

    def launch(self, launches: Iterable[Launch]) -> None:
        """Queue custom kernels."""
        for launch in launches:
            self.kernels.launch(self.stream, launch)

    def upload(self, name: str, content: bytes | memoryview) -> None:
        """Fill a block, and wait."""
        self.stream.upload_now(self.at(name), content)

    def download(self, name: str, count: int, kind: type[Any]) -> npt.NDArray[Any]:
        """Return numbers of a block once the queue is done."""
        numbers = np.empty(count, kind)
        self.stream.download(numbers.ctypes.data, self.at(name), numbers.nbytes)
        self.stream.wait()
        return numbers

    def spoil(self, name: str, size: int) -> None:
        """Queue filling bytes from the start of a block with NaN."""
        self.stream.fill(self.at(name), _NAN, size)

    def run(self, queue: Callable[[], None], *outputs: Output) -> None:
        """Queue a run whose outputs are spoilt before, and the fingerprint of each."""
        for output in outputs:
            self.spoil(output.name, output.bytes)
        queue()
        for output in outputs:
            into = self.at(FINGERPRINTS) + 8 * self._taken
            self.stream.fill(into, 0, 8)
            address, gpu = self.at(output.name), self.kernels.gpu
            self.launch([checks.fingerprint(address, output.bytes, output.number_bytes, into, gpu)])
            self._taken += 1

    def fingerprints(self) -> npt.NDArray[Any]:
        """Return the fingerprints since the last call in their order, once the queue is done."""
        taken, self._taken = self._taken, 0
        return self.download(FINGERPRINTS, taken, np.uint64)

    def time(self, queue: Callable[[], None], best: float = inf) -> float:
        """Return the shortest time of a run in microseconds; one run's if far above `best`.

        Other programs on the GPU only make a run longer: the shortest shows them least. Runs are
        launched as one graph, as a program is: one by one, each would take as long as the host
        needs to launch it, which is longer than most kernels run, and varies; and between them
        the GPU would compute for others, for milliseconds.
        """
        queue()  # what it loads at first cannot be captured
        self.stream.wait()
        first = self._shortest(queue, 2, 1)
        if first > 2 * best:
            return first
        return self._shortest(queue, int(min(20, max(1, 1000 // max(first, 1)))), 3)

    def _shortest(self, queue: Callable[[], None], runs: int, rounds: int) -> float:
        """Return the microseconds of a run, in the shortest round of so many."""
        with CapturedGraph(self.stream, partial(_repeat, queue, runs)) as graph:
            return 1e6 * min(self.stream.times(graph.launch, rounds)) / runs


def _repeat(queue: Callable[[], None], repeats: int) -> None:
    for _ in range(repeats):
        queue()


def time_of_steps(
    steps: Iterable[Step], lowered: Lowered, kernels: Kernels, stream: Stream, budget: int
) -> float:
    """Return the microseconds of steps of a program, each run by itself on a bench.

    budget: bytes of a bench. Raises DeviceMemoryError.
    """
    return sum(_time_of_step(step, lowered, kernels, stream, budget) for step in steps)


def _time_of_step(
    step: Step, lowered: Lowered, kernels: Kernels, stream: Stream, budget: int
) -> float:
    with _bench_of_step(step, lowered, kernels, stream, budget) as bench:
        ready = tuple(launches(step, bench.at, lowered.gpu, bench.at(PARTIALS)))
        return bench.time(partial(bench.launch, ready))


@contextmanager
def _bench_of_step(
    step: Step, lowered: Lowered, kernels: Kernels, stream: Stream, budget: int
) -> Generator[TrialBench]:
    """Memory of all that a step reads and writes, with noise in what it reads."""
    gpu = lowered.gpu
    constants = {
        name: lowered.encoded_constant(name)
        for name in sorted(_named(step, gpu) & lowered.constant_bytes().keys())
    }
    touched = {item.name: item for item in step.flow.touches if item.name not in constants}
    sizes = {
        **{name: len(content) for name, content in constants.items()},
        **{name: item.bytes for name, item in touched.items()},
        PARTIALS: scratch_bytes(step, gpu),
    }
    with open_bench(kernels, stream, sizes, budget) as bench:
        for name, content in constants.items():
            bench.upload(name, content)
        for name in touched.keys() - step.flow.written_names:
            item = touched[name]
            if isinstance(item, Tensor):
                bench.launch([checks.fill_tensor(item, NOISE.source, bench.at(name), gpu)])
            else:
                bench.upload(name, _noise(item))
        yield bench


def _named(step: Step, gpu: GpuProperties) -> set[str]:
    """Return all names whose addresses a step's launches need."""
    names: set[str] = set()

    def noted(name: str) -> int:
        names.add(name)
        return 0

    launches(step, noted, gpu)
    return names


def _noise(table: AffineTable) -> bytes:
    """Return factors and summands of both signs."""
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, table.bytes // 4).astype(np.float32).tobytes()
