"""From the times of single steps to a table by layer: what each is, computes and moves."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod

from ..compiler.convolution import Convolution
from ..compiler.launches.variants import variant_name
from ..compiler.steps import (
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
from ..compiler.tensors import NUMBER_BYTES, Tensor, TensorView
from ..cuda.plan_cache import OWN
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
        voxels[layer_of(step)] += _computed(step)
    rows: list[LayerTime] = []
    for step, seconds in timed:
        layer = layer_of(step)
        share = _computed(step) / voxels[layer] if voxels[layer] else 0.0
        how = plan(step.shape) if isinstance(step, Convolve) else OWN
        if chosen := variant_name(step):
            how = f"{how}, {chosen}"
        arithmetic = round(flops.get(layer, 0) * share)
        rows.append(LayerTime(layer, described(step), how, seconds, arithmetic, least_bytes(step)))
    return tuple(rows)


def _computed(step: Step) -> int:
    """Voxels that a convolution makes; 0 of other steps."""
    match step:
        case Convolve(shape=shape):
            return shape.batch * prod(shape.target_extents)
        case ConvolvePatches(target=target):
            return target.batch * prod(target.extents)
        case ConvolveToPatches(source=source, extents=extents):
            return source.tensor.batch * prod(extents)
        case ConvTransposeToPatches(parts=parts, extents=extents):
            return parts[0].source.tensor.batch * prod(extents)
        case ConvTransposeToCells(target=target) | ConvTransposeVoxels(target=target):
            return target.tensor.batch * prod(target.extents)
        case ConvolveVoxels(source=source):
            return source.source.tensor.batch * prod(source.source.extents)
        case ConvolveByPlanes(target=target):
            return target.batch * prod(target.extents)
        case _:
            return 0


_FLOAT = 4
_OUTPUT = "output"


def layer_of(step: Step) -> str:
    """The layer of the graph that a step belongs to."""
    match step:
        case (
            Convolve()
            | ConvolvePatches()
            | ConvolveToPatches()
            | ConvTransposeToPatches()
            | ConvolveVoxels()
            | ConvTransposeToCells()
            | ConvTransposeVoxels()
            | ConvolveByPlanes()
        ):
            return step.layer
        case Statistics(target=table):
            return table.name.removesuffix(".table")
        case Normalise(pointwise=pointwise):
            return layer_of(pointwise)
        case Pack(target=target) | Pointwise(target=target):
            number, _, name = target.name.partition(".")
            return name if number.isdigit() else target.name
        case SumTaps() | Unpack() | AddPatches():
            return _OUTPUT


def described(step: Step) -> str:
    """What a step does, with its shapes."""
    match step:
        case Convolve(shape=shape):
            kind = "transposed conv" if shape.transposed else "conv"
            channels = f"{shape.source_channels} to {shape.target_channels}"
            return f"{kind} {_times(shape.kernel)}, {channels}, {_times(shape.target_extents)}"
        case ConvolvePatches(
            kernel=kernel, channels=channels, target=target, statistics=statistics
        ):
            shape = f"{channels} to {target.channels}, {_times(target.extents)}"
            return f"conv {_times(kernel)}, {shape}" + (", statistics" if statistics else "")
        case ConvolveToPatches(kernel=kernel, source=source, channels=channels, extents=extents):
            shape = f"{source.channels} to {channels}, {_times(extents)}"
            kind = "normalise, conv" if step.part.table else "conv"
            return f"{kind} {_times(kernel)}, {shape}"
        case ConvTransposeToPatches(parts=parts, channels=channels, extents=extents):
            before = sum(part.source.channels for part in parts)
            return f"transposed conv 4x4x4, {before} to {channels}, {_times(extents)}"
        case ConvolveVoxels(source=source, channels=channels):
            shape = f"{source.source.channels} to {channels}, {_times(source.source.extents)}"
            return ("normalise, " if source.table else "") + f"conv 1x1x1, {shape}"
        case ConvTransposeToCells(source=source, target=target, statistics=statistics):
            shape = f"{source.channels} to {target.channels}, {_times(target.extents)}"
            return f"transposed conv 3x3x3, {shape}" + (", statistics" if statistics else "")
        case ConvTransposeVoxels(source=source, target=target):
            shape = f"{source.source.channels} to {target.channels}, {_times(target.extents)}"
            return ("normalise, " if source.table else "") + f"transposed conv 2x2x2, {shape}"
        case ConvolveByPlanes(parts=parts, target=target, statistics=statistics):
            kind = "normalise, conv 3x3x3" if any(part.table for part in parts) else "conv 3x3x3"
            shape = f"{step.channels} to {target.channels}, {_times(target.extents)}"
            return f"{kind}, {shape}" + (", statistics" if statistics else "")
        case Statistics(source=source):
            return f"statistics, {source.channels}, {_times(source.extents)}"
        case Normalise(pointwise=pointwise):
            return f"statistics, {described(pointwise)}"
        case Pointwise(source=source, table=table, residual=residual, target_extents=extents):
            kind = ("normalise" if table else "activate") + (" and add" if residual else "")
            return f"{kind}, {source.channels}, {_times(extents)}"
        case Pack(target=target):
            return f"pack, {target.channels}, {_times(target.extents)}"
        case SumTaps(source=source, extents=extents):
            return f"sum of taps, {source.channels}, {_times(extents)}"
        case Unpack(source=source, count=count):
            return f"unpack, {count}, {_times(source.extents)}"
        case AddPatches(channels=channels, extents=extents):
            return f"add patches, {channels}, {_times(extents)}"


def least_bytes(step: Step) -> int:
    """Every input read once and every output written once."""
    match step:
        case Convolve(shape=shape, source=source):
            size = NUMBER_BYTES[shape.precision]
            target = shape.batch * prod(shape.target_extents) * shape.target_channels
            return source.bytes + (shape.weights + target) * size
        case ConvolvePatches(target=target, channels=channels, extents=extents, kernel=kernel):
            weight = prod(kernel) * channels * target.channels
            patches = target.batch * channels * prod(extents) * _FLOAT
            return patches + weight * NUMBER_BYTES[target.precision] + target.bytes
        case ConvolveToPatches(source=source, channels=channels, extents=extents, kernel=kernel):
            weight = prod(kernel) * source.channels * channels
            translated = source.tensor.batch * channels * prod(extents) * _FLOAT
            return _viewed(source) + weight * NUMBER_BYTES[source.tensor.precision] + translated
        case ConvTransposeToPatches(parts=parts, channels=channels, extents=extents):
            tensor = parts[0].source.tensor
            weight = 64 * sum(part.source.channels for part in parts) * channels
            translated = tensor.batch * channels * prod(extents) * _FLOAT
            read = sum(_viewed(part.source) for part in parts)
            return read + weight * NUMBER_BYTES[tensor.precision] + translated
        case ConvolveVoxels(source=source, channels=channels):
            view = source.source
            translated = view.tensor.batch * channels * prod(view.extents) * _FLOAT
            return _viewed(view) + channels * view.channels * _FLOAT + translated
        case ConvTransposeToCells(source=source, target=target):
            weight = 27 * source.channels * target.channels
            return source.bytes + weight * NUMBER_BYTES[source.precision] + _viewed(target)
        case ConvTransposeVoxels(source=source, target=target):
            weight = 8 * source.source.channels * target.channels
            size = NUMBER_BYTES[target.tensor.precision]
            return _viewed(source.source) + weight * size + _viewed(target)
        case ConvolveByPlanes(parts=parts, target=target):
            weight = 27 * step.channels * target.channels
            read = sum(_viewed(part.source) for part in parts)
            return read + weight * NUMBER_BYTES[target.precision] + target.bytes
        case Statistics(source=source):
            return _viewed(source)
        case Normalise(pointwise=pointwise):
            return least_bytes(pointwise)
        case Pointwise(source=source, target=target, patches=patches, residual=residual):
            read = sum(_share(_viewed(v), v.tensor, patches.count) for v in (source, residual) if v)
            return read + _share(target.bytes, target, patches.count)
        case Pack(target=target, channels=channels, extents=extents):
            planes = min(target.extents[0], extents[0])
            read = target.batch * channels * planes * extents[1] * extents[2] * _FLOAT
            return read + target.bytes
        case SumTaps(source=source, channels=channels, extents=extents):
            written = source.batch * channels * source.extents[0] * extents[1] * extents[2]
            return source.bytes + written * _FLOAT
        case Unpack(source=source, count=count):
            voxels = source.tensor.batch * prod(source.extents)
            return voxels * count * (NUMBER_BYTES[source.tensor.precision] + _FLOAT)
        case AddPatches(channels=channels, patches=patches, extents=extents):
            return 3 * _FLOAT * patches.count * channels * prod(extents)


def _viewed(view: TensorView) -> int:
    """Bytes of the part of a tensor that a view shows."""
    tensor = view.tensor
    voxels = tensor.batch * prod(view.extents)
    return voxels * view.channels * NUMBER_BYTES[tensor.precision]


def _share(size: int, tensor: Tensor, patches: int) -> int:
    """Of all patches' bytes, those of some of them."""
    return size * patches // tensor.batch


def _times(extents: tuple[int, ...]) -> str:
    return "x".join(map(str, extents))
