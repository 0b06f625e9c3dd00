"""Whether the own kernels of the outermost layers compute on this card what the plain ones do.

A step on the matrix units and the plain steps that come to the same are run on whole numbers, where
both results are the same to the last bit. Statistics that a step takes of its result are compared
with those of a pass of their own. Each layer is checked once on a card.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod, sqrt
from typing import Any, TypeVar

import numpy as np

from ..compiler.blocks import BlockGrid, BlockRun
from ..compiler.checks import (
    RUNS,
    Filling,
    host_signs,
    kernel_numbers,
    uneven_numbers,
    whole_numbers,
)
from ..compiler.kernels.launch import Launch
from ..compiler.kernels.plain import PLAIN_WEIGHT, PlainCounterpart, of_one_patch, plain
from ..compiler.kernels.table import checked
from ..compiler.launches import checks
from ..compiler.launches.blocks import block_launches, measured_volume
from ..compiler.launches.steps import launches
from ..compiler.lowered import Lowered
from ..compiler.memory.trials import FINGERPRINTS, PARTIALS, layer_blocks
from ..compiler.steps import Conv, Statistics
from ..compiler.tensors import COUNTERS, NUMBER_BYTES, PATCHES, TRANSLATED, TensorView
from ..compiler.weight_layout import encoded
from ..errors import DeviceMemoryError
from ..network.layers import FloatArray, triple
from ..options import Precision
from .driver import Stream
from .kernel_images import Kernels
from .plan_cache import TuningCache
from .plan_check import Fingerprints, downloaded
from .trial_memory import NAN, TrialMemory

_Result = TypeVar("_Result")

_SIGNS = Filling("signs", 0.75)

_VERSION = "2"
"""Raised when the check finds more than before, so that layers are checked again."""

_STATISTICS_BOUND = 2e-5
"""Of factors by their size, and of summands, which count standard deviations: sums in float of some
million numbers stay a tenth of it apart, and one block that is left out comes to more.
"""

_ROUNDED: dict[Precision, float] = {"fp16": 2.0**-11, "bf16": 2.0**-8}
"""Of a number, what it may lose as it is stored, which a step may measure before that.

