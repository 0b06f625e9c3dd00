"""Operators that read around a voxel: convolution, pooling and padding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...network.layers import (
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Pad,
    PadMode,
    Pool,
    Triple,
    subtracted,
    triple,
)
from .graph_builder import AS_SLICES, Builder, GraphTensor, Rule
from .operator_graph import Array, Operator, integers

_ZERO: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class _KernelWindow:
    """Geometry of a kernel.

    kernel, stride, dilation: along D, H and W. before, after: padding at the ends.
    """

    kernel: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    after: Triple

    @property
    def is_even(self) -> bool:
        """Whether both ends have the same padding."""
        return self.before == self.after


def _window_of(operator: Operator, kernel: Triple, extents: Triple) -> _KernelWindow:
    """Return the geometry of a convolution or pooling that does not enlarge."""
    one: Triple = (1, 1, 1)
    stride, dilation = operator.triple("strides", one), operator.triple("dilations", one)
    if operator.triple("kernel_shape", kernel) != kernel or min(*stride, *dilation, *kernel) < 1:
        raise operator.refusal("has an invalid kernel or strides")
    before, after = _pads(operator)
    automatic = operator.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            (-(-extent // step) - 1) * step + (taps - 1) * apart + 1 - extent
            for extent, step, taps, apart in zip(extents, stride, kernel, dilation, strict=True)
        ]
        if min(missing) < -1:
            raise operator.refusal(
                "skips voxels between its windows, which runtimes do differently"
            )
        voxels = [max(0, one) for one in missing]
        before, after = _split_evenly(voxels, more_after=automatic == "SAME_UPPER")
    return _KernelWindow(kernel, stride, dilation, before, after)


def _split_evenly(missing: list[int], *, more_after: bool) -> tuple[Triple, Triple]:
    """Split padding between both ends of each axis; an odd voxel goes to the end or the start."""
    few: Triple = (missing[0] // 2, missing[1] // 2, missing[2] // 2)
    many: Triple = (missing[0] - few[0], missing[1] - few[1], missing[2] - few[2])
    return (few, many) if more_after else (many, few)


def _pads(operator: Operator) -> tuple[Triple, Triple]:
    pads = operator.integers("pads", (0,) * 6)
    if len(pads) != 6 or min(pads) < 0:
        raise operator.refusal("has pads that do not fit a 3D kernel")
    return (pads[0], pads[1], pads[2]), (pads[3], pads[4], pads[5])


def _kernel(operator: Operator, weight: Array) -> Triple:
    if weight.ndim == 4:
        raise operator.refusal("is 2-D, and only 3-D generators are supported")
    if weight.ndim != 5:
        raise operator.refusal(f"has a weight of {weight.ndim} axes instead of five")
    return weight.shape[2], weight.shape[3], weight.shape[4]


def _groups(operator: Operator, channels: int, into: int) -> int:
    groups = operator.integer("group", 1)
    if groups < 1 or channels % groups or into % groups:
        raise operator.refusal(f"has {groups} groups, which do not divide its channels")
    return groups


def _in_three_axes(builder: Builder, operator: Operator) -> tuple[GraphTensor, Operator]:
    """Return the tensor of a layer that reads around each voxel, and the operator in three axes.

    On slices as a batch, a kernel of two axes is one slice deep.
    """
    source = builder.tensor(operator)
    if source.axes != AS_SLICES:
        return builder.tensor(operator, in_order=True), operator
    attributes = dict(operator.attributes)
    for name, of_one in _OF_ONE_SLICE.items():
        if name in attributes:
            values = integers(attributes[name])
            ends = (values[:2], values[2:]) if name == "pads" else (values,)
            attributes[name] = tuple(one for end in ends for one in (of_one, *end))
    return source, replace(operator, attributes=attributes)


_OF_ONE_SLICE = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}
"""Attributes along the axes of a kernel, with their value along D for one slice."""


def _weight(builder: Builder, operator: Operator, source: GraphTensor) -> Array:
    """Return the weight of a convolution, along three axes."""
    weight = builder.weight(operator, 1)
    is_flat = source.axes == AS_SLICES and weight.ndim == len(AS_SLICES)
    return weight[:, :, None] if is_flat else weight


def _convolve(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Conv; zero padding that differs between the ends becomes a separate layer."""
    source, operator = _in_three_axes(builder, operator)
    weight = _weight(builder, operator, source)
    window = _window_of(operator, _kernel(operator, weight), source.extents)
    out = weight.shape[0]
    groups = _groups(operator, source.channels, out)
    if weight.shape[1] * groups != source.channels:
        raise operator.refusal(f"takes {weight.shape[1] * groups} channels of {source.channels}")
    if not window.is_even:
        source = builder.add(operator, Pad("zero", window.before, window.after), source)
    names = _kept(builder, operator, weight, out)
    padding = window.before if window.is_even else _ZERO
    sizes = window.stride, padding, window.dilation, groups
    layer = Conv3d(source.channels, out, window.kernel, *names, *sizes)
    return builder.add(operator, layer, source)


