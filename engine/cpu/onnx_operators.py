"""Layers as ONNX operators, in which both runtimes of the CPU compute the network."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace
from onnx import NodeProto, TensorProto, helper

from ..network.graph import Node
from ..network.layers import (
    Add,
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    Elu,
    Erf,
    Exp,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Inverse,
    LeakyRelu,
    Multiply,
    Pad,
    PadMode,
    Pool,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
    Triple,
    Upsample,
)

_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "zero": "constant"}
_LANES = 16
"""Values in the vector registers of AVX-512."""
_MOST_PHASES = 64
"""Limit of a transposed convolution's phases, each of which is an operator or two to compile: with
those of strides of 16, a network took two minutes.
"""
_TO_THE_END = (1 << 63) - 1
_FIRST, _LAST = (1, 2, 3, 4), (4, 1, 2, 3)
"""Axes of C, D, H and W in [N, C, D, H, W] and in [N, D, H, W, C]."""
_TO_FIRST, _TO_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)
"""Transpositions to [N, C, D, H, W] and to [N, D, H, W, C]."""
_Constants: TypeAlias = dict[str, "np.ndarray[Any, Any]"]


class Converter:
    """Turns layers into ONNX operators, and collects the arrays that these name.

    constants: all of these arrays. of_weights: names of those that depend on weights.

    Channels last: tensors between layers are [N, D, H, W, C]. Layers that look around are computed
    between two transpositions, which OpenVINO fuses, as its convolutions work on channels last.

    Wide outputs: in bf16, OpenVINO rounds the output of a convolution to bf16 unless an operator is
    fused with it. So an identity follows that it fuses and does not remove. A bias that is an input
    is added after the second transposition, as it would keep OpenVINO from fusing that.

    Exact norms: the runtimes' own operators add up the millions of voxels of a channel in a few
    float32 accumulators and lose up to five digits. Here no sum has more terms than an extent of
    the patch: a mean is taken along W, then H, then D, after the channel was centred by a rough
    mean, so that the variance E[c^2] - E[c]^2 cancels nothing (shifted data; Chan, Golub and
    LeVeque, Am. Stat. 37, 1983). The reshapes between keep OpenVINO from joining the three means.
    """

    def __init__(
        self,
        weights: Mapping[str, FloatArray],
        channels: Mapping[str, int],
        known: Mapping[str, Triple] = MappingProxyType({}),
        *,
        exact_norms: bool = False,
        by_columns: bool = False,
        by_phases: bool = False,
        channels_last: bool = False,
        wide_outputs: bool = False,
    ) -> None:
        self.constants: _Constants = {}
        self.of_weights = set[str]()
        self._axes, self._wide_outputs = _LAST if channels_last else _FIRST, wide_outputs
        self._exact_norms, self._by_columns, self._by_phases = exact_norms, by_columns, by_phases
        self._weights = weights
        self._channels = channels
        self._known = known

    def operators(self, node: Node) -> Iterable[NodeProto]:
        """Return the operators of one node; the last one has the node's name."""
        if self._axes == _LAST and isinstance(node.layer, _LOOKS_AROUND):
            yield from self._transposed(node)
        else:
            yield from self._operators(node)

    def _transposed(self, node: Node) -> Iterable[NodeProto]:
        [source], layer, made, bias = node.inputs, node.layer, node.name, None
        is_convolution = isinstance(layer, Conv3d | ConvTranspose3d)
        if self._wide_outputs and is_convolution and layer.bias:
            made, bias = f"{node.name}.unbiased", self._weight(layer.bias)
            layer = replace(layer, bias=None)
        turned, first = f"{node.name}.source", f"{node.name}.first"
        yield _transpose(source, turned, _TO_FIRST)
        if self._by_phases and isinstance(layer, ConvTranspose3d) and (phases := _phases(layer)):
            yield from self._in_phases(Node(made, layer, (turned,)), layer, phases)
        else:
            yield from self._operators(Node(first, layer, (turned,)))
            if self._wide_outputs and is_convolution:
                yield _widened(first, first := f"{first}.wide")
            yield _transpose(first, made, _TO_LAST)
        if bias:
            yield _node(node, "Add", [made, bias])

    def _operators(self, node: Node) -> Iterable[NodeProto]:
        match node.layer:
            case Conv3d() as conv if self._by_columns and _is_narrow(conv):
                yield from self._in_columns(node, conv)
            case ConvTranspose3d(out_channels=outputs) as conv if (
                self._by_phases and outputs < _LANES and (phases := _phases(conv))
            ):
                yield from self._in_phases(node, conv, phases)
            case Conv3d() | ConvTranspose3d() as conv:
                yield self._convolution(node, conv)
            case InstanceNorm() | GroupNorm() as norm if self._exact_norms:
                yield from self._exact_norm(node, norm)
            case InstanceNorm(channels, scale, shift, epsilon):
                inputs = [
                    *node.inputs,
                    self._weight(scale) if scale else self._filled(node, channels, 1.0),
                    self._weight(shift) if shift else self._filled(node, channels, 0.0),
                ]
                yield _node(node, "InstanceNormalization", inputs, epsilon=epsilon)
            case GroupNorm() as norm:
                yield from self._group_norm(node, norm)
            case ChannelAffine(_, scale, shift):
                yield from self._affine(node, node.inputs[0], scale, shift)
            case Pad(mode, before, after):
                yield self._pad(node, node.name, mode, before, after)
            case Upsample() as upsample:
                yield _resize(node, upsample, self._constant(node, "scales", _scales(upsample)))
            case Downsample() as downsample:
                yield from self._downsample(node, downsample)
            case Crop() | Channels() as piece:
                yield self._slice(node, piece)
            case Pool() as pool:
                yield _pool(node, pool)
            case LeakyRelu(slope):
                yield _node(node, "LeakyRelu", node.inputs, alpha=slope)
            case PRelu(_, slope):
                slopes = self._by_channel(node, "slope", self._weights[slope], axes=4)
                yield _node(node, "PRelu", [*node.inputs, slopes])
            case Clip(low, high):
                yield self._clip(node, low, high)
            case Elu(alpha):
                yield _node(node, "Elu", node.inputs, alpha=alpha)
            case Concat():
                yield _node(node, "Concat", node.inputs, axis=self._axes[0])
            case Inverse(low, root):
                yield from self._inverse(node, low, root=root)
            case Relu() | Softplus() | Tanh() | Sigmoid() | Erf() | Exp() | Add() as layer:
                yield _node(node, type(layer).__name__, node.inputs)
            case Subtract():
                yield _node(node, "Sub", node.inputs)
            case Multiply():
                yield _node(node, "Mul", node.inputs)

    def _weight(self, key: str) -> str:
        return self._of_weights(key, np.ascontiguousarray(self._weights[key], dtype=np.float32))

    def _of_weights(self, key: str, array: FloatArray) -> str:
        self.constants[key] = array
        self.of_weights.add(key)
        return key

    def _constant(self, node: Node, suffix: str, array: "np.ndarray[Any, Any]") -> str:
        key = f"{node.name}.{suffix}"
        self.constants[key] = array
        return key

    def _filled(self, node: Node, channels: int, value: float) -> str:
        name = "scale" if value else "shift"
        return self._constant(node, name, np.full(channels, value, np.float32))

    def _convolution(self, node: Node, conv: Conv3d | ConvTranspose3d) -> NodeProto:
        inputs = [*node.inputs, self._weight(conv.weight)]
        if conv.bias is not None:
            inputs.append(self._weight(conv.bias))
        attributes: dict[str, Any] = {
            "kernel_shape": conv.kernel,
            "strides": conv.stride,
            "pads": (*conv.padding, *conv.padding),
            "dilations": conv.dilation,
            "group": conv.groups,
        }
        if isinstance(conv, ConvTranspose3d):
            attributes["output_padding"] = conv.output_padding
            return _node(node, "ConvTranspose", inputs, **attributes)
        return _node(node, "Conv", inputs, **attributes)

    def _in_columns(self, node: Node, conv: Conv3d) -> Iterable[NodeProto]:
        """Return two convolutions in place of one: with taps along W as channels, and along W only.

        Vector units process 8 or 16 channels at a time. With few outputs, each tap along W becomes
        an output of its own, and then their shifted sum is computed; with few inputs, each shift by
        a tap becomes an input, before the rest of the kernel.
        """
        inputs, outputs, taps = conv.in_channels, conv.out_channels, conv.kernel[2]
        weight = self._weights[conv.weight]  # [outputs, inputs, kD, kH, kW]
        bias = [self._weight(conv.bias)] if conv.bias is not None else []
        (pad_d, pad_h, pad_w), (step_d, step_h, step_w) = conv.padding, conv.dilation
        across: dict[str, Any] = {
            "kernel_shape": (*conv.kernel[:2], 1),
            "strides": (*conv.stride[:2], 1),
            "pads": (pad_d, pad_h, 0) * 2,
            "dilations": (step_d, step_h, 1),
        }
        along: dict[str, Any] = {
            "kernel_shape": (1, 1, taps),
            "strides": (1, 1, conv.stride[2]),
            "pads": (0, 0, pad_w) * 2,
            "dilations": (1, 1, step_w),
        }
        columns = f"{node.name}.columns"
        if outputs < inputs:
            kernel = np.moveaxis(weight, 4, 1).reshape(outputs * taps, *weight.shape[1:4], 1)
            shifts = np.einsum("op,tw->optw", np.eye(outputs), np.eye(taps))
            first, second = kernel, shifts.reshape(outputs, outputs * taps, 1, 1, taps)
            how_first, how_second = across, along
        else:
            kernel = np.moveaxis(weight, 4, 2).reshape(outputs, inputs * taps, *conv.kernel[:2], 1)
            shifts = np.einsum("ij,tw->itjw", np.eye(inputs), np.eye(taps))
            first, second = shifts.reshape(inputs * taps, inputs, 1, 1, taps), kernel
            how_first, how_second = along, across
        first_key, second_key = (
            self._of_weights(f"{node.name}.{suffix}", np.ascontiguousarray(numbers, np.float32))
            for suffix, numbers in (("first", first), ("second", second))
        )
        operands = [*node.inputs, first_key]
        yield helper.make_node("Conv", operands, [columns], columns, **how_first)
        yield _node(node, "Conv", [columns, second_key, *bias], **how_second)

    def _in_phases(
        self, node: Node, conv: ConvTranspose3d, phases: Sequence[Sequence["_Phase"]]
    ) -> Iterable[NodeProto]:
        """Return a convolution for each phase of the stride; their outputs are interleaved.

        Phases with equally many taps share one convolution if they read the same voxels, or if the
        outputs of one are too few for vector units.
        """
        name, outputs = node.name, conv.out_channels
        joined = f"{name}.joined"
        weight = np.swapaxes(self._weights[conv.weight], 0, 1)  # [outputs, inputs, kD, kH, kW]
        positions = [*product(*phases)]
        kernels = [weight[:, :, *np.ix_(*(phase.taps for phase in at))] for at in positions]
        low = [min(phase.first for phase in axis) for axis in phases]
        high = [max(phase.first for phase in axis) for axis in phases]
        is_even = len({kernel.shape for kernel in kernels}) == 1
        if is_even and (low == high or outputs < _LANES):
            shared = joined if low == high else f"{name}.shared"
            kernel = np.concatenate(kernels)
            last = [max(phase.last for phase in axis) for axis in phases]
            yield from self._phase(node, conv, kernel, shared, [-first for first in low] + last)
            parts = [] if low == high else [f"{name}.part{n}" for n in range(len(positions))]
            for number, part in enumerate(parts):
                first = [phase.first for phase in positions[number]]
                starts = [number * outputs, *np.subtract(first, low)]
                stops = [starts[0] + outputs, *np.subtract(first, high)]
                yield self._cut(shared, part, (1, 2, 3, 4), starts, stops)
        else:
            parts = [f"{name}.part{number}" for number in range(len(positions))]
            for at, kernel, part in zip(positions, kernels, parts, strict=True):
                pads = [-phase.first for phase in at] + [phase.last for phase in at]
                yield from self._phase(node, conv, kernel, part, pads)
        if parts:
            yield helper.make_node("Concat", parts, [joined], joined, axis=1)
        yield from self._interleaved(node, conv, joined)

    def _phase(
        self,
        node: Node,
        conv: ConvTranspose3d,
        kernel: FloatArray,
        made: str,
        pads: Sequence[int],
    ) -> Iterable[NodeProto]:
        inputs = [*node.inputs, f"{made}.kernel"]
        self._of_weights(inputs[-1], np.ascontiguousarray(kernel, np.float32))
        if conv.bias is not None:
            inputs.append(f"{made}.bias")
            repeats = len(kernel) // conv.out_channels
            self._of_weights(inputs[-1], np.tile(self._weights[conv.bias], repeats))
        if self._wide_outputs:
            narrow = f"{made}.narrow"
            yield helper.make_node("Conv", inputs, [narrow], narrow, pads=pads)
            yield _widened(narrow, made)
        else:
            yield helper.make_node("Conv", inputs, [made], made, pads=pads)

    def _interleaved(self, node: Node, conv: ConvTranspose3d, joined: str) -> Iterable[NodeProto]:
        """Convert [N, phases * C, D, H, W] to [N, C, D * stride, H * stride, W * stride], or to
        that with channels last.
        """
        name, stride, channels = node.name, conv.stride, [conv.out_channels]
        extents, larger = f"{name}.extents", f"{name}.larger"
        yield helper.make_node("Shape", [joined], [extents], extents, start=2)
        factors = self._constant(node, "stride", np.array(stride, np.int64))
        yield helper.make_node("Mul", [extents, factors], [larger], larger)
        source, split, mixed = joined, f"{name}.parted", f"{name}.mixed"
        if self._axes == _LAST:  # so that whole voxels move
            source = f"{name}.last"
            yield _transpose(joined, source, _TO_LAST)
            parted, order = ([0], extents, [*stride, *channels]), (0, 1, 4, 2, 5, 3, 6, 7)
            whole = [0], larger, channels
        else:
            parted, order = ([0, *stride, *channels], extents), (0, 4, 5, 1, 6, 2, 7, 3)
            whole = [0, *channels], larger
        yield from self._reshape(source, split, parted)
        yield _transpose(split, mixed, order)
        yield from self._reshape(mixed, name, whole)

    def _reshape(
        self, source: str, made: str, extents: Sequence[str | list[int]]
    ) -> Iterable[NodeProto]:
        """Return a reshape to known extents and computed ones, which are tensors."""
        shape, parts = f"{made}.shape", list[str]()
        for number, part in enumerate(extents):
            if isinstance(part, list):
                key = f"{shape}{number}"
                self.constants[key] = np.array(part, np.int64)
                part = key
            parts.append(part)
        yield helper.make_node("Concat", parts, [shape], shape, axis=0)
        yield helper.make_node("Reshape", [source, shape], [made], made)

    def _slice(self, node: Node, piece: Crop | Channels) -> NodeProto:
        if isinstance(piece, Channels):
            starts, stops = [piece.first], [piece.first + piece.count]
            axes = [self._axes[0]]
        else:
            axes = [axis for axis in range(3) if piece.before[axis] or piece.after[axis]]
            starts = [piece.before[axis] for axis in axes]
            stops = [-piece.after[axis] for axis in axes]
            axes = [self._axes[1 + axis] for axis in axes]
        return self._cut(node.inputs[0], node.name, axes, starts, stops)

    def _cut(
        self,
        source: str,
        made: str,
        axes: Sequence[int],
        starts: Sequence[int],
        stops: Sequence[int],
    ) -> NodeProto:
        """Return a slice; stops of 0 and below count from the end, so that any extents work."""
        names: list[str] = []
        ends = [stop or _TO_THE_END for stop in stops]
        for key, numbers in (("starts", starts), ("stops", ends), ("axes", axes)):
            names.append(f"{made}.{key}")
            self.constants[names[-1]] = np.array(numbers, np.int64)
        return helper.make_node("Slice", [source, *names], [made], made)

    def _clip(self, node: Node, low: float | None, high: float | None) -> NodeProto:
        ends = [
            "" if end is None else self._constant(node, key, np.array(end, np.float32))
            for key, end in (("low", low), ("high", high))
        ]
        return _node(node, "Clip", [*node.inputs, *ends])

    def _inverse(self, node: Node, low: float, *, root: bool) -> Iterable[NodeProto]:
        least = self._constant(node, "low", np.array(low, np.float32))
        kept = f"{node.name}.kept"
        yield helper.make_node("Max", [*node.inputs, least], [kept], kept)
        if root:
            yield helper.make_node("Sqrt", [kept], [f"{node.name}.root"], f"{node.name}.root")
            kept = f"{node.name}.root"
        yield _node(node, "Reciprocal", [kept])

    def _exact_norm(self, node: Node, norm: InstanceNorm | GroupNorm) -> Iterable[NodeProto]:
        """(c - E[c]) / sqrt(E[c^2] - E[c]^2 + epsilon) * scale + shift, with c = x - rough mean.

        The rough mean is that of one in 16 rows: V[x] >= E[c]^2 / 16, so that the difference loses
        at most a factor of 17 to cancellation, and E[c^2] itself is summed by rows.
        """
        source, channels = node.inputs[0], norm.channels
        groups = norm.groups if isinstance(norm, GroupNorm) else channels
        made: list[NodeProto] = []

        def add(operator: str, *inputs: str, **attributes: Any) -> str:
            name = f"{node.name}.{len(made)}"
            made.append(helper.make_node(operator, inputs, [name], name, **attributes))
            return name

        def integers(*numbers: int) -> str:
            key = str([*numbers])
            self.constants[key] = np.array(numbers, np.int64)
            return key

        def mean_of_runs(values: str, runs: str) -> str:
            return add("ReduceMean", add("Reshape", values, runs), integers(1), keepdims=0)

        def by_channel(values: str) -> str:
            """[N * C] to [N, C, 1, 1, 1], each group with its mean."""
            if groups < channels:
                values = mean_of_runs(values, integers(-1, channels // groups))
                values = add("Reshape", values, integers(-1, groups, 1))
                values = add("Expand", values, integers(1, 1, channels // groups))
            return add("Reshape", values, integers(-1, channels, 1, 1, 1))

        if source in self._known:
            depth, height, width = self._known[source]
            columns, rows = integers(-1, depth), integers(-1, height)
            row_length = self._constant(node, "row_length", np.array([width], np.float32))
        else:
            of_depth, of_height, of_width = (
                add("Shape", source, start=at, end=at + 1) for at in (2, 3, 4)
            )
            columns, rows = (
                add("Concat", integers(-1), extent, axis=0) for extent in (of_depth, of_height)
            )
            row_length = add("Cast", of_width, to=TensorProto.FLOAT)
        starts, stops, steps = integers(0, 0), integers(_TO_THE_END, _TO_THE_END), integers(4, 4)
        some_rows = add("Slice", source, starts, stops, integers(2, 3), steps)
        rough = by_channel(add("ReduceMean", some_rows, integers(2, 3, 4)))
        centred = add("Sub", source, rough)
        lengths = add("ReduceL2", centred, integers(4))  # sqrt of the sum of squares of a row
        squares = add("Div", add("Mul", lengths, lengths), row_length)
        mean, square = (
            by_channel(mean_of_runs(mean_of_runs(values, rows), columns))
            for values in (add("ReduceMean", centred, integers(4)), squares)
        )
        variance = add("Relu", add("Sub", square, add("Mul", mean, mean)))
        epsilon = self._constant(node, "epsilon", np.array(norm.epsilon, np.float32))
        factor = add("Reciprocal", add("Sqrt", add("Add", variance, epsilon)))
        if norm.scale:
            factor = add("Mul", factor, self._by_channel(node, "scale", self._weights[norm.scale]))
        summand = add("Neg", add("Mul", mean, factor))
        if norm.shift:
            shift = self._by_channel(node, "shift", self._weights[norm.shift])
            summand = add("Add", summand, shift)
        scaled = add("Mul", centred, factor)
        yield from made
        yield _node(node, "Add", [scaled, summand])

    def _by_channel(self, node: Node, suffix: str, values: FloatArray, axes: int = 5) -> str:
        shape = [1] * axes
        shape[self._axes[0] - 5] = -1
        return self._of_weights(f"{node.name}.{suffix}", values.reshape(shape))

    def _group_norm(self, node: Node, norm: GroupNorm) -> Iterable[NodeProto]:
        """Return a group norm as an instance norm: GroupNormalization differs between opsets."""
        source, groups, name = node.inputs[0], norm.groups, node.name
        joined, normal, shape = f"{name}.joined", f"{name}.normal", f"{name}.shape"
        runs = self._constant(node, "runs", np.array([0, groups, -1], np.int64))
        yield helper.make_node("Reshape", [source, runs], [joined], joined)
        ones, zeros = (
            self._constant(node, key, np.full(groups, value, np.float32))
            for key, value in (("ones", 1.0), ("zeros", 0.0))
        )
        inputs = [joined, ones, zeros]
        operator = "InstanceNormalization"
        yield helper.make_node(operator, inputs, [normal], normal, epsilon=norm.epsilon)
        yield helper.make_node("Shape", [source], [shape], shape)
        if norm.scale is None and norm.shift is None:
            yield _node(node, "Reshape", [normal, shape])
            return
        parted = f"{name}.parted"
        yield helper.make_node("Reshape", [normal, shape], [parted], parted)
        yield from self._affine(node, parted, norm.scale, norm.shift)

    def _affine(
        self, node: Node, source: str, scale: str | None, shift: str | None
    ) -> Iterable[NodeProto]:
        factor, summand = (
            self._by_channel(node, suffix, self._weights[key] if key else filled(1, np.float32))
            for suffix, key, filled in (("scale", scale, np.ones), ("shift", shift, np.zeros))
        )
        scaled = f"{node.name}.scaled"
        yield helper.make_node("Mul", [source, factor], [scaled], scaled)
        yield _node(node, "Add", [scaled, summand])

    def _pad(
        self, node: Node, name: str, mode: PadMode, before: Triple, after: Triple
    ) -> NodeProto:
        sizes = np.zeros((2, 5), np.int64)
        sizes[:, self._axes[1:]] = before, after
        inputs = [*node.inputs, self._constant(node, "pads", sizes.ravel())]
        if isinstance(mode, Constant):
            inputs.append(self._constant(node, "value", np.array(mode.value, np.float32)))
        word = "constant" if isinstance(mode, Constant) else _PAD_MODES[mode]
        return helper.make_node("Pad", inputs, [name], name, mode=word)

    def _downsample(self, node: Node, layer: Downsample) -> Iterable[NodeProto]:
        """Return a filter as a depthwise convolution."""
        padded, weight = f"{node.name}.padded", layer.weight(self._channels[node.inputs[0]])
        yield self._pad(node, padded, layer.mode, layer.before, layer.after)
        inputs = [padded, self._constant(node, "filter", np.ascontiguousarray(weight))]
        sizes = {"kernel_shape": weight.shape[2:], "strides": layer.factor, "group": len(weight)}
        yield _node(node, "Conv", inputs, **sizes)


_LOOKS_AROUND = Conv3d | ConvTranspose3d | Pool | Upsample


def _transpose(source: str, made: str, order: Sequence[int]) -> NodeProto:
    return helper.make_node("Transpose", [source], [made], made, perm=order)


def _widened(source: str, made: str) -> NodeProto:
    """Return an identity, with which a convolution in bf16 writes float32."""
    return helper.make_node("LeakyRelu", [source], [made], made, alpha=1.0)


class _Phase(NamedTuple):
    """Taps of a transposed convolution that reach outputs at one position within the stride.

    taps: along one axis, of neighbouring source voxels. first: the first of these, counted from the
    voxel at the output.
    """

    taps: tuple[int, ...]
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.taps) - 1


def _phases(conv: ConvTranspose3d) -> list[list[_Phase]]:
    """Return phases along D, H and W; none unless outputs are stride times as many as the inputs,
    or if there are too many.

    Output o = stride * i + tap - padding: at o = stride * j + phase, a tap reads source voxel i = j
    + (phase + padding - tap) / stride.
    """
    found: list[list[_Phase]] = []
    axes = zip(conv.kernel, conv.stride, conv.padding, conv.output_padding, strict=True)
    for kernel, stride, padding, more in axes:
        if kernel - 2 * padding + more != stride:
            return []
        phases: list[_Phase] = []
        for phase in range(stride):
            taps = [t for t in reversed(range(kernel)) if (phase + padding - t) % stride == 0]
            if not taps:
                return []
            phases.append(_Phase((*taps,), (phase + padding - taps[0]) // stride))
        if any(phase.first > 0 or phase.last < 0 for phase in phases):
            return []
        found.append(phases)
    is_plain = conv.groups == 1 and conv.dilation == (1, 1, 1)
    return found if is_plain and 1 < prod(conv.stride) <= _MOST_PHASES else []


def _is_narrow(conv: Conv3d) -> bool:
    """Whether a convolution has too few channels for vector units, and taps to make more of."""
    fewest, taps = min(conv.in_channels, conv.out_channels), conv.kernel[2]
    step = conv.stride[2] if conv.out_channels < conv.in_channels else 1
    return conv.groups == 1 and step == 1 < taps and fewest * taps <= _LANES


def _node(node: Node, operator: str, inputs: Iterable[str], **attributes: Any) -> NodeProto:
    return helper.make_node(operator, [*inputs], [node.name], node.name, **attributes)


def _pool(node: Node, pool: Pool) -> NodeProto:
    sizes: dict[str, Any] = {
        "kernel_shape": pool.kernel,
        "strides": pool.stride,
        "pads": (*pool.padding, *pool.padding),
    }
    if pool.mode == "largest":
        return _node(node, "MaxPool", node.inputs, **sizes)
    counts = int(pool.counts_padding)
    return _node(node, "AveragePool", node.inputs, count_include_pad=counts, **sizes)


def _resize(node: Node, layer: Upsample, scales: str) -> NodeProto:
    if layer.mode == "nearest":
        sampling = {"mode": "nearest", "nearest_mode": "floor"}
        positions = "asymmetric"
    else:
        sampling = {"mode": "linear"}
        positions = "align_corners" if layer.align_corners else "half_pixel"
    return helper.make_node(
        "Resize",
        [*node.inputs, "", scales],
        [node.name],
        node.name,
        coordinate_transformation_mode=positions,
        **sampling,
    )


def _scales(layer: Upsample) -> FloatArray:
    return np.array([1, 1, *layer.factor], np.float32)
