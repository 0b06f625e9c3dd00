"""Checks that the custom kernel of a layer computes what the plain kernels do on this GPU.

A step on Tensor Cores and the plain steps of the same result are run on whole numbers, for which
both results are equal to the last bit. Statistics that a step takes of its result are compared with
those of a pass of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count, repeat
from math import prod, sqrt
from typing import Any

import numpy as np

from ...compiler.blocks import BlockGrid, BlockRun
from ...compiler.kernels import checks
from ...compiler.kernels.checks import (
    RUNS,
    Filling,
    host_signs,
    sparse_signs,
    whole_numbers,
)
from ...compiler.kernels.launch import Launch
from ...compiler.kernels.plain import (
    PLAIN_WEIGHT,
    PlainCounterpart,
    of_one_patch,
    plain_counterpart,
)
from ...compiler.kernels.step_launches import (
    block_launches,
    launches,
    measured_volume,
    scratch_bytes,
)
from ...compiler.program.memory import PARTIALS, layer_blocks
from ...compiler.steps import Conv, Statistics, Step
from ...compiler.tensors import COUNTERS, NUMBER_BYTES, PATCHES, TRANSLATED, TensorView
from ...compiler.weight_layout import encoded
from ...network.layers import FloatArray, triple
from ...options import Precision
from ..driver import Stream
from ..kernel_images import Kernels
from .bench import Output, TrialBench, open_bench

_SIGNS = Filling("signs", 0.75)

VERSION = "2"
"""Raised when the check finds more than before, so that layers are checked again."""

_STATISTICS_BOUND = 2e-5
"""Largest error of factors, relative to their size, and of summands, in standard deviations. Sums
in float of some million numbers differ by a tenth of it; a skipped block changes them by
more.
"""

_ROUNDED: dict[Precision, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Relative rounding error of a stored number, which a step may measure before it is rounded.

The mean of n numbers moves by less than that over the square root of n, and those of hundreds of
channels by less than four times as much.
"""


