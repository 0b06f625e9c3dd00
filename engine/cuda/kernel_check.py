"""Whether the own kernels of the outermost layers compute on this card what the plain ones do.

A step on the matrix units and the plain steps that come to the same are run on whole numbers, where
both results are the same to the last bit. Statistics that a step takes of its result are compared
with those of a pass of their own. Each layer is checked once on a card.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ..compiler.blocks import BlockGrid, BlockRun
from ..compiler.checks import Filling, host_signs, kernel_numbers, uneven_numbers
from ..compiler.launches import checks
from ..compiler.launches.blocks import block_launches
from ..compiler.launches.launch import OVERFLOW, Launch
from ..compiler.launches.steps import launches, scratch_bytes
from ..compiler.memory.plan import aligned
from ..compiler.steps import (
    COUNTERS,
    IDENTITY,
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    Convolution,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToPatches,
    ExpressedView,
    Lowered,
    Pack,
    Pointwise,
    Region,
    Statistics,
    Tensor,
    TensorView,
    stored_channels,
)
from ..compiler.weight_layout import (
    LaidWeight,
    Slots,
    cell_operands,
    column_operands,
    encoded,
    forward,
    matrix_operands,
    row_operands,
    strided_operands,
    transposed,
    turned_operands,
)
from ..errors import DeviceMemoryError
from ..network.layers import FloatArray, Triple
from .driver import DeviceBuffer, Stream
from .kernel_images import Kernels
from .plan_cache import TuningCache
from .plan_check import RUNS, Fingerprints, downloaded

OuterStep: TypeAlias = ConvolvePatches | ConvolveToPatches | ConvTransposeToPatches

_SIGNS = Filling("signs", 0.75)
_PLAIN, _STORED, _TAKEN = "plain weight", "stored weight", "fingerprints"
_PARTIALS = "partial sums"
_NAN = 0xFF

_VERSION = "1"
"""Raised when the check finds more than before, so that layers are checked again."""

_STATISTICS_BOUND = 2e-5
"""Of factors by their size, and of summands, which count standard deviations: sums in float of some
million numbers stay a tenth of it apart, and one block that is left out comes to more.
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


def check_outer_layers(
    lowered: Lowered, kernels: Kernels, stream: Stream, cache: TuningCache
) -> None:
    """Raise WrongKernelError if a step of the outermost layers is wrong; each is checked once.

    For blocks of a volume their kernels are compiled anew, so they are checked in one block, too.
    """
    layout = lowered.layout
    grid = BlockGrid(layout.patch, layout.patch) if layout.in_blocks else None
    for step in lowered.steps:
        if not isinstance(step, OuterStep):
            continue
        source = _source(step)
        shape = hashlib.sha256(repr((_VERSION, step, layout)).encode()).hexdigest()[:24]
        key = f"{source} {kernels.image_key(source)} {shape}"
        if key not in cache.kernels:
            try:
                wrong = wrong_step(step, kernels, stream, grid)
            except DeviceMemoryError:
                wrong = wrong_step(_of_one_patch(step), kernels, stream, grid)
            if wrong:
                raise WrongKernelError(source, wrong)
            cache.put_kernel(key, "")


def _source(step: OuterStep) -> str:
    match step:
        case ConvolvePatches(wgmma=True):
            return "convolve_patches_wgmma"
        case ConvolvePatches(stride=stride):
            return "convolve_patches" if stride == 1 else "convolve_strided_patches"
        case ConvolveToPatches(wgmma=wgmma):
            return "convolve_to_patches_wgmma" if wgmma else "convolve_to_patches"
        case ConvTransposeToPatches():
            return "conv_transpose_to_patches"


def _of_one_patch(step: OuterStep) -> OuterStep:
    """The step of the first patch alone, which takes less memory."""
    match step:
        case ConvolvePatches(target=target):
            return replace(step, target=replace(target, batch=1))
        case ConvolveToPatches(source=source):
            return replace(step, source=_first_patch(source))
        case ConvTransposeToPatches(parts=parts):
            first = (replace(part, source=_first_patch(part.source)) for part in parts)
            return replace(step, parts=tuple(first))


