"""Convert times of single steps to a table by layer: operation, arithmetic and bytes of each."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..compiler import steps
from ..compiler.kernels.table import kernel_of
from ..compiler.steps import Step
from ..compiler.tensors import NUMBER_BYTES, PATCHES, TRANSLATED, Tensor, TensorView
from ..cuda.tuning.cache import CUSTOM
from ..network.graph import times
from .measurement import LayerTime


def layer_times(
    timed: Sequence[tuple[Step, float]],
    flops: Mapping[str, int],
    plan: Callable[[steps.ConvShape], str],
) -> tuple[LayerTime, ...]:
    """Return one row per step, with its part of its layer's arithmetic.

    timed: steps and seconds. flops: of a whole batch by layer. plan: how a convolution is computed.
    """
    voxels: dict[str, int] = defaultdict(int)
    for step, _ in timed:
        work = work_of(step)
        voxels[work.layer] += work.voxels
    rows: list[LayerTime] = []
    for step, seconds in timed:
        work = work_of(step)
        share = work.voxels / voxels[work.layer] if voxels[work.layer] else 0.0
        how = plan(step.shape) if steps.is_planned(step) else CUSTOM
        arithmetic = round(flops.get(work.layer, 0) * share)
        rows.append(LayerTime(work.layer, work.text, how, seconds, arithmetic, work.bytes))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of a step, independent of its implementation.

    layer: of the graph, that it belongs to. text: operation, with its shapes. bytes: every input
    read once and every output written once. voxels: written by a convolution; 0 for other steps.
    """

    layer: str
    text: str
    bytes: int
    voxels: int = 0


def work_of(step: Step) -> StepWork:
    """Return the work of a step."""
    match step:
        case steps.Conv():
            return _convolution(step)
        case steps.Statistics(source=source, target=table):
            text = f"statistics, {source.channels}, {times(source.extents)}"
            return StepWork(table.name.removesuffix(".table"), text, _seen(source).bytes)
        case steps.Normalise(pointwise=pointwise):
            work = work_of(pointwise)
            return replace(work, text=f"statistics, {work.text}")
        case steps.Pointwise(source=source, target=target, residual=residual, patches=patches):
            is_norm = step.table is not None or step.norm is not None
            views = (source,) if residual is None else (source, residual)
            moved = (_seen(view) for view in (*views, step.output))
            size = sum(replace(tensor, batch=patches.count).bytes for tensor in moved)
            kind = ("normalise" if is_norm else "activate") + (" and add" if residual else "")
            text = f"{kind}, {source.channels}, {times(step.output.extents)}"
            return StepWork(_layer_of(target), text, size)
        case steps.Pack(target=target, channels=channels, extents=(depth, height, width)):
            planes = min(target.extents[0], depth)
            read = Tensor(PATCHES, target.batch, (planes, height, width), channels, "fp32")
            text = f"pack, {target.channels}, {times(target.extents)}"
            return StepWork(_layer_of(target), text, read.bytes + target.bytes)
        case steps.Interleave(source=source, target=target, channels=channels):
            text = f"phases to voxels, {channels}, {times(target.extents)}"
            return StepWork(_layer_of(target), text, source.bytes + _seen(step.output).bytes)
        case steps.SumTaps(source=source, channels=channels, extents=extents):
            summed = source.extents[0], *extents[1:]
            output = Tensor(TRANSLATED, source.batch, summed, channels, "fp32")
            text = f"sum of taps, {source.channels}, {times(extents)}"
            return StepWork(_OUTPUT, text, source.bytes + output.bytes)
        case steps.Unpack(source=source, count=count):
            read = replace(_seen(source), channels=count)
            text = f"unpack, {count}, {times(source.extents)}"
            return StepWork(_OUTPUT, text, read.bytes + replace(read, precision="fp32").bytes)
        case steps.AddPatches(channels=channels, patches=patches, extents=extents):
            added = Tensor(TRANSLATED, patches.count, extents, channels, "fp32")
            text = f"add patches, {channels}, {times(extents)}"
            return StepWork(_OUTPUT, text, 3 * added.bytes)


_OUTPUT = "output"


def _layer_of(target: Tensor) -> str:
    number, _, name = target.name.partition(".")
    return name if number.isdigit() else target.name


def _convolution(conv: steps.Conv) -> StepWork:
    geometry, views = conv.geometry, conv.views
    sources = [_seen(view.source) for view in views]
    if conv.patches:
        sources = [_patches(PATCHES, conv, conv.patches)]
    output = _patches(TRANSLATED, conv, conv.translated) if conv.translated else _output(conv)
    numbers = prod(geometry.kernel) * conv.channels // geometry.groups * output.channels
    precision = output.precision if kernel_of(conv).has_float_weight else conv.precision
    moved = sum(tensor.bytes for tensor in (*sources, output))
    kind = "normalise, " if any(view.table for view in views) else ""
    kind += "transposed conv" if geometry.transposed else "conv"
    shape = f"{conv.channels} to {output.channels}, {times(output.extents)}"
    return StepWork(
        conv.layer,
        f"{kind} {times(geometry.kernel)}, {shape}" + (", statistics" if conv.statistics else ""),
        moved + numbers * NUMBER_BYTES[precision],
        output.batch * prod(output.extents),
    )


def _patches(name: str, conv: steps.Conv, patches: steps.PatchArray) -> Tensor:
    return Tensor(name, conv.batch, patches.extents, patches.channels, "fp32")


def _output(conv: steps.Conv) -> Tensor:
    """Return the part of its target that a convolution writes, as a separate tensor."""
    if conv.kernel is not None:
        assert isinstance(conv.output, TensorView)
        return _seen(conv.output)
    shape = conv.shape
    return replace(conv.target, batch=shape.batch, extents=shape.target_extents)


def _seen(view: TensorView) -> Tensor:
    """Return the part of a tensor that a view covers, as a separate tensor."""
    return replace(view.tensor, extents=view.extents, channels=view.channels)
