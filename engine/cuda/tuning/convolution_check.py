"""Checks that a tactic computes its convolution: compares it with the plain kernel on the GPU.

On whole numbers every voxel and channel must equal the plain kernel's to the last bit; on usual
numbers the error must be within the rounding bound of sums in double. A tactic that is to be used
is run many times, because only that exposes one that fails now and then. Where maps are
recomputed, it must also compute the same bytes of a voxel wherever it is in a block.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...compiler.kernels import checks
from ...compiler.kernels.checks import (
    NOISE,
    RUNS,
    NumberSet,
    exposing_sets,
    rounding_bound,
    sampled_voxels,
    unlike_patches,
)
from ...compiler.program.memory import GUARD, aligned
from ...compiler.steps import ConvShape
from ...compiler.tensors import NUMBER_BYTES, Tensor
from ...compiler.weight_layout import encoded
from ...network.layers import Triple, triple
from ..driver import Stream
from .bench import Output, TrialBench
from .tactics import lone_tensors

VERSION = "1"
"""Raised when the check finds more than before, so that kept plans are checked again."""


@dataclass(frozen=True, slots=True)
class TacticVerdict:
    """Result of a check. wrong: why the tactic is rejected, None if it is right.

    error: the largest error on usual numbers, relative to the rounding bound.
    """

    wrong: str | None
    error: float


class ConvolutionCheck:
    """Compares tactics of one convolution with the plain kernel's results on the same numbers.

    Those are computed first. Usual numbers are left on the bench.
    """

    def __init__(self, bench: TrialBench, shape: ConvShape) -> None:
        voxels = sampled_voxels(shape)
        bench.upload("voxels", voxels.tobytes())
        self._bench = bench
        self._shape = shape
        self._samples = len(voxels)
        self._sets = exposing_sets(shape)
        self._right = self._expected()

    def verdict(self, queue: Callable[[], None], workspace: int) -> TacticVerdict:
        """Judge a tactic by one run on each set of numbers.

        queue: queues a run. workspace: bytes of workspace that the run takes.
        """
        bench = self._bench
        for numbers in self._sets:
            self._fill_alike(self._shape, numbers)
            self._run(queue, workspace)
        self._fill(self._shape, NOISE)
        bench.spoil("target", self._fenced_bytes)
        self._spoil_workspace(workspace)
        queue()
        self._compare()
        computed = bench.fingerprints()
        found = bench.download("found", 2, np.uint32)
        wrong, error = int(found[0]), float(found.view(np.float32)[1])
        for numbers, right, got in zip(self._sets, self._right, computed, strict=True):
            if right != got:
                return TacticVerdict(f"wrong results ({numbers.name})", error)
        return TacticVerdict(f"{error:.2g} times the rounding error" if wrong else None, error)

    def unsteady(
        self, queue: Callable[[], None], workspace: int, meanwhile: Callable[[], None]
    ) -> str | None:
        """Return what is wrong in many runs on the same numbers, None if nothing is.

        meanwhile: called while the GPU is busy with them.
        """
        self._fill_alike(self._shape, self._sets[0])
        for _ in range(RUNS):
            self._run(queue, workspace)
        meanwhile()
        wrong = int((self._bench.fingerprints() != self._right[0]).sum())
        self._fill(self._shape, NOISE)
        return f"wrong results in {wrong} of {RUNS} runs" if wrong else None

    def _expected(self) -> npt.NDArray[Any]:
        """Return fingerprints of right results; leave the expected sums for usual numbers."""
        shape, bench = self._shape, self._bench
        source, weight, target, voxels, sums = map(
            bench.at, ("source", "weight", "target", "voxels", "sums")
        )
        few = unlike_patches(replace(shape, split_fp16=False))
        plain = checks.plain_convolution(few, (source, weight, target))

        def queue() -> None:
            bench.launch([plain])
            self._repeat(target, shape.batch, lone_tensors(few)[1])

        for numbers in self._sets:
            self._fill(few, numbers)
            self._run(queue, 0)
        self._fill(shape, NOISE)
        bench.launch([checks.expect(shape, (source, weight), voxels, sums, self._samples)])
        return bench.fingerprints()

    def _compare(self) -> None:
        shape, bench = self._shape, self._bench
        target, voxels, sums, found = map(bench.at, ("target", "voxels", "sums", "found"))
        bench.stream.fill(found, 0, 8)
        bound = rounding_bound(shape)
        bench.launch([checks.compare(shape, target, voxels, sums, self._samples, bound, found)])

    @property
    def _fenced_bytes(self) -> int:
        """Bytes of the target and of the guard after it, which no tactic may write."""
        return aligned(lone_tensors(self._shape)[1].bytes) + GUARD

    def _run(self, queue: Callable[[], None], workspace: int) -> None:
        """Run into a target of NaN, and fingerprint it with the guard after it."""
        self._spoil_workspace(workspace)
        number_bytes = NUMBER_BYTES[self._shape.precision]
        self._bench.run(queue, Output("target", self._fenced_bytes, number_bytes))

    def _spoil_workspace(self, workspace: int) -> None:
        if workspace:
            self._bench.spoil("workspace", workspace)

    def _fill_alike(self, shape: ConvShape, numbers: NumberSet) -> None:
        few = unlike_patches(shape)
        self._fill(few, numbers)
        self._repeat(self._bench.at("source"), shape.batch, lone_tensors(few)[0])

    def _repeat(self, address: int, batch: int, few: Tensor) -> None:
        """Copy the first patches of a tensor after them until there are `batch` of them."""
        each = few.bytes // few.batch
        for patch in range(few.batch, batch):
            source = address + patch % few.batch * each
            self._bench.stream.copy(address + patch * each, source, each)

    def _fill(self, shape: ConvShape, numbers: NumberSet) -> None:
        bench, gpu = self._bench, self._bench.kernels.gpu
        source, _ = lone_tensors(shape)
        address, groups = bench.at("source"), shape.groups
        bench.launch(
            [
                checks.fill_tensor(source, numbers.source, address, gpu, groups),
                checks.fill_weight(shape, numbers.weight, bench.at("weight"), gpu),
            ]
        )


def gives_the_same_anywhere(
    shape: ConvShape, source: int, target: int, run: Callable[[], object], stream: Stream
) -> bool:
    """Compare the results for noise and for the same noise moved by some voxels; wait for both.

    source, target: addresses of the tensors, whose content is lost. run: queues the tactic.
    """
    read = (shape.batch, *shape.source_extents, shape.source_channels)
    extents = (shape.batch, *shape.target_extents, shape.target_channels)
    noise = np.random.default_rng(0).uniform(-1, 1, read).astype(np.float32)
    by = _moves(shape)
    results: list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = []
    for content in (noise, np.roll(noise, by, (1, 2, 3))):
        stream.upload_now(source, encoded(content, shape.precision))
        run()
        result = np.empty((*extents, NUMBER_BYTES[shape.precision]), np.uint8)
        stream.download(result.ctypes.data, target, result.nbytes)
        stream.wait()
        results.append(result)
    here = tuple(slice(None, -step or None) for step in by)
    there = tuple(slice(step, None) for step in by)
    return np.array_equal(results[0][:, *here], results[1][:, *there])


def _moves(shape: ConvShape) -> Triple:
    """Return voxels along each axis, of which some are no multiple of any tile."""
    return triple(
        min(step, extent - 1) for step, extent in zip((1, 2, 3), shape.target_extents, strict=True)
    )