def _first_patch(view: TensorView) -> TensorView:
    return replace(view, tensor=replace(view.tensor, batch=1))


def wrong_step(
    step: OuterStep, kernels: Kernels, stream: Stream, grid: BlockGrid | None = None
) -> str | None:
    """What is wrong with a step of an outermost layer; None if nothing is.

    grid: of a volume of one block, for kernels of blocks.
    """
    trial = _trial(_of_one_patch(step) if grid else step)
    with ExitStack() as opened:
        places = {
            name: opened.enter_context(DeviceBuffer(aligned(size))).address
            for name, size in _sizes(trial, kernels).items()
        }
        bench = _LayerBench(trial, places, kernels, stream, grid)
        bench.fill(_SIGNS)
        [right] = bench.results(bench.plainly, 1)
        wrong = int((bench.results(bench.as_used, RUNS) != right).sum())
        if wrong:
            return f"wrong results in {wrong} of {RUNS} runs"
        return _wrong_statistics(bench, trial.measured) if trial.measured else None


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
    if not (off <= _STATISTICS_BOUND).all():
        return f"wrong statistics, by {off.max():.1e},"
    first, *others = bench.tables_taken(measured, RUNS)
    wrong = sum(other != first for other in others)
    return f"other statistics in {wrong} of {RUNS} runs" if wrong else None


def _sizes(trial: "_LayerTrial", kernels: Kernels) -> dict[str, int]:
    """Bytes by name of all that a trial takes."""
    measured, card = trial.measured, kernels.card
    if measured is None:
        return dict(trial.sizes)
    table = measured.target
    return {
        **trial.sizes,
        table.name: table.bytes,
        COUNTERS: 4 * table.patches * table.channels,
        _PARTIALS: max(scratch_bytes(step, card) for step in (trial.step, measured)),
    }


@dataclass(frozen=True, slots=True)
class _LayerTrial:
    """A step, how the plain convolution comes to the same, and the memory that both take.

    passes: make the plain one's source. sizes: bytes by name. shape: of the plain convolution.
    kernel: [K, C, kD, kH, kW], of a transposed one [C, K, ...]. weights: how it is stored, by name.
    sources: tensors that are filled on the card, none where the patches are. made: None where it is
    their translation. measured: statistics that the step takes of it besides.
    """

    step: OuterStep
    passes: tuple[Pack | Pointwise, ...]
    sizes: Mapping[str, int]
    shape: Convolution
    kernel: tuple[int, ...]
    weights: Mapping[str, Callable[[FloatArray], LaidWeight]]
    sources: tuple[Tensor, ...]
    made: Tensor | None
    measured: Statistics | None = None