The mean of n numbers moves by less than that over the square root of n, and those of hundreds of
channels by less than four times as much.
"""


class WrongKernelError(Exception):
    """An own kernel does not compute its convolution on this card.

    source: its .cu file. wrong: what was found, in words.
    """

    def __init__(self, source: str, wrong: str) -> None:
        super().__init__(f"{source}: {wrong}")
        self.source, self.wrong = source, wrong


def refused_kernels(cache: TuningCache, kernels: Kernels) -> frozenset[str]:
    """The .cu files of kernels that were wrong on this card, as they are compiled now."""
    wrong = (key.split() for key, wrong in cache.kernels.items() if wrong)
    return frozenset(source for source, image, *_ in wrong if image == kernels.image_key(source))


def refuse_kernel(cache: TuningCache, kernels: Kernels, error: WrongKernelError) -> None:
    """Use it no more on this card."""
    cache.put_kernel(f"{error.source} {kernels.image_key(error.source)}", error.wrong)


def with_right_kernels(
    attempt: Callable[[], _Result],
    cache: TuningCache,
    kernels: Kernels,
    progress: Callable[[str, float | None], None],
) -> _Result:
    """What comes of an attempt once no own kernel that it takes is wrong on this card."""
    while True:
        try:
            return attempt()
        except WrongKernelError as error:
            refuse_kernel(cache, kernels, error)
            progress(
                f"The own kernel {error.source} gave {error.wrong} in {kernels.precision}, "
                "and is not used on this card.",
                None,
            )


def check_outer_layers(
    lowered: Lowered,
    kernels: Kernels,
    stream: Stream,
    cache: TuningCache,
    memory: TrialMemory,
) -> None:
    """Raise WrongKernelError if a step of the outermost layers is wrong; each is checked once.

    For blocks of a volume their kernels are compiled anew, so they are checked in one block, too.
    Raises DeviceMemoryError if there is no room to try the step of a single patch.
    """
    layout = lowered.layout
    grid = BlockGrid(layout.patch, layout.patch) if layout.in_blocks else None
    for step in checked(lowered.steps):
        source = str(step.kernel)
        shape = hashlib.sha256(repr((_VERSION, step, layout)).encode()).hexdigest()[:24]
        key = f"{source} {kernels.image_key(source)} {shape}"
        if key not in cache.kernels:
            try:
                wrong = wrong_step(step, kernels, stream, memory, grid)
            except DeviceMemoryError:
                wrong = wrong_step(of_one_patch(step), kernels, stream, memory, grid)
            if wrong:
                raise WrongKernelError(source, wrong)
            cache.put_kernel(key, "")


def wrong_step(
    step: Conv,
    kernels: Kernels,
    stream: Stream,
    memory: TrialMemory,
    grid: BlockGrid | None = None,
) -> str | None:
    """What is wrong with a step of an outermost layer; None if nothing is.

    grid: of a volume of one block, for kernels of blocks; what these measure is looked at in a
    volume that ends inside its block, too.
    """
    trial = plain(of_one_patch(step) if grid else step)
    with memory.opened(stream, layer_blocks(trial, kernels.card)) as places:
        bench = _LayerBench(trial, places, kernels, stream, grid)
        bench.fill(_SIGNS)
        [right] = bench.results(bench.plainly, 1)
        wrong = int((bench.results(bench.as_used, RUNS) != right).sum())
        if wrong:
            return f"wrong results in {wrong} of {RUNS} runs"
        if trial.measured is None:
            return None
        if (found := _wrong_statistics(bench, trial.measured)) or grid is None:
            return found
        bench = _LayerBench(
            trial, places, kernels, stream, _that_ends_inside(trial.measured.source)
        )
        return _wrong_statistics(bench, trial.measured)


def _that_ends_inside(measured: TensorView) -> BlockGrid:
    """Of a volume that ends within its block, and within what kernels measure of it at once: for
    blocks of usual extents, so many voxels or cells are no whole tiles.
    """
    cell = 2 if measured.shuffled else 1
    sizes = measured.tensor.extents
    inside = triple(cell * max(1, 5 * size // 8 - 1) for size in sizes)
    return BlockGrid(inside, triple(cell * size for size in sizes))


def _wrong_statistics(bench: "_LayerBench", measured: Statistics) -> str | None:
    """What is wrong with those that the step takes of its result; None if nothing is.

    They are taken in float, so they need not be those of a pass of their own to the last bit, but
    must be the same in every run.
    """
    bench.fill_unevenly()
    bench.as_used()
    found = bench.table(measured)
    bench.measure_plainly(measured)
    factors, summands = right = bench.table(measured)
    off = np.abs(found - right) / np.stack([factors, np.maximum(np.abs(summands), 1)])
    view = measured.source
    rounding = _ROUNDED.get(view.tensor.precision, 0.0) / sqrt(prod(view.extents))
    if not (off <= _STATISTICS_BOUND + 4 * rounding).all():
        return f"wrong statistics, by {off.max():.1e},"
    first, *others = bench.tables_taken(measured, RUNS)
    wrong = sum(other != first for other in others)
    return f"other statistics in {wrong} of {RUNS} runs" if wrong else None


class _LayerBench:
    """Memory with a trial's numbers in it; places: device addresses by name. grid: of one block."""

    def __init__(
        self,
        trial: PlainCounterpart,
        places: Mapping[str, int],
        kernels: Kernels,
        stream: Stream,
        grid: BlockGrid | None,
    ) -> None:
        self._trial = trial
        self._grid = grid
        self._places = places
        self._kernels = kernels
        self._stream = stream
        self._fingerprints = Fingerprints(kernels, stream, places[FINGERPRINTS])

    def fill(self, numbers: Filling) -> None:
        """Whole numbers in the source, and few enough in the kernel for exact sums."""
        trial, stream = self._trial, self._stream
        if not trial.sources:
            patches = host_signs(trial.tensor_bytes[PATCHES] // 4, numbers.density, seed=1)
            stream.upload_now(self._places[PATCHES], patches.tobytes())
        for place, source in enumerate(trial.sources, start=1):
            own = replace(numbers, density=numbers.density / place)  # so that no two are the same
            address, card = self._places[source.name], self._kernels.card
            self._kernels.launch(stream, checks.fill_tensor(source, own, address, card))
        few = kernel_numbers(trial.shape, numbers).density
        kernel = host_signs(prod(trial.kernel), few, seed=2)
        for name, stored in trial.weights.items():
            laid = stored(kernel.reshape(trial.kernel)).numbers()
            stream.upload_now(self._places[name], encoded(laid, trial.shape.precision))
        for table in trial.tables:
            content = whole_numbers(table.patches, table.channels)
            stream.upload_now(self._places[table.name], encoded(content, "fp32"))

    def fill_unevenly(self) -> None:
        """Patches whose parts have other means and variances each, or such a source."""
        conv = self._trial.conv
        if conv.patches:
            patches = uneven_numbers((conv.batch, conv.channels, *conv.patches.extents))
            self._stream.upload_now(self._places[PATCHES], patches.tobytes())
        for source in self._trial.sources:
            voxels = uneven_numbers((source.batch, *source.extents))[..., None]
            numbers = np.broadcast_to(voxels, (*voxels.shape[:-1], source.channels))
            content = encoded(numbers, source.precision)
            self._stream.upload_now(self._places[source.name], content)

    def plainly(self) -> None:
        """Queue the plain convolution."""
        trial, at = self._trial, self._places
        for step in trial.passes:
            self._launch(launches(step, self._at, self._kernels.card))
        addresses = at[trial.passes[0].target.name], at[PLAIN_WEIGHT], at[self._made]
        is_translated = trial.made is None
        channels = trial.kernel[0 if trial.shape.transposed else 1]
        self._launch([checks.plain(trial.shape, addresses, channels, is_translated=is_translated)])

    def as_used(self) -> None:
        """Queue the step on the matrix units."""
        step, card, at = self._trial.conv, self._kernels.card, self._at
        partials = self._places.get(PARTIALS, 0)
        if not self._grid:
            self._launch(launches(step, at, card, partials))
            return
        self._launch(block_launches(step, at, card, self._grid, BlockRun(0, 1), partials))
        if self._trial.measured:
            self._launch([measured_volume(step, at, card, partials, 1)])

    def measure_plainly(self, measured: Statistics) -> None:
        """Queue the pass that takes statistics of what was made."""
        table, card, at = measured.target, self._kernels.card, self._at
        self._stream.fill(self._places[COUNTERS], 0, 4 * table.patches * table.channels)
        partials = self._places[PARTIALS]
        if not self._grid:
            self._launch(launches(measured, at, card, partials))
            return
        self._launch(block_launches(measured, at, card, self._grid, BlockRun(0, 1), partials))
        self._launch([measured_volume(measured, at, card, partials, 1)])

    def table(self, measured: Statistics) -> FloatArray:
        """Factors and summands [2, patches x channels], once the queue is done."""
        table = measured.target
        numbers = downloaded(self._stream, self._places[table.name], table.bytes // 4, np.float32)
        self._stream.fill(self._places[table.name], NAN, table.bytes)
        return numbers.reshape(2, -1)

    def tables_taken(self, measured: Statistics, runs: int) -> Any:
        """Fingerprints of the statistics of each of many runs of the step."""
        place, size = self._places[measured.target.name], measured.target.bytes
        for _ in range(runs):
            self._stream.fill(place, NAN, size)
            self.as_used()
            self._fingerprints.take(place, size, 4)
        return self._fingerprints.read()

    def _at(self, name: str) -> int:
        return self._places[name]

    def results(self, queue: Callable[[], None], runs: int) -> Any:
        """Fingerprints of what is made in each of many runs, into memory of NaN."""
        made = self._trial.made
        size, item = (
            self._trial.tensor_bytes[self._made],
            NUMBER_BYTES[made.precision] if made else 4,
        )
        for _ in range(runs):
            self._stream.fill(self._places[self._made], NAN, size)
            queue()
            self._fingerprints.take(self._places[self._made], size, item)
        return self._fingerprints.read()

    @property
    def _made(self) -> str:
        return self._trial.made.name if self._trial.made else TRANSLATED

    def _launch(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            self._kernels.launch(self._stream, launch)
