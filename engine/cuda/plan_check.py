"""Whether a plan computes its convolution: compared on the card with the plain own kernel.

On whole numbers its result must be that kernel's to the last bit, in every voxel and channel; on
usual numbers it must be within the bound of rounding of sums in double. A plan that is to be used
does the same again and again, as one that is wrong once in a while is found by that alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..compiler.checks import (
    NOISE,
    RUNS,
    NumberSet,
    exposing_sets,
    rounding_bound,
    sampled_voxels,
    unlike_patches,
)
from ..compiler.convolution import Convolution
from ..compiler.kernels.launch import Launch
from ..compiler.launches import checks
from ..compiler.launches.steps import launches
from ..compiler.steps import Conv
from ..compiler.tensors import NUMBER_BYTES, Tensor
from .driver import Stream
from .kernel_images import Kernels
from .plan_bench import PlanBench

VERSION = "1"
"""Raised when the check finds more than before, so that kept plans are checked again."""


@dataclass(frozen=True, slots=True)
class QueuedPlan:
    """A way of doing the convolution. queue: queues a run. workspace: bytes that it takes."""

    queue: Callable[[], None]
    workspace: int


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """What came of a check. wrong: why the plan is refused, None if it is right.

    error: the largest on usual numbers, in bounds of rounding.
    """

    wrong: str | None
    error: float


class Fingerprints:
    """Fingerprints of what lies in device memory, one after another; address: where they go."""

    def __init__(self, kernels: Kernels, stream: Stream, address: int) -> None:
        self._kernels = kernels
        self._stream = stream
        self._address = address
        self._taken = 0

    def take(self, address: int, size: int, number_bytes: int) -> None:
        """Queue the next one, of so many bytes in whole words."""
        into, card = self._address + 8 * self._taken, self._kernels.card
        self._stream.fill(into, 0, 8)
        launch = checks.fingerprint(address, size, number_bytes, into, card)
        self._kernels.launch(self._stream, launch)
        self._taken += 1

    def read(self) -> npt.NDArray[Any]:
        """Those that were taken since the last time, once the queue is done."""
        taken, self._taken = self._taken, 0
        return downloaded(self._stream, self._address, taken, np.uint64)


def downloaded(stream: Stream, address: int, count: int, kind: type[Any]) -> npt.NDArray[Any]:
    """So many numbers of device memory, once the queue is done."""
    numbers = np.empty(count, kind)
    stream.download(numbers.ctypes.data, address, numbers.nbytes)
    stream.wait()
    return numbers


class PlanCheck:
    """Compares plans of one convolution with what the plain own kernel made of the same numbers.

    What that makes is computed first; usual numbers are left on the bench.
    """

    def __init__(
        self, kernels: Kernels, stream: Stream, shape: Convolution, bench: PlanBench
    ) -> None:
        voxels = sampled_voxels(shape)
        stream.upload_now(bench.places.voxels, voxels.tobytes())
        self._kernels = kernels
        self._stream = stream
        self._shape = shape
        self._bench = bench
        self._samples = len(voxels)
        self._fingerprints = Fingerprints(kernels, stream, bench.places.fingerprints)
        self._sets = exposing_sets(shape)
        self._right = self._expected()

    def verdict(self, way: QueuedPlan) -> PlanVerdict:
        """By one run on each set of numbers; leaves usual numbers on the bench."""
        for numbers in self._sets:
            self._fill_alike(self._shape, numbers)
            self._run(way)
        self._fill(self._shape, NOISE)
        self._bench.spoil(way.workspace)
        way.queue()
        self._compare()
        made = self._fingerprints.read()
        found = downloaded(self._stream, self._bench.places.found, 2, np.uint32)
        wrong, error = int(found[0]), float(found.view(np.float32)[1])
        for numbers, right, got in zip(self._sets, self._right, made, strict=True):
            if right != got:
                return PlanVerdict(f"wrong results ({numbers.name})", error)
        return PlanVerdict(f"{error:.2g} times the error of rounding" if wrong else None, error)

    def _compare(self) -> None:
        shape, places = self._shape, self._bench.places
        self._stream.fill(places.found, 0, 8)
        compared = places.target, places.voxels, places.sums
        bound = rounding_bound(shape)
        self._launch(checks.compare(shape, *compared, self._samples, bound, places.found))

    def unsteady(self, way: QueuedPlan) -> str | None:
        """What is wrong in many runs on the same numbers; None if nothing is."""
        self._fill_alike(self._shape, self._sets[0])
        for _ in range(RUNS):
            self._run(way)
        wrong = int((self._fingerprints.read() != self._right[0]).sum())
        self._fill(self._shape, NOISE)
        return f"wrong results in {wrong} of {RUNS} runs" if wrong else None

    def _run(self, way: QueuedPlan) -> None:
        """Into a target of NaN, and the fingerprint of that and what lies behind it."""
        self._bench.spoil(way.workspace)
        way.queue()
        places, item = self._bench.places, NUMBER_BYTES[self._shape.precision]
        self._fingerprints.take(places.target, places.fenced_bytes, item)

    def _expected(self) -> npt.NDArray[Any]:
        """Fingerprints of right results; the sums for usual numbers are written down beside."""
        shape, places = self._shape, self._bench.places
        few = unlike_patches(replace(shape, split_fp16=False))
        plain = checks.plain(few, places.addresses[:3])

        def queue() -> None:
            self._launch(plain)
            self._repeat(places.target, shape.batch, lone_tensors(few)[1])

        for numbers in self._sets:
            self._fill(few, numbers)
            self._run(QueuedPlan(queue, 0))
        self._fill(shape, NOISE)
        given = places.source, places.weight
        self._launch(checks.expect(shape, given, places.voxels, places.sums, self._samples))
        return self._fingerprints.read()

    def _fill_alike(self, shape: Convolution, numbers: NumberSet) -> None:
        few = unlike_patches(shape)
        self._fill(few, numbers)
        self._repeat(self._bench.places.source, shape.batch, lone_tensors(few)[0])

    def _repeat(self, address: int, batch: int, few: Tensor) -> None:
        """Copy the first patches of a tensor behind them until it has so many."""
        each = few.bytes // few.batch
        for patch in range(few.batch, batch):
            source = address + patch % few.batch * each
            self._stream.copy(address + patch * each, source, each)

    def _fill(self, shape: Convolution, numbers: NumberSet) -> None:
        places, card = self._bench.places, self._kernels.card
        source, _ = lone_tensors(shape)
        self._launch(checks.fill_tensor(source, numbers.source, places.source, card, shape.groups))
        self._launch(checks.fill_weight(shape, numbers.weight, places.weight, card))

    def _launch(self, launch: Launch) -> None:
        self._kernels.launch(self._stream, launch)


def run_own(
    kernels: Kernels,
    stream: Stream,
    shape: Convolution,
    addresses: tuple[int, int, int, int],
) -> None:
    """Queue a convolution by the own kernel; addresses: of source, weight, target and workspace."""
    source, target = lone_tensors(shape)
    step = Conv.of_shape("trial", shape, source, target, "weight")
    places: dict[str, int] = dict(zip(("source", "weight", "target"), addresses[:3], strict=True))
    for launch in launches(step, lambda name: places[name], kernels.card):
        kernels.launch(stream, launch)


def lone_tensors(shape: Convolution) -> tuple[Tensor, Tensor]:
    """Source and target of a convolution that stands by itself."""
    scale = 1.0 if shape.split_fp16 else None
    batch, precision = shape.batch, shape.precision
    return (
        Tensor("source", batch, shape.source_extents, shape.source_channels, precision, scale),
        Tensor("target", batch, shape.target_extents, shape.target_channels, precision),
    )
