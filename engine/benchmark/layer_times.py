"""From the times of single steps to a table by layer: what each is, computes and moves."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..compiler.convolution import Convolution
from ..compiler.steps import (
    ActivatedView,
    AddPatches,
    Convolve,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvolveVoxels,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    ConvTransposeVoxels,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
)
from ..compiler.tensors import NUMBER_BYTES, PATCHES, TRANSLATED, Tensor, TensorView
from ..cuda.tuning.cache import OWN
from ..network.graph import times
from ..network.layers import Triple
from ..options import Precision
from .measurement import LayerTime


def layer_times(
    timed: Sequence[tuple[Step, float]],
    flops: Mapping[str, int],
    plan: Callable[[Convolution], str],
) -> tuple[LayerTime, ...]:
    """One row a step, with its part of its layer's arithmetic.

    timed: steps and seconds. flops: of a whole batch by layer. plan: how a convolution is done.
    """
    voxels: dict[str, int] = defaultdict(int)
    for step, _ in timed:
        work = work_of(step)
        voxels[work.layer] += work.voxels
    rows: list[LayerTime] = []
    for step, seconds in timed:
        work = work_of(step)
        share = work.voxels / voxels[work.layer] if voxels[work.layer] else 0.0
        how = plan(step.shape) if isinstance(step, Convolve) else OWN
        arithmetic = round(flops.get(work.layer, 0) * share)
        rows.append(LayerTime(work.layer, work.text, how, seconds, arithmetic, work.bytes))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step is there for, however it is done.

    layer: of the graph, that it belongs to. text: what it does, with its shapes. bytes: every input
    read once and every output written once. voxels: that a convolution makes; 0 of other steps.
    """

    layer: str
    text: str
    bytes: int
    voxels: int = 0


def work_of(step: Step) -> StepWork:
    """What a step is there for."""
    match step:
        case Convolve(layer=layer, shape=shape, source=source):
            kind = "transposed conv" if shape.transposed else "conv"
            extents, channels = shape.target_extents, shape.target_channels
            made = Tensor(step.target.name, shape.batch, extents, channels, shape.precision)
            return _convolution(layer, kind, shape.kernel, [source], made, groups=shape.groups)
        case ConvolvePatches(layer=layer, channels=channels, kernel=kernel, target=made):
            patches = Tensor(PATCHES, made.batch, step.extents, channels, "fp32")
            return _convolution(layer, "conv", kernel, [patches], made, step.statistics)
        case ConvolveToPatches(layer=layer, part=part, kernel=kernel, extents=extents):
            source, kind = _seen(part.source), _kind("conv", [part])
            made = Tensor(TRANSLATED, source.batch, extents, step.channels, "fp32")
            return _convolution(layer, kind, kernel, [source], made, weight=source.precision)
        case ConvTransposeToPatches(layer=layer, parts=parts, extents=extents):
            sources, kernel = [_seen(part.source) for part in parts], (4, 4, 4)
            made = Tensor(TRANSLATED, sources[0].batch, extents, step.channels, "fp32")
            weight = sources[0].precision
            return _convolution(layer, "transposed conv", kernel, sources, made, weight=weight)
        case ConvolveVoxels(layer=layer, source=part):
            source, kind = _seen(part.source), _kind("conv", [part])
            made = Tensor(TRANSLATED, source.batch, source.extents, step.channels, "fp32")
            return _convolution(layer, kind, (1, 1, 1), [source], made)
        case ConvTransposeToCells(layer=layer, source=source, target=target):
            made, measured = _seen(target), step.statistics
            return _convolution(layer, "transposed conv", (3, 3, 3), [source], made, measured)
        case ConvTransposeVoxels(layer=layer, source=part, target=target):
            kind, source = _kind("transposed conv", [part]), _seen(part.source)
            return _convolution(layer, kind, (2, 2, 2), [source], _seen(target))
        case ConvolveByPlanes(layer=layer, parts=parts, target=made, statistics=measured):
            kind, sources = _kind("conv", parts), [_seen(part.source) for part in parts]
            return _convolution(layer, kind, (3, 3, 3), sources, made, measured)
        case Statistics(source=source, target=table):
            text = f"statistics, {source.channels}, {times(source.extents)}"
            return StepWork(table.name.removesuffix(".table"), text, _seen(source).bytes)
        case Normalise(pointwise=pointwise):
            work = work_of(pointwise)
            return replace(work, text=f"statistics, {work.text}")
        case Pointwise(source=source, target=target, residual=residual, patches=patches):
            views = (source,) if residual is None else (source, residual)
            moved = (*(_seen(view) for view in views), target)
            size = sum(replace(tensor, batch=patches.count).bytes for tensor in moved)
            kind = ("normalise" if step.table else "activate") + (" and add" if residual else "")
            text = f"{kind}, {source.channels}, {times(step.target_extents)}"
            return StepWork(_layer_of(target), text, size)
        case Pack(target=target, channels=channels, extents=(depth, height, width)):
            planes = min(target.extents[0], depth)
            read = Tensor(PATCHES, target.batch, (planes, height, width), channels, "fp32")
            text = f"pack, {target.channels}, {times(target.extents)}"
            return StepWork(_layer_of(target), text, read.bytes + target.bytes)
        case SumTaps(source=source, channels=channels, extents=extents):
            summed = source.extents[0], *extents[1:]
            made = Tensor(TRANSLATED, source.batch, summed, channels, "fp32")
            text = f"sum of taps, {source.channels}, {times(extents)}"
            return StepWork(_OUTPUT, text, source.bytes + made.bytes)
        case Unpack(source=source, count=count):
            read = replace(_seen(source), channels=count)
            text = f"unpack, {count}, {times(source.extents)}"
            return StepWork(_OUTPUT, text, read.bytes + replace(read, precision="fp32").bytes)
        case AddPatches(channels=channels, patches=patches, extents=extents):
            added = Tensor(TRANSLATED, patches.count, extents, channels, "fp32")
            text = f"add patches, {channels}, {times(extents)}"
            return StepWork(_OUTPUT, text, 3 * added.bytes)


_OUTPUT = "output"


def _layer_of(target: Tensor) -> str:
    number, _, name = target.name.partition(".")
    return name if number.isdigit() else target.name


def _convolution(
    layer: str,
    kind: str,
    kernel: Triple,
    sources: Sequence[Tensor],
    made: Tensor,
    measured: Statistics | None = None,
    weight: Precision | None = None,
    groups: int = 1,
) -> StepWork:
    """kind: what its text begins with. weight: its precision, None for that of what is made."""
    channels = sum(source.channels for source in sources)
    numbers = prod(kernel) * channels // groups * made.channels
    moved = sum(tensor.bytes for tensor in (*sources, made))
    shape = f"{channels} to {made.channels}, {times(made.extents)}"
    return StepWork(
        layer,
        f"{kind} {times(kernel)}, {shape}" + (", statistics" if measured else ""),
        moved + numbers * NUMBER_BYTES[weight or made.precision],
        made.batch * prod(made.extents),
    )


def _kind(convolution: str, parts: Iterable[ActivatedView]) -> str:
    return f"normalise, {convolution}" if any(part.table for part in parts) else convolution


def _seen(view: TensorView) -> Tensor:
    """The part of a tensor that a view shows, as if it lay by itself."""
    return replace(view.tensor, extents=view.extents, channels=view.channels)