def wrong_step(
    step: Conv,
    kernels: Kernels,
    stream: Stream,
    budget: int,
    grid: BlockGrid | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> str | None:
    """Return what is wrong with the custom kernel of a step, None if nothing is.

    budget: bytes that the trial may take. grid: of a volume of one block, for kernels of blocks;
    their statistics are also checked in a volume that ends inside its block. meanwhile: called
    while the GPU is busy with many runs.
    """
    trial = plain_counterpart(of_one_patch(step) if grid else step)
    with open_bench(kernels, stream, layer_blocks(trial, kernels.gpu), budget) as bench:
        check = _LayerCheck(trial, bench, grid)
        check.fill(_SIGNS)
        right = check.plainly()
        results, *tables = check.in_many_runs(check.outputs, meanwhile)
        if wrong := int((results != right).sum()):
            return f"wrong results in {wrong} of {RUNS} runs"
        if trial.measured is None:
            return None
        found = _wrong_statistics(check, trial.measured) or _unsteady(*tables)
        if found or grid is None:
            return found
        check = _LayerCheck(trial, bench, _that_ends_inside(trial.measured.source))
        found = _wrong_statistics(check, trial.measured)
        return found or _unsteady(*check.in_many_runs(check.outputs[1:], meanwhile))


def _that_ends_inside(measured: TensorView) -> BlockGrid:
    """Grid of one block whose volume ends inside it and inside a tile of what kernels measure.

    Blocks of usual extents hold no whole number of tiles of that volume.
    """
    cell = 2 if measured.shuffled else 1
    sizes = measured.tensor.extents
    inside = triple(cell * max(1, 5 * size // 8 - 1) for size in sizes)
    return BlockGrid(inside, triple(cell * size for size in sizes))


def _wrong_statistics(check: "_LayerCheck", measured: Statistics) -> str | None:
    """Return what is wrong with the statistics that the step takes, None if nothing is.

    They are summed in float, so they may differ from those of a separate pass in the last bits.
    """
    check.fill_unevenly()
    check.as_used()
    found = check.table(measured)
    check.measure_plainly(measured)
    factors, summands = right = check.table(measured)
    off = np.abs(found - right) / np.stack([factors, np.maximum(np.abs(summands), 1)])
    view = measured.source
    rounding = _ROUNDED.get(view.tensor.precision, 0.0) / sqrt(prod(view.extents))
    if not (off <= _STATISTICS_BOUND + 4 * rounding).all():
        return f"wrong statistics, by {off.max():.1e},"
    return None


def _unsteady(tables: Any) -> str | None:
    """Return in how many runs the statistics were others; tables: fingerprints, one per run."""
    wrong = int((tables != tables[0]).sum())
    return f"different statistics in {wrong} of {RUNS} runs" if wrong else None


class _LayerCheck:
    """Runs a trial both ways on a bench; grid: of a volume of one block, for kernels of blocks."""

    def __init__(self, trial: PlainCounterpart, bench: TrialBench, grid: BlockGrid | None) -> None:
        self._trial = trial
        self._bench = bench
        self._grid = grid

    def fill(self, numbers: Filling) -> None:
        """Fill the source with whole numbers, and the weight with so few that sums are exact."""
        trial, bench = self._trial, self._bench
        own = (replace(numbers, density=numbers.density / place) for place in count(1))
        self._fill_sources(own)  # so that all differ
        few = sparse_signs(trial.shape, numbers).density
        weight = host_signs(prod(trial.weight_shape), few, seed=2).reshape(trial.weight_shape)
        for name, stored in trial.weights.items():
            bench.upload(name, stored(weight).encoded(trial.shape.precision))
        for table in trial.tables:
            content = whole_numbers(table.patches, table.channels)
            bench.upload(table.name, encoded(content, "fp32"))

    def fill_unevenly(self) -> None:
        """Fill what is read with parts that each have another mean and variance."""
        self._fill_sources(repeat(Filling("uneven")))

    def _fill_sources(self, fillings: Iterator[Filling]) -> None:
        bench, gpu, patches = self._bench, self._bench.kernels.gpu, self._trial.conv.patches
        for source in self._trial.sources:
            bench.launch([checks.fill_tensor(source, next(fillings), bench.at(source.name), gpu)])
        if patches:
            shape = self._trial.conv.batch, patches.channels, *patches.extents
            bench.launch([checks.fill_patches(shape, next(fillings), bench.at(PATCHES), gpu)])

    def plainly(self) -> Any:
        """Return the fingerprint of the plain convolution's result."""
        self._bench.run(self._convolve_plainly, self.outputs[0])
        return self._bench.fingerprints()[0]

    def _convolve_plainly(self) -> None:
        trial, bench = self._trial, self._bench
        for step in trial.passes:
            bench.launch(launches(step, bench.at, bench.kernels.gpu))
        source, output = trial.passes[0].target.name, self.outputs[0].name
        addresses = bench.at(source), bench.at(PLAIN_WEIGHT), bench.at(output)
        is_translated = trial.output is None
        channels = trial.weight_shape[0 if trial.shape.transposed else 1]
        bench.launch(
            [
                checks.plain_convolution(
                    trial.shape, addresses, channels, is_translated=is_translated
                )
            ]
        )

    def as_used(self) -> None:
        """Queue the step as a program runs it."""
        self._bench.launch(self._used)

    def in_many_runs(self, outputs: Sequence[Output], meanwhile: Callable[[], None]) -> Any:
        """Return fingerprints [output, run] of many runs of the step."""
        for _ in range(RUNS):
            self._bench.run(self.as_used, *outputs)
        meanwhile()
        return self._bench.fingerprints().reshape(RUNS, -1).T

    def measure_plainly(self, measured: Statistics) -> None:
        """Queue the pass that takes statistics of the result."""
        table, bench = measured.target, self._bench
        bench.stream.fill(bench.at(COUNTERS), 0, 4 * table.patches * table.channels)
        bench.launch(self._launches(measured, is_measured=True))

    def _launches(self, step: Step, *, is_measured: bool) -> tuple[Launch, ...]:
        gpu, at = self._bench.kernels.gpu, self._bench.at
        partials = at(PARTIALS) if scratch_bytes(step, gpu) else 0
        if not self._grid:
            return tuple(launches(step, at, gpu, partials))
        own = block_launches(step, at, gpu, self._grid, BlockRun(0, 1), partials)
        joined = [measured_volume(step, at, gpu, partials, 1)] if is_measured else []
        return *own, *joined

    def table(self, measured: Statistics) -> FloatArray:
        """Return factors and summands [2, patches x channels] once the queue is done."""
        table = measured.target
        numbers = self._bench.download(table.name, table.bytes // 4, np.float32)
        self._bench.spoil(table.name, table.bytes)
        return numbers.reshape(2, -1)

    @cached_property
    def _used(self) -> tuple[Launch, ...]:
        return self._launches(self._trial.conv, is_measured=self._trial.measured is not None)

    @cached_property
    def outputs(self) -> tuple[Output, ...]:
        """Result of the step, and the statistics that it takes of it."""
        trial, output = self._trial, self._trial.output
        name = output.name if output else TRANSLATED
        number_bytes = NUMBER_BYTES[output.precision] if output else 4
        result = Output(name, trial.tensor_bytes[name], number_bytes)
        if trial.measured is None:
            return (result,)
        table = trial.measured.target
        return result, Output(table.name, table.bytes, 4)