class _LayerBench:
    """Memory with a trial's numbers in it; places: device addresses by name. grid: of one block."""

    def __init__(
        self,
        trial: _LayerTrial,
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
        self._fingerprints = Fingerprints(kernels, stream, places[_TAKEN])

    def fill(self, numbers: Filling) -> None:
        """Whole numbers in the source, and few enough in the kernel for exact sums."""
        trial, stream = self._trial, self._stream
        if not trial.sources:
            patches = host_signs(trial.sizes[PATCHES] // 4, numbers.density, seed=1)
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

    def fill_unevenly(self) -> None:
        """Patches whose parts have other means and variances each."""
        step = self._trial.step
        assert isinstance(step, ConvolvePatches)
        patches = uneven_numbers((step.target.batch, step.channels, *step.extents))
        self._stream.upload_now(self._places[PATCHES], patches.tobytes())

    def plainly(self) -> None:
        """Queue the plain convolution."""
        trial, at = self._trial, self._places
        for step in trial.passes:
            self._launch(launches(step, self._at, self._kernels.card))
        addresses = at[trial.passes[0].target.name], at[_PLAIN], at[self._made]
        is_translated = trial.made is None
        channels = trial.kernel[0 if trial.shape.transposed else 1]
        self._launch([checks.plain(trial.shape, addresses, channels, is_translated=is_translated)])

    def as_used(self) -> None:
        """Queue the step on the matrix units."""
        step, card, at = self._trial.step, self._kernels.card, self._at
        if self._grid:
            self._launch(block_launches(step, at, card, self._grid, BlockRun(0, 1)))
        else:
            self._launch(launches(step, at, card, self._places.get(_PARTIALS, 0)))

    def measure_plainly(self, measured: Statistics) -> None:
        """Queue the pass that takes statistics of what was made."""
        table = measured.target
        self._stream.fill(self._places[COUNTERS], 0, 4 * table.patches * table.channels)
        partials = self._places[_PARTIALS]
        self._launch(launches(measured, self._at, self._kernels.card, partials))

    def table(self, measured: Statistics) -> FloatArray:
        """Factors and summands [2, patches x channels], once the queue is done."""
        table = measured.target
        numbers = downloaded(self._stream, self._places[table.name], table.bytes // 4, np.float32)
        self._stream.fill(self._places[table.name], _NAN, table.bytes)
        return numbers.reshape(2, -1)

    def tables_taken(self, measured: Statistics, runs: int) -> Any:
        """Fingerprints of the statistics of each of many runs of the step."""
        place, size = self._places[measured.target.name], measured.target.bytes
        for _ in range(runs):
            self._stream.fill(place, _NAN, size)
            self.as_used()
            self._fingerprints.take(place, size, 4)
        return self._fingerprints.read()

    def _at(self, name: str) -> int:
        return self._places[name]

    def results(self, queue: Callable[[], None], runs: int) -> Any:
        """Fingerprints of what is made in each of many runs, into memory of NaN."""
        made = self._trial.made
        size, item = self._trial.sizes[self._made], NUMBER_BYTES[made.precision] if made else 4
        for _ in range(runs):
            self._stream.fill(self._places[self._made], _NAN, size)
            queue()
            self._fingerprints.take(self._places[self._made], size, item)
        return self._fingerprints.read()

    @property
    def _made(self) -> str:
        return self._trial.made.name if self._trial.made else TRANSLATED

    def _launch(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            self._kernels.launch(self._stream, launch)


def _trial(step: OuterStep) -> _LayerTrial:
    match step:
        case ConvolvePatches():
            return _first_layer(step)
        case ConvolveToPatches():
            return _last_layer(step)
        case ConvTransposeToPatches():
            return _transposed_last_layer(step)


def _first_layer(step: ConvolvePatches) -> _LayerTrial:
    target = step.target
    channels = stored_channels(step.channels, target.precision)
    seen = _grown(target.extents, step.kernel, step.stride)
    packed = Tensor("packed", target.batch, seen, channels, target.precision)
    laid = matrix_operands if step.stride == 1 else strided_operands
    laid = row_operands if step.wgmma else laid
    whole = Region(0, target.batch)
    pack = Pack(packed, whole, step.channels, step.extents, step.origin, step.mode)
    stride = (step.stride,) * 3
    shape = replace(_plain_shape(packed, target, step.kernel), stride=stride)
    kernel = target.channels, step.channels, *step.kernel
    measured = step.statistics and _bare(step.statistics)
    return _LayerTrial(
        step=replace(step, weight=_STORED, statistics=measured),
        passes=(pack,),
        sizes={
            PATCHES: 4 * target.batch * step.channels * prod(step.extents),
            packed.name: packed.bytes,
            target.name: target.bytes,
            _PLAIN: _weight_bytes(shape),
            _STORED: 4 * laid(np.zeros(kernel, np.float32)).size,
            _TAKEN: 8 * RUNS,
        },
        shape=shape,
        kernel=kernel,
        weights={
            _PLAIN: lambda k: forward(k, range(step.channels), channels, target.channels),
            _STORED: laid,
        },
        sources=(),
        made=target,
        measured=measured,
    )


def _bare(statistics: Statistics) -> Statistics:
    """Without what was learned, which no trial has."""
    groups = statistics.groups and replace(statistics.groups, bias=None)
    return replace(statistics, scale=None, shift=None, groups=groups)


def _last_layer(step: ConvolveToPatches) -> _LayerTrial:
    view, source = step.source, step.source.tensor
    seen = _grown(step.extents, step.kernel)
    padded = Tensor("padded", source.batch, seen, view.channels, source.precision)
    made, whole = _translated(step, padded), Region(0, source.batch)
    pad = Pointwise(view, padded, whole, view.extents, step.origin, step.mode)
    bare = replace(step, weight=_STORED, bias=None, activation=IDENTITY)
    shape = _plain_shape(padded, made, step.kernel)
    stored = turned_operands if step.wgmma else column_operands
    return _to_patches(bare, (source,), (pad,), shape, forward, stored)


def _transposed_last_layer(step: ConvTransposeToPatches) -> _LayerTrial:
    views = [part.source for part in step.parts]
    extents, tensor = views[0].extents, views[0].tensor
    channels, whole = sum(view.channels for view in views), Region(0, tensor.batch)
    joined = Tensor("joined", tensor.batch, extents, channels, tensor.precision)
    double, one = (2, 2, 2), (1, 1, 1)
    shape = _plain_shape(joined, _translated(step, joined), (4, 4, 4))
    shape = replace(shape, stride=double, before=one, after=one, transposed=True)
    parts = tuple(ExpressedView(view, None, IDENTITY) for view in views)
    bare = replace(step, parts=parts, weight=_STORED, bias=None, activation=IDENTITY)
    sources, passes = (view.tensor for view in views), _side_by_side(views, joined, whole)
    return _to_patches(bare, tuple(sources), tuple(passes), shape, transposed, cell_operands)


def _translated(step: ConvolveToPatches | ConvTransposeToPatches, source: Tensor) -> Tensor:
    return Tensor(TRANSLATED, source.batch, step.extents, step.channels, source.precision)


def _to_patches(
    step: ConvolveToPatches | ConvTransposeToPatches,
    sources: tuple[Tensor, ...],
    passes: tuple[Pointwise, ...],
    shape: Convolution,
    plain: Callable[[FloatArray, Slots, int, int], LaidWeight],
    stored: Callable[[FloatArray, Slots, int], LaidWeight],
) -> _LayerTrial:
    """The trial of a last layer; plain, stored: how both convolutions have their weight."""
    seen, channels = passes[0].target, passes[0].target.channels
    ends = (channels, step.channels) if shape.transposed else (step.channels, channels)
    slots, kernel = range(channels), (*ends, *shape.kernel)
    return _LayerTrial(
        step=step,
        passes=passes,
        sizes={
            **{source.name: source.bytes for source in sources},
            seen.name: seen.bytes,
            TRANSLATED: 4 * seen.batch * step.channels * prod(step.extents),
            OVERFLOW: 4,
            _PLAIN: _weight_bytes(shape),
            _STORED: 4 * stored(np.zeros(kernel, np.float32), slots, channels).size,
            _TAKEN: 8 * RUNS,
        },
        shape=shape,
        kernel=kernel,
        weights={
            _PLAIN: lambda k: plain(k, slots, channels, step.channels),
            _STORED: lambda k: stored(k, slots, channels),
        },
        sources=sources,
        made=None,
    )


def _side_by_side(
    views: Iterable[TensorView], target: Tensor, patches: Region
) -> Iterator[Pointwise]:
    """Passes that write views into one tensor, the channels of each behind those before."""
    first = 0
    for view in views:
        yield Pointwise(view, target, patches, view.extents, (0, 0, 0), "zero", first)
        first += view.channels


def _plain_shape(source: Tensor, target: Tensor, kernel: Triple) -> Convolution:
    one, none = (1, 1, 1), (0, 0, 0)
    return Convolution(
        source.batch,
        source.extents,
        source.channels,
        target.extents,
        target.channels,
        kernel,
        one,
        none,
        none,
        source.precision,
    )


def _weight_bytes(shape: Convolution) -> int:
    return shape.weights * NUMBER_BYTES[shape.precision]


def _grown(extents: Triple, kernel: Triple, stride: int = 1) -> Triple:
    """What a kernel reads for so many voxels of its result."""
    sizes = zip(extents, kernel, strict=True)
    depth, height, width = ((extent - 1) * stride + taps for extent, taps in sizes)
    return depth, height, width
