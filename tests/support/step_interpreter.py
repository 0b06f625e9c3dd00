"""Steps of a compiled program carried out in numpy, one voxel rule at a time, in float32."""

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from math import erf

import numpy as np

from cuda_cyclegan.engine.compiler.kernels.table import kernel_of
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.program.memory import MemoryPlan
from cuda_cyclegan.engine.compiler.steps import (
    ActivatedView,
    Activation,
    AddPatches,
    ChannelNorm,
    Conv,
    Geometry,
    Interleave,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
)
from cuda_cyclegan.engine.compiler.tensors import (
    NUMBER_BYTES,
    AffineTable,
    Region,
    Tensor,
    TensorView,
)
from cuda_cyclegan.engine.network.layers import (
    Constant,
    Downsample,
    FloatArray,
    PadMode,
    Pool,
    Triple,
    Upsample,
    multiplied,
    triple,
)


def interpret(
    lowered: Lowered, patches: FloatArray, out_channels: int, plan: MemoryPlan | None = None
) -> FloatArray:
    """Return what the steps make of patches [N, C, D, H, W]; everything unwritten is NaN.

    plan: where the tensors of 4-byte numbers lie in one block of memory, instead of each alone.
    """
    return Memory(lowered, patches, out_channels, plan).run()


def continued(positions: np.ndarray, extent: int, mode: PadMode) -> tuple[np.ndarray, np.ndarray]:
    """Positions on an axis after reflection or replication, and which of them hold a constant."""
    if mode == "reflect":
        positions = np.abs(positions)
        positions = np.where(positions >= extent, 2 * (extent - 1) - positions, positions)
    outside = (positions < 0) | (positions >= extent)
    is_constant = mode == "zero" or isinstance(mode, Constant)
    return np.clip(positions, 0, extent - 1), outside if is_constant else outside & False


def unpacked(conv: Conv, laid: FloatArray) -> FloatArray:
    """The weight [K, C, kD, kH, kW], of a transposed convolution [C, K, ...], as it was packed.

    Each number goes back to where packing takes a number of its place from. So this says nothing of
    a layout; the kernels do, which run on the CPU with it.
    """
    ends = conv.outputs, conv.channels
    shape = *(ends[::-1] if conv.geometry.transposed else ends), *conv.geometry.kernel
    size = int(np.prod(shape))
    assert size < 1 << 24  # float32 tells so many numbers apart
    pack = kernel_of(conv).pack
    assert pack is not None
    numbers = np.arange(1, size + 1, dtype=np.float32).reshape(shape)
    places = pack(numbers, range(conv.channels), conv.channels).numbers().astype(int)
    weight = np.full(size + 1, np.nan, np.float32)
    weight[places] = laid
    return weight[1:].reshape(shape)


