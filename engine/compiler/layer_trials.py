"""What a step of an own kernel for matrix units is compared with: plain steps of the same result.

A trial only says how: which memory both take, and how each has its weight laid out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np

from ..network.layers import FloatArray, Triple, triple
from .convolution import Convolution
from .steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    ConvTransposeVoxels,
    Pack,
    Pointwise,
    Statistics,
)
from .tensors import (
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    AffineTable,
    Region,
    Tensor,
    TensorView,
    stored_channels,
)
from .weight_layout import (
    OPERANDS_BY_PLANES,
    LaidWeight,
    Slots,
    cell_operands,
    cells_as_outputs,
    column_operands,
    doubling_operands,
    forward,
    matrix_operands,
    row_operands,
    strided_operands,
    subpixels,
    transposed,
    turned_operands,
    voxel_operands,
)

TriedStep: TypeAlias = (
    ConvolvePatches
    | ConvolveToPatches
    | ConvTransposeToPatches
    | ConvTransposeToCells
    | ConvTransposeVoxels
    | ConvolveByPlanes
)

PLAIN_WEIGHT, STORED_WEIGHT = "plain weight", "stored weight"


@dataclass(frozen=True, slots=True)
class LayerTrial:
    """A step, and the plain convolution of the same result.

    passes: they write the plain convolution's source. shape: of the plain convolution. kernel:
    shape of the weight [K, C, kD, kH, kW], of a transposed one [C, K, ...]. weights: how each of
    the two lays it out, by name.
    """

    step: TriedStep
    passes: tuple[Pack | Pointwise, ...]
    shape: Convolution
    kernel: tuple[int, ...]
    weights: Mapping[str, Callable[[FloatArray], LaidWeight]]

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """Tensors to be filled; none where the patches are what is read."""
        read = (item for item in self.step.flow.reads if isinstance(item, Tensor))
        return tuple(dict.fromkeys(read))

    @property
    def tables(self) -> tuple[AffineTable, ...]:
        """By which the step, and passes, normalise what they read."""
        return tuple(dict.fromkeys(self.step.flow.tables))

    @property
    def made(self) -> Tensor | None:
        """The tensor that both write; None where that is the translation."""
        return next((item for item in self.step.flow.writes if isinstance(item, Tensor)), None)

    @property
    def measured(self) -> Statistics | None:
        """Statistics that the step takes besides of what it makes."""
        return self.step.flow.measures

    @property
    def tensor_bytes(self) -> Mapping[str, int]:
        """Bytes by name of what both read and write."""
        seen, made, step = self.passes[0].target, self.made, self.step
        tensors = *self.sources, seen, *((made,) if made else ())
        sizes = {tensor.name: tensor.bytes for tensor in tensors}
        if isinstance(step, ConvolvePatches):
            sizes[PATCHES] = 4 * seen.batch * step.channels * prod(step.extents)
        if isinstance(step, ConvolveToPatches | ConvTransposeToPatches):
            sizes[TRANSLATED] = 4 * seen.batch * step.channels * prod(step.extents)
        return sizes

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by name of the memory that both take, besides tables."""
        stored = self.weights[STORED_WEIGHT](np.zeros(self.kernel, np.float32))
        return {
            **self.tensor_bytes,
            PLAIN_WEIGHT: self.shape.weights * NUMBER_BYTES[self.shape.precision],
            STORED_WEIGHT: 4 * stored.size,
        }


def of_one_patch(step: TriedStep) -> TriedStep:
    """The step of the first patch alone, which takes less memory."""
    return _of_first_patch(step)


def _of_first_patch(part: Any) -> Any:
    if isinstance(part, Tensor):
        return replace(part, batch=1)
    if isinstance(part, AffineTable):
        return replace(part, patches=1)
    if isinstance(part, tuple):
        return tuple(map(_of_first_patch, cast("tuple[Any, ...]", part)))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    held = {field.name: _of_first_patch(getattr(part, field.name)) for field in fields(part)}
    return replace(part, **held)