def _kept(builder: Builder, operator: Operator, weight: Array, out: int) -> tuple[str, str | None]:
    bias = builder.array(operator, 2)
    if bias is not None:
        bias = builder.weight(operator, 2, (out,))
    name = builder.keep("weight", weight)
    return name, None if bias is None else builder.keep("bias", bias)


def _convolve_transposed(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert ConvTranspose; a Crop layer removes what PyTorch's padding cannot."""
    source, operator = _in_three_axes(builder, operator)
    weight = _weight(builder, operator, source)
    kernel = _kernel(operator, weight)
    groups = _groups(operator, source.channels, 0)
    if weight.shape[0] != source.channels:
        raise operator.refusal(f"takes {weight.shape[0]} channels of {source.channels}")
    window = _window_of(operator, kernel, (1, 1, 1))
    start, end = _cut_ends(operator, window, source.extents)
    more = subtracted(start, end)
    # The runtimes take output padding below the stride; whole strides are zeros after the input.
    zeros = triple(max(0, a) // step for a, step in zip(more, window.stride, strict=True))
    extra = triple(max(0, a) % step for a, step in zip(more, window.stride, strict=True))
    if any(zeros):
        source = builder.add(operator, Pad("zero", _ZERO, zeros), source)
    out = weight.shape[1] * groups
    names = _kept(builder, operator, weight, out)
    sizes = window.stride, start, extra, window.dilation, groups
    layer = ConvTranspose3d(source.channels, out, kernel, *names, *sizes)
    output = builder.add(operator, layer, source)
    return builder.cropped(operator, output, [*_ZERO, *(max(0, -a) for a in more)])


def _cut_ends(operator: Operator, window: _KernelWindow, extents: Triple) -> tuple[Triple, Triple]:
    """Return the voxels to remove from the kernel's output at the start and the end of each axis.

    Fewer than none at the end are added.
    """
    automatic = operator.text("auto_pad", "NOTSET")
    extra = operator.triple("output_padding", _ZERO)
    asked = operator.attributes.get("output_shape")
    if asked is None and automatic in ("NOTSET", "VALID"):
        before, after = _pads(operator)
        return before, subtracted(after, extra)
    if asked is None:
        whole = [extent * step for extent, step in zip(extents, window.stride, strict=True)]
    else:
        whole = list(integers(asked)[-3:])
    spread = [
        (extent - 1) * step + (taps - 1) * apart + 1
        for extent, step, taps, apart in zip(
            extents, window.stride, window.kernel, window.dilation, strict=True
        )
    ]
    if len(whole) != 3:
        raise operator.refusal("requests an output size that its kernel cannot produce")
    cut = [a + more - b for a, more, b in zip(spread, extra, whole, strict=True)]
    if asked is None and min(cut) < 0:
        raise operator.refusal("has a stride beyond its kernel, which runtimes do differently")
    before, _ = _split_evenly([max(0, one) for one in cut], more_after=automatic == "SAME_UPPER")
    return before, triple(a - start - b for a, start, b in zip(spread, before, whole, strict=True))


_PAD_MODES: dict[str, PadMode] = {"reflect": "reflect", "edge": "replicate"}


def _pad(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert Pad; negative padding is cropped."""
    source = builder.tensor(operator)
    ends = _pad_ends(builder, operator, len(source.axes))
    before, after = [0] * 5, [0] * 5
    for place, (low, high) in ends.items():
        before[source.axes[place]], after[source.axes[place]] = low, high
    mode = _pad_mode(builder, operator)
    if before[0] or after[0] or min(before[1], after[1]) < 0:
        raise operator.refusal("pads the batch or cuts channels, which is not supported")
    if before[1] or after[1]:
        source = _more_channels(builder, operator, source, mode, (before[1], after[1]))
    grown = [max(0, voxels) for voxels in (*before[2:], *after[2:])]
    cut = [max(0, -voxels) for voxels in (*before[2:], *after[2:])]
    if any(cut):
        source = builder.cropped(operator, source, cut)
    if not any(grown):
        return source
    layer = Pad(mode, (grown[0], grown[1], grown[2]), (grown[3], grown[4], grown[5]))
    return builder.add(operator, layer, source)


def _more_channels(
    builder: Builder, operator: Operator, source: GraphTensor, mode: PadMode, ends: tuple[int, int]
) -> GraphTensor:
    """Add channels of one number before and after those of a tensor."""
    if mode in ("reflect", "replicate") or sum(ends) > _MOST_CHANNELS:
        raise operator.refusal(f"pads channels by {max(ends)} in a mode that is not supported")
    value = mode.value if isinstance(mode, Constant) else 0.0
    output = source
    for at, count in enumerate(ends):
        if empty := builder.filled(operator, source, count, value):
            output = builder.add(operator, Concat(), *((output, empty) if at else (empty, output)))
    return output


_MOST_CHANNELS = 4096


def _pad_ends(builder: Builder, operator: Operator, rank: int) -> dict[int, tuple[int, int]]:
    """Return the padding before and after, by axis index of the file."""
    stated = operator.attributes.get("pads", builder.array(operator, 1))
    named = builder.array(operator, 3)
    axes = tuple(range(rank)) if named is None else integers(named)
    pads = () if stated is None else integers(stated)
    if len(pads) != 2 * len(axes) or any(not -rank <= axis < rank for axis in axes):
        raise operator.refusal("does not give the factor of each axis")
    return {axis % rank: (pads[at], pads[len(axes) + at]) for at, axis in enumerate(axes)}


def _pad_mode(builder: Builder, operator: Operator) -> PadMode:
    mode = operator.text("mode", "constant")
    if mode in _PAD_MODES:
        return _PAD_MODES[mode]
    if mode != "constant":
        raise operator.refusal(f"has the mode {mode}, which is not supported")
    stated = builder.array(operator, 2)
    value = operator.number("value", 0.0) if stated is None or stated.size != 1 else stated.item()
    return Constant(float(value)) if value else "zero"


def _pool(builder: Builder, operator: Operator) -> GraphTensor:
    """Convert MaxPool and AveragePool; uneven padding becomes a separate layer."""
    source, operator = _in_three_axes(builder, operator)
    is_max = operator.kind == "MaxPool"
    window = _pool_window(operator, source.extents)
    counts = bool(operator.attributes.get("count_include_pad", 0))
    if not (window.is_even or is_max or counts):
        raise operator.refusal("averages without its uneven padding, which is not supported")
    padding = window.before
    if not window.is_even:
        # A window that reaches past a border contains its voxels: repeated, they are no larger.
        mode: PadMode = "replicate" if is_max else "zero"
        source = builder.add(operator, Pad(mode, window.before, window.after), source)
        padding = _ZERO
    sizes = window.kernel, window.stride, padding
    if is_max:
        return builder.add(operator, Pool("largest", *sizes), source)
    return builder.add(operator, Pool("mean", *sizes, counts or not any(padding)), source)


def _pool_window(operator: Operator, extents: Triple) -> _KernelWindow:
    """Return the geometry of a pooling, padded at the end for extents that are rounded up."""
    window = _window_of(operator, operator.triple("kernel_shape", _ZERO), extents)
    if window.dilation != (1, 1, 1):
        raise operator.refusal("has dilation, which is not supported")
    sizes = [*zip(extents, window.kernel, window.stride, window.before, window.after, strict=True)]
    if any(max(ends) >= taps for _, taps, _, *ends in sizes):
        raise operator.refusal("has windows that are entirely in the padding")
    if not operator.attributes.get("ceil_mode"):
        return window
    rounded = replace(window, after=triple(_end_of_last_window(*along) for along in sizes))
    if rounded != window and operator.kind != "MaxPool":
        raise operator.refusal("rounds extents up, which is not supported")
    return rounded


def _end_of_last_window(extent: int, taps: int, step: int, before: int, after: int) -> int:
    """Return the padding at the end with which a last window that is cut off is a whole one.

    A window that would start in that padding is none.
    """
    last = -(-(extent + before + after - taps) // step) * step
    if last >= extent + before:
        last -= step
    return max(after, last + taps - extent - before)


SPATIAL_RULES: Mapping[str, Rule] = {
    "Conv": _convolve,
    "ConvTranspose": _convolve_transposed,
    "Pad": _pad,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
}
"""Rules of the operators of convolution, pooling and padding."""