class Memory:
    """Memory that the steps of a program read and write; everything unwritten is NaN.

    plan: as for `interpret`.
    """

    def __init__(
        self,
        lowered: Lowered,
        patches: FloatArray,
        out_channels: int,
        plan: MemoryPlan | None = None,
    ) -> None:
        self.plan = plan
        self.arena = np.full(plan.bytes // 4 if plan else 0, np.nan, np.float32)
        self.lowered = lowered
        self.weights = {name: weight.numbers() for name, weight in lowered.weights.items()}
        self.patches = patches
        shape = (len(patches), out_channels, *patches.shape[2:])
        self.translated = np.full(shape, np.nan, np.float32)
        self.tensors: dict[str, FloatArray] = {}
        self.tables: dict[str, FloatArray] = {}

    def run(self) -> FloatArray:
        for step in self.lowered.steps:
            self.take(step)
        return self.translated

    def of(self, tensor: Tensor) -> FloatArray:
        shape = (tensor.batch, *tensor.extents, tensor.channels)
        if self.plan is not None:
            first = self.plan.offsets[tensor.name] // 4
            return self.arena[first : first + tensor.bytes // 4].reshape(shape)
        if tensor.name not in self.tensors:
            self.tensors[tensor.name] = np.full(shape, np.nan, np.float32)
        return self.tensors[tensor.name]

    def read(self, view: TensorView) -> FloatArray:
        stored = self.of(view.tensor)
        if view.tensor.scale is not None:
            stored = sum(high_and_low(stored)) / np.float32(view.tensor.scale)
        if view.shuffled:
            n, d, h, w, c = stored.shape
            stored = voxels_of(stored).reshape(n, 2 * d, 2 * h, 2 * w, c // 8)
        (d, h, w), (ed, eh, ew) = view.origin, view.extents
        lanes = slice(*view.lanes) if view.lanes else slice(None)
        return stored[:, d : d + ed, h : h + eh, w : w + ew, lanes]

    def scaled(self, values: FloatArray, table: AffineTable | None) -> FloatArray:
        if table is None:
            return values
        constant = self.lowered.constants.get(table.name)
        factor, summand = self.tables[table.name] if constant is None else constant
        repeats = values.shape[-1] // table.channels
        factor, summand = np.tile(factor, repeats), np.tile(summand, repeats)
        return values * factor[:, None, None, None] + summand[:, None, None, None]

    def take(self, step: Step) -> None:
        match step:
            case Pack():
                self.pack(step)
            case Conv(kernel=None):
                self.convolve(step)
            case Conv():
                self.convolve_by_kernel(step)
                if step.statistics is not None:
                    self.measure(step.statistics)
            case Statistics():
                self.measure(step)
            case Pointwise():
                self.pass_over(step)
            case Normalise():
                self.measure(step.statistics)
                self.pass_over(step.pointwise)
                del self.tables[step.statistics.target.name]  # the launch keeps it to itself
            case Interleave():
                self.interleave(step)
            case SumTaps():
                self.sum_taps(step)
            case Unpack():
                values = self.evaluated(step)
                taken = values[..., step.source_channel : step.source_channel + step.count]
                into = slice(step.channel, step.channel + step.count)
                self.translated[:, into] = np.moveaxis(taken, -1, 1)
            case AddPatches():
                self.translated += self.patches

    def pack(self, step: Pack) -> None:
        target = self.of(step.target)
        target[...] = 0
        strides = (1, *step.stride)
        patches = self.patches[step.patches.first :][: step.patches.count]
        taps = product(range(step.channels), range(step.taps[0]), range(step.taps[1]))
        for channel, (c, i, j) in enumerate(taps):
            places = [
                np.arange(extent) * stride + tap + origin
                for extent, stride, tap, origin in zip(
                    step.target.extents, strides, (0, i, j), step.origin, strict=True
                )
            ]
            target[..., channel] = taken(patches[:, c, ..., None], places, step.mode)[..., 0]

    def convolve_by_kernel(self, step: Conv) -> None:
        laid = (self.lowered.constants | self.weights)[step.weight]
        weight = unpacked(step, laid)
        values = self.side_by_side(step.views) if step.views else np.moveaxis(self.patches, 1, -1)
        spread = transposed if step.geometry.transposed else moved
        made = spread(values, weight, step.geometry, step.output.extents)
        constants = self.lowered.constants
        bias = constants[step.bias] if step.bias else np.zeros(step.outputs, np.float32)
        made = activated(made + bias, step.activation)
        if step.translated is None:
            target = self.of(step.target)
            if step.output.shuffled:
                target = voxels_of(target)
            if step.output.lanes:
                target = target[..., slice(*step.output.lanes)]
            lanes = slice(*step.lanes) if step.lanes else slice(None)
            target[..., lanes] = made.reshape(target.shape)[..., lanes]
            return
        self.translated[...] = np.moveaxis(made, -1, 1)

    def side_by_side(self, parts: Iterable[ActivatedView]) -> FloatArray:
        evaluated = [
            activated(self.scaled(self.read(p.source), p.table), p.activation) for p in parts
        ]
        return np.concatenate(evaluated, axis=-1)

    def convolve(self, step: Conv) -> None:
        shape, region = step.shape, step.region or Region(0, step.target.batch)
        target = self.of(step.target)[region.first :][: region.count]
        assert region.plane + shape.target_extents[0] <= target.shape[1]
        target = target[:, region.plane : region.plane + shape.target_extents[0]]
        assert target.shape[1:4] == shape.target_extents
        assert self.of(step.source).shape[1:4] == shape.source_extents
        weight = self.weights[step.weight]
        source = self.of(step.source)
        if shape.split_fp16:
            self.convolve_split_fp16(step, source, weight, target)
            return
        target[...] = self.convolved(step, source, weight, target)

    def convolve_split_fp16(
        self, step: Conv, source: FloatArray, weight: FloatArray, target: FloatArray
    ) -> None:
        (high, low), (weight_high, weight_low) = high_and_low(source), high_and_low(weight)
        total = self.convolved(step, low, weight_high, target)
        total += self.convolved(step, high, weight_low, target)
        total += self.convolved(step, high, weight_high, target)
        target[...] = total * np.float32(step.scale)

    def convolved(
        self, step: Conv, source: FloatArray, weight: FloatArray, target: FloatArray
    ) -> FloatArray:
        """Each group by itself; the first axis of the weight is split into them."""
        groups = step.shape.groups
        parts = zip(*(np.split(a, groups, -1) for a in (source, target)), strict=True)
        weights = np.split(weight, groups)
        return np.concatenate(
            [
                self.convolved_group(step, part, own, into)
                for (part, into), own in zip(parts, weights, strict=True)
            ],
            -1,
        )

    def convolved_group(
        self, step: Conv, source: FloatArray, weight: FloatArray, target: FloatArray
    ) -> FloatArray:
        shape = step.shape
        padding = [(0, 0), *zip(shape.before, shape.after, strict=True), (0, 0)]
        if not shape.transposed:
            padded, extents = np.pad(source, padding), target.shape[1:4]
            return correlated(padded, weight, extents, shape.stride, shape.dilation)
        padded = np.pad(np.zeros_like(target), padding)
        made = np.tensordot(source, weight, 1)
        for tap in product(*(range(k) for k in shape.kernel)):
            places = zip(tap, shape.dilation, source.shape[1:4], shape.stride, strict=True)
            window = (
                slice(t * step, t * step + (extent - 1) * stride + 1, stride)
                for t, step, extent, stride in places
            )
            padded[:, *window] += made[:, :, :, :, *tap]
        extents = zip(shape.before, target.shape[1:4], strict=True)
        return padded[:, *(slice(before, before + extent) for before, extent in extents)]

    def measure(self, step: Statistics) -> None:
        values = self.read(step.source)
        mean, variance = values.mean((1, 2, 3)), values.var((1, 2, 3))
        constants = self.lowered.constants
        if groups := step.groups:
            biased = values + (constants[groups.bias] if groups.bias else 0)
            mean, variance = np.zeros_like(mean), np.zeros_like(variance)
            for first in range(0, groups.count * groups.channels, groups.channels):
                group = slice(first, first + groups.channels)
                mean[:, group] = biased[..., group].mean((1, 2, 3, 4))[:, None]
                variance[:, group] = biased[..., group].var((1, 2, 3, 4))[:, None]
            mean = mean - (constants[groups.bias] if groups.bias else 0)
        factor = 1 / np.sqrt(variance + step.epsilon)
        factor = factor * (constants[step.scale] if step.scale else 1)
        summand = (constants[step.shift] if step.shift else 0) - mean * factor
        self.tables[step.target.name] = np.stack([factor, summand])

    def evaluated(self, step: Pointwise | Unpack) -> FloatArray:
        values = self.scaled(self.read(step.source), step.table)
        if isinstance(step, Pointwise) and step.norm:
            values = self.normalised(values, step.norm)
        return self.activated(values, step.activation)

    def normalised(self, values: FloatArray, norm: ChannelNorm) -> FloatArray:
        own = values[..., : norm.channels]
        centred = own - own.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + norm.epsilon)
        made = np.zeros_like(values)
        made[..., : norm.channels] = centred / deviation
        return made * self.lowered.constants[norm.scale] + self.lowered.constants[norm.shift]

    def activated(self, values: FloatArray, activation: Activation) -> FloatArray:
        if activation.slopes is None:
            return activated(values, activation)
        return np.where(values < 0, self.lowered.constants[activation.slopes] * values, values)

    def pass_over(self, step: Pointwise) -> None:
        values = self.evaluated(step)
        if step.residual is not None:
            values = COMBINED[step.combination](values, self.read(step.residual))
            values = self.activated(values, step.after)
        if step.sampling is not None:
            values = sampled(values, step.sampling)
        assert values.shape[1:4] == step.extents
        values = of_patches(values, step.patches)
        target = self.of(step.target)
        if step.output.shuffled:
            target = voxels_of(target)
        places = [
            np.arange(extent) + origin
            for extent, origin in zip(step.output.extents, step.origin, strict=True)
        ]
        into = slice(*step.output.lanes) if step.output.lanes else slice(None)
        written = taken(values, places, step.mode)
        if step.target.scale is None:
            target[..., into] = written.reshape(*target.shape[:-1], -1)
            return
        eights = (written * np.float32(step.target.scale)).reshape(*written.shape[:-1], -1, 8)
        high = eights.astype(np.float16)
        pair = np.stack([high, eights - high], axis=-2).astype(np.float16)
        stored = pair.reshape(*written.shape[:-1], -1).view(np.float32)
        target[..., into] = stored.reshape(*target.shape[:-1], -1)

    def interleave(self, step: Interleave) -> None:
        source, target = self.of(step.source), self.of(step.target)
        n, *cells, _ = source.shape
        phases = source[..., : int(np.prod(step.stride)) * step.channels]
        phases = phases.reshape(n, *cells, *step.stride, step.channels)
        voxels = phases.transpose(0, 1, 4, 2, 5, 3, 6, 7)
        voxels = voxels.reshape(n, *multiplied(triple(cells), step.stride), step.channels)
        sides = zip(step.origin, target.shape[1:4], strict=True)
        kept = voxels[:, *(slice(first, first + extent) for first, extent in sides)]
        lanes = 16 // NUMBER_BYTES[step.target.precision]
        filling = -step.channels % lanes
        into = slice(*step.output.lanes) if step.output.lanes else slice(None)
        target[..., into] = np.pad(kept, [(0, 0)] * 4 + [(0, filling)])

    def sum_taps(self, step: SumTaps) -> None:
        source = self.of(step.source)
        depth, (_, height, width) = source.shape[1], step.extents
        bias = self.lowered.constants[step.bias] if step.bias else np.zeros(step.channels)
        for o in range(step.channels):
            total = np.full((len(source), depth, height, width), bias[o], np.float32)
            for i, j in product(range(step.taps[0]), range(step.taps[1])):
                channel = (o * step.taps[0] + i) * step.lane_w + j
                total += source[:, :, i : i + height, j : j + width, channel]
            patches = slice(step.patches.first, step.patches.first + step.patches.count)
            planes = slice(step.patches.plane, step.patches.plane + depth)
            self.translated[patches, o, planes] = activated(total, step.activation)


def moved(
    values: FloatArray, weight: FloatArray, geometry: Geometry, extents: Triple
) -> FloatArray:
    """A convolution of values [N, D, H, W, C], continued past their border."""
    total = np.zeros((len(values), *extents, len(weight)), np.float32)
    for tap in product(*(range(taps) for taps in geometry.kernel)):
        offsets = multiplied(triple(tap), geometry.dilation)
        sizes = zip(extents, geometry.stride, offsets, geometry.origin, strict=True)
        places = [np.arange(extent) * step + own + first for extent, step, own, first in sizes]
        total += taken(values, places, geometry.mode) @ weight[:, :, *tap].T
    return total


def transposed(
    values: FloatArray, weight: FloatArray, geometry: Geometry, extents: Triple
) -> FloatArray:
    """Each tap leads from voxel i to stride * i + tap, of which those within a border are kept."""
    sizes = zip(values.shape[1:4], geometry.stride, geometry.kernel, strict=True)
    whole = [(extent - 1) * step + taps for extent, step, taps in sizes]
    total = np.zeros((len(values), *whole, weight.shape[1]), np.float32)
    for tap in product(*(range(taps) for taps in geometry.kernel)):
        places = zip(tap, values.shape[1:4], geometry.stride, strict=True)
        window = (slice(t, t + (extent - 1) * step + 1, step) for t, extent, step in places)
        total[:, *window] += values @ weight[:, :, *tap]
    kept = zip(geometry.before, extents, strict=True)
    return total[:, *(slice(before, before + extent) for before, extent in kept)]


COMBINED: Mapping[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "gate": lambda values, gate: values * gate[..., :1],
}


def voxels_of(cells: FloatArray) -> FloatArray:
    """Cells [N, D, H, W, 8 C] of 2 x 2 x 2 voxels, seen as [N, D, 2, H, 2, W, 2, C]."""
    n, d, h, w, c = cells.shape
    return cells.reshape(n, d, h, w, 2, 2, 2, c // 8).transpose(0, 1, 4, 2, 5, 3, 6, 7)


def high_and_low(stored: FloatArray) -> list[FloatArray]:
    """High and low parts of numbers that are stored as split fp16."""
    pair = np.ascontiguousarray(stored).view(np.float16).reshape(*stored.shape[:-1], -1, 2, 8)
    parts = (pair[..., half, :].astype(np.float32) for half in range(2))
    return [part.reshape(stored.shape) for part in parts]


def of_patches(values: FloatArray, region: Region) -> FloatArray:
    return values[region.first : region.first + region.count]


def activated(values: FloatArray, activation: Activation) -> FloatArray:
    match activation.curve:
        case "linear":
            return np.where(values < 0, activation.slope * values, values)
        case "elu":
            return np.where(values < 0, activation.slope * np.expm1(np.minimum(values, 0)), values)
        case "tanh":
            return np.tanh(values)
        case "sigmoid":
            return 1 / (1 + np.exp(-values))
        case "softplus":
            return np.logaddexp(np.float32(0), values)
        case "clip":
            return np.clip(values, activation.low, activation.high)
        case "erf":
            return np.vectorize(erf, [np.float32])(values)
        case "exp":
            return np.exp(values)
        case "inverse":
            return 1 / np.maximum(values, np.float32(activation.low))
        case "inverse_root":
            return 1 / np.sqrt(np.maximum(values, np.float32(activation.low)))
        case "gelu":
            return values * (0.5 + 0.5 * np.vectorize(erf, [np.float32])(values * np.sqrt(0.5)))
        case "swish":
            power = activation.slope * values + activation.cube * values**3
            return values * (0.5 + 0.5 * np.tanh(0.5 * power))
        case "hard_swish":
            return values * np.clip(values / 6 + 0.5, 0, 1)
        case "mish":
            return values * np.tanh(np.logaddexp(np.float32(0), values))


def taken(values: FloatArray, places: list[np.ndarray], mode: PadMode) -> FloatArray:
    """Values [N, D, H, W, C] at positions of each axis, which may lie outside."""
    for axis, positions in enumerate(places, start=1):
        inside, outside = continued(positions, values.shape[axis], mode)
        values = np.take(values, inside, axis)
        if outside.any():
            constant = np.float32(mode.value if isinstance(mode, Constant) else 0)
            values[(slice(None),) * axis + (outside,)] = constant
    return values


def correlated(
    values: FloatArray,
    weight: FloatArray,
    extents: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...] = (1, 1, 1),
) -> FloatArray:
    """Return what a kernel [outputs, d, h, w, C] makes of values [N, D, H, W, C] that are padded
    already.

    Its planes one after another, each in one product of matrices.
    """
    kernel = weight.shape[1:4]
    reach = [(taps - 1) * apart + 1 for taps, apart in zip(kernel, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(values, reach, (1, 2, 3))
    voxels = (slice(0, (e - 1) * s + 1, s) for e, s in zip(extents, stride, strict=True))
    seen = seen[:, *voxels, :, *(slice(None, None, apart) for apart in dilation)]
    assert seen.shape[1:4] == tuple(extents)
    return sum(
        np.tensordot(seen[..., plane, :, :], weight[:, plane], ((5, 6, 4), (1, 2, 3)))
        for plane in range(kernel[0])
    )


def filtered(values: FloatArray, layer: Downsample) -> FloatArray:
    inside = values.shape[1:4]
    sides = zip(inside, layer.before, layer.after, strict=True)
    places = [np.arange(-before, extent + after) for extent, before, after in sides]
    padded = taken(values, places, layer.mode)
    total = np.zeros(
        (
            len(values),
            *(-(-e // f) for e, f in zip(inside, layer.factor, strict=True)),
            values.shape[-1],
        ),
        np.float32,
    )
    for tap in product(range(layer.taps), repeat=3):
        window = tuple(
            slice(t, t + extent, factor)
            for t, extent, factor in zip(tap, inside, layer.factor, strict=True)
        )
        total += padded[(slice(None), *window)] * np.prod([layer.filter[t] for t in tap])
    return total


def pooled(values: FloatArray, layer: Pool) -> FloatArray:
    """Pool by windows that extend into a border of the lowest numbers or of zeros."""
    is_largest = layer.mode == "largest"
    sides = [(0, 0), *((width, width) for width in layer.padding), (0, 0)]

    def windows(array: FloatArray, filling: float) -> FloatArray:
        padded = np.pad(array, sides, constant_values=filling)
        seen = np.lib.stride_tricks.sliding_window_view(padded, layer.kernel, axis=(1, 2, 3))
        depth, height, width = layer.stride
        return seen[:, ::depth, ::height, ::width]

    if is_largest:
        return windows(values, -np.inf).max((-3, -2, -1))
    there = np.full_like(values[:1, ..., :1], 1)
    counted = windows(there, 1.0 if layer.counts_padding else 0.0).sum((-3, -2, -1))
    return windows(values, 0.0).sum((-3, -2, -1)) / counted


def sampled(values: FloatArray, layer: Upsample | Downsample | Pool) -> FloatArray:
    if isinstance(layer, Downsample):
        return filtered(values, layer)
    if isinstance(layer, Pool):
        return pooled(values, layer)
    for axis, factor in enumerate(layer.factor, start=1):
        extent = values.shape[axis]
        positions = np.arange(extent * factor)
        if layer.mode == "nearest":
            values = np.take(values, positions // factor, axis)
            continue
        if layer.align_corners:
            places = positions * (extent - 1) / max(extent * factor - 1, 1)
        else:
            places = np.maximum((positions + 0.5) / factor - 0.5, 0)
        low = places.astype(int)
        high = np.minimum(low + 1, extent - 1)
        shape = [1] * 5
        shape[axis] = len(places)
        weight = (places - low).astype(np.float32).reshape(shape)
        low_values, high_values = np.take(values, low, axis), np.take(values, high, axis)
        values = low_values * (1 - weight) + high_values * weight
    return values