def trial_of(step: TriedStep) -> LayerTrial:
    """Without bias, activation and whatever else is not the convolution itself."""
    match step:
        case ConvolvePatches():
            return _first_layer(step)
        case ConvolveToPatches():
            return _last_layer(step)
        case ConvTransposeToPatches():
            return _transposed_last_layer(step)
        case ConvTransposeToCells():
            return _doubling_layer(step)
        case ConvTransposeVoxels():
            return _doubling_layer_of_voxels(step)
        case ConvolveByPlanes():
            return _layer_by_planes(step)


def _first_layer(step: ConvolvePatches) -> LayerTrial:
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
    return LayerTrial(
        step=replace(step, weight=STORED_WEIGHT, statistics=_bare(step.statistics)),
        passes=(pack,),
        shape=shape,
        kernel=(target.channels, step.channels, *step.kernel),
        weights={
            PLAIN_WEIGHT: lambda k: forward(k, range(step.channels), channels, target.channels),
            STORED_WEIGHT: laid,
        },
    )


def _bare(statistics: Statistics | None) -> Statistics | None:
    """Without what was learned, which no trial has."""
    if statistics is None:
        return None
    groups = statistics.groups and replace(statistics.groups, bias=None)
    return replace(statistics, scale=None, shift=None, groups=groups)


def _last_layer(step: ConvolveToPatches) -> LayerTrial:
    view, source = step.source, step.source.tensor
    seen = _grown(step.extents, step.kernel)
    padded = Tensor("padded", source.batch, seen, view.channels, source.precision)
    made, whole = _translated(step, padded), Region(0, source.batch)
    part = replace(step.part, activation=_exact(step.part.activation))
    pad = Pointwise(
        view,
        padded,
        whole,
        view.extents,
        step.origin,
        step.mode,
        table=part.table,
        activation=part.activation,
    )
    bare = replace(step, part=part, weight=STORED_WEIGHT, bias=None, activation=IDENTITY)
    shape = _plain_shape(padded, made, step.kernel)
    stored = turned_operands if step.wgmma else column_operands
    return _to_patches(bare, (pad,), shape, forward, stored)


def _transposed_last_layer(step: ConvTransposeToPatches) -> LayerTrial:
    views = [part.source for part in step.parts]
    extents, tensor = views[0].extents, views[0].tensor
    channels, whole = sum(view.channels for view in views), Region(0, tensor.batch)
    joined = Tensor("joined", tensor.batch, extents, channels, tensor.precision)
    double, one = (2, 2, 2), (1, 1, 1)
    shape = _plain_shape(joined, _translated(step, joined), (4, 4, 4))
    shape = replace(shape, stride=double, before=one, after=one, transposed=True)
    parts = tuple(ActivatedView(view, None, IDENTITY) for view in views)
    bare = replace(step, parts=parts, weight=STORED_WEIGHT, bias=None, activation=IDENTITY)
    passes = tuple(_side_by_side(parts, joined, whole))
    return _to_patches(bare, passes, shape, transposed, cell_operands)


def _doubling_layer(step: ConvTransposeToCells) -> LayerTrial:
    """Plainly a convolution to as many channels as cells have, from what is written again."""
    source, made = step.source, step.target.tensor
    again = replace(source, name="again")
    one, outputs = (1, 1, 1), step.target.channels
    copy = Pointwise(
        TensorView(source, source.extents),
        again,
        Region(0, source.batch),
        source.extents,
        (0, 0, 0),
        "zero",
    )
    beyond = triple(
        cells + 1 - extent for cells, extent in zip(made.extents, source.extents, strict=True)
    )
    shape = replace(_plain_shape(again, made, (2, 2, 2)), after=beyond)
    slots = range(source.channels)

    def plain(kernel: FloatArray) -> LaidWeight:
        return subpixels(kernel.swapaxes(0, 1), one, slots, source.channels, outputs)

    def stored(kernel: FloatArray) -> LaidWeight:
        return doubling_operands(kernel.swapaxes(0, 1), slots, source.channels)

    return LayerTrial(
        step=replace(step, weight=STORED_WEIGHT, statistics=_bare(step.statistics)),
        passes=(copy,),
        shape=shape,
        kernel=(outputs, source.channels, 3, 3, 3),
        weights={PLAIN_WEIGHT: plain, STORED_WEIGHT: stored},
    )


def _doubling_layer_of_voxels(step: ConvTransposeVoxels) -> LayerTrial:
    """Plainly a convolution of single voxels to as many channels as cells have."""
    read = replace(step.source, activation=_exact(step.source.activation))
    source, made, outputs = read.source.tensor, step.target.tensor, step.target.channels
    activated = replace(source, name="activated")
    slots = range(source.channels)

    def plain(kernel: FloatArray) -> LaidWeight:
        return cells_as_outputs(kernel.swapaxes(0, 1), slots, source.channels, outputs)

    def stored(kernel: FloatArray) -> LaidWeight:
        return voxel_operands(kernel.swapaxes(0, 1), slots, source.channels)

    return LayerTrial(
        step=replace(step, source=read, weight=STORED_WEIGHT),
        passes=tuple(_side_by_side((read,), activated, Region(0, source.batch))),
        shape=_plain_shape(activated, made, (1, 1, 1)),
        kernel=(outputs, source.channels, 2, 2, 2),
        weights={PLAIN_WEIGHT: plain, STORED_WEIGHT: stored},
    )


def _layer_by_planes(step: ConvolveByPlanes) -> LayerTrial:
    """Plainly a convolution from the activated parts, which are written side by side."""
    made, channels, one = step.target, step.channels, (1, 1, 1)
    parts = tuple(replace(part, activation=_exact(part.activation)) for part in step.parts)
    extents = parts[0].source.extents
    activated = Tensor("activated", made.batch, extents, channels, made.precision)
    shape = replace(_plain_shape(activated, made, (3, 3, 3)), before=one, after=one)
    shape = replace(shape, stride=(step.stride,) * 3)
    slots, laid = range(channels), OPERANDS_BY_PLANES[step.stride]
    return LayerTrial(
        step=replace(step, parts=parts, weight=STORED_WEIGHT, statistics=_bare(step.statistics)),
        passes=tuple(_side_by_side(parts, activated, Region(0, made.batch))),
        shape=shape,
        kernel=(made.channels, channels, 3, 3, 3),
        weights={
            PLAIN_WEIGHT: lambda k: forward(k, slots, channels, made.channels),
            STORED_WEIGHT: lambda k: laid(k, slots, channels),
        },
    )


def _exact(activation: Activation) -> Activation:
    """With a slope that leaves no more digits than the sums of both convolutions hold."""
    return activation if activation.slope in (0, 1) else replace(activation, slope=0.25)


def _translated(step: ConvolveToPatches | ConvTransposeToPatches, source: Tensor) -> Tensor:
    return Tensor(TRANSLATED, source.batch, step.extents, step.channels, source.precision)


def _to_patches(
    step: ConvolveToPatches | ConvTransposeToPatches,
    passes: tuple[Pointwise, ...],
    shape: Convolution,
    plain: Callable[[FloatArray, Slots, int, int], LaidWeight],
    stored: Callable[[FloatArray, Slots, int], LaidWeight],
) -> LayerTrial:
    """The trial of a last layer; plain, stored: how both convolutions have their weight."""
    channels = passes[0].target.channels
    ends = (channels, step.channels) if shape.transposed else (step.channels, channels)
    slots = range(channels)
    return LayerTrial(
        step=step,
        passes=passes,
        shape=shape,
        kernel=(*ends, *shape.kernel),
        weights={
            PLAIN_WEIGHT: lambda k: plain(k, slots, channels, step.channels),
            STORED_WEIGHT: lambda k: stored(k, slots, channels),
        },
    )


def _side_by_side(
    parts: Iterable[ActivatedView], target: Tensor, patches: Region
) -> Iterator[Pointwise]:
    """Passes that write parts into one tensor, the channels of each behind those before."""
    first = 0
    for part in parts:
        view = part.source
        yield Pointwise(
            view,
            target,
            patches,
            view.extents,
            (0, 0, 0),
            "zero",
            first,
            part.table,
            part.activation,
        )
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


def _grown(extents: Triple, kernel: Triple, stride: int = 1) -> Triple:
    """What a kernel reads for so many voxels of its result."""
    sizes = zip(extents, kernel, strict=True)
    return triple((extent - 1) * stride + taps for extent, taps in sizes)
