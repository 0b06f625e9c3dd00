"""Conv and ConvTranspose as layers."""

from dataclasses import dataclass

from ...network.layers import Conv3d, ConvTranspose3d, Crop, Pad, Triple
from .builder import Builder, word
from .file import Operator
from .folding import integers
from .tensors import Array
from .values import GraphTensor

_NONE: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class KernelWindow:
    """How a kernel goes over a tensor.

    kernel, stride, dilation: along D, H and W. before, after: padding at the ends.
    """

    kernel: Triple
    stride: Triple
    dilation: Triple
    before: Triple
    after: Triple

    @property
    def is_even(self) -> bool:
        """Whether both ends are padded alike."""
        return self.before == self.after


def triple(operator: Operator, name: str, usual: Triple) -> Triple:
    """An attribute of three numbers, along D, H and W."""
    values = integers(operator.attributes.get(name, usual))
    if len(values) != 3:
        raise operator.refusal(f"has {len(values)} numbers for {name}, where 3-D needs three")
    return values[0], values[1], values[2]


def window_of(operator: Operator, kernel: Triple, extents: Triple) -> KernelWindow:
    """The window of a convolution or pooling that does not enlarge."""
    one: Triple = (1, 1, 1)
    stride, dilation = triple(operator, "strides", one), triple(operator, "dilations", one)
    if triple(operator, "kernel_shape", kernel) != kernel or min(*stride, *dilation, *kernel) < 1:
        raise operator.refusal("has a kernel or strides that make no sense")
    before, after = _pads(operator)
    automatic = word(operator, "auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            max(0, (-(-extent // step) - 1) * step + (taps - 1) * apart + 1 - extent)
            for extent, step, taps, apart in zip(extents, stride, kernel, dilation, strict=True)
        ]
        before, after = split_evenly(missing, more_after=automatic == "SAME_UPPER")
    return KernelWindow(kernel, stride, dilation, before, after)


def split_evenly(missing: list[int], *, more_after: bool) -> tuple[Triple, Triple]:
    """So many voxels on both ends of each axis; one of odd ones goes to the end, or the start."""
    few: Triple = (missing[0] // 2, missing[1] // 2, missing[2] // 2)
    many: Triple = (missing[0] - few[0], missing[1] - few[1], missing[2] - few[2])
    return (few, many) if more_after else (many, few)


def _pads(operator: Operator) -> tuple[Triple, Triple]:
    pads = integers(operator.attributes.get("pads", (0,) * 6))
    if len(pads) != 6 or min(pads) < 0:
        raise operator.refusal("has pads that are not those of a 3-D kernel")
    return (pads[0], pads[1], pads[2]), (pads[3], pads[4], pads[5])


def _kernel(operator: Operator, weight: Array) -> Triple:
    if weight.ndim == 4:
        raise operator.refusal("is 2-D, and only 3-D generators are supported")
    if weight.ndim != 5:
        raise operator.refusal(f"has a weight of {weight.ndim} axes, where 3-D has five")
    return weight.shape[2], weight.shape[3], weight.shape[4]


def _groups(operator: Operator, channels: int, into: int) -> int:
    [groups] = integers(operator.attributes.get("group", 1))
    if groups < 1 or channels % groups or into % groups:
        raise operator.refusal(f"has {groups} groups, which its channels do not make")
    return groups


def convolve(builder: Builder, operator: Operator) -> GraphTensor:
    """Conv; zeros that are not alike on both ends become a layer of their own."""
    source = builder.tensor(operator, in_order=True)
    weight = builder.weight(operator, 1)
    window = window_of(operator, _kernel(operator, weight), source.extents)
    out = weight.shape[0]
    groups = _groups(operator, source.channels, out)
    if weight.shape[1] * groups != source.channels:
        raise operator.refusal(f"takes {weight.shape[1] * groups} channels of {source.channels}")
    if not window.is_even:
        source = builder.add(operator, Pad("zero", window.before, window.after), source)
    names = _kept(builder, operator, weight, out)
    padding = window.before if window.is_even else _NONE
    sizes = window.stride, padding, window.dilation, groups
    layer = Conv3d(source.channels, out, window.kernel, *names, *sizes)
    return builder.add(operator, layer, source)


def _kept(builder: Builder, operator: Operator, weight: Array, out: int) -> tuple[str, str | None]:
    bias = builder.array(operator, 2)
    if bias is not None:
        bias = builder.weight(operator, 2, (out,))
    name = builder.keep("weight", weight)
    return name, None if bias is None else builder.keep("bias", bias)


def convolve_transposed(builder: Builder, operator: Operator) -> GraphTensor:
    """ConvTranspose; what PyTorch cannot cut off at one end is cropped."""
    source = builder.tensor(operator, in_order=True)
    weight = builder.weight(operator, 1)
    kernel = _kernel(operator, weight)
    groups = _groups(operator, source.channels, 0)
    if weight.shape[0] != source.channels:
        raise operator.refusal(f"takes {weight.shape[0]} channels of {source.channels}")
    window = window_of(operator, kernel, (1, 1, 1))
    extra = triple(operator, "output_padding", _NONE)
    before, after = _cut_ends(operator, window, extra, source.extents)
    # PyTorch cuts both ends alike; what the second one is to keep it grows by, or is cropped.
    growth = [extra[axis] + before[axis] - after[axis] for axis in range(3)]
    grown: Triple = (max(0, growth[0]), max(0, growth[1]), max(0, growth[2]))
    cropped: Triple = (max(0, -growth[0]), max(0, -growth[1]), max(0, -growth[2]))
    out = weight.shape[1] * groups
    names = _kept(builder, operator, weight, out)
    sizes = window.stride, before, grown, window.dilation, groups
    layer = ConvTranspose3d(source.channels, out, kernel, *names, *sizes)
    made = builder.add(operator, layer, source)
    return builder.add(operator, Crop(_NONE, cropped), made) if any(cropped) else made


def _cut_ends(
    operator: Operator, window: KernelWindow, extra: Triple, extents: Triple
) -> tuple[Triple, Triple]:
    """Voxels that are cut off what the kernel spreads, at the start and the end of each axis."""
    automatic = word(operator, "auto_pad", "NOTSET")
    asked = operator.attributes.get("output_shape")
    if asked is None and automatic in ("NOTSET", "VALID"):
        return _pads(operator)
    if asked is None:
        whole = [extent * step for extent, step in zip(extents, window.stride, strict=True)]
    else:
        whole = list(integers(asked)[-3:])
    spread = [
        (extent - 1) * step + (taps - 1) * apart + 1 + more
        for extent, step, taps, apart, more in zip(
            extents, window.stride, window.kernel, window.dilation, extra, strict=True
        )
    ]
    cut = [a - b for a, b in zip(spread, whole, strict=True)]
    if len(whole) != 3 or min(cut) < 0:
        raise operator.refusal("asks for an output that its kernel does not reach")
    return split_evenly(cut, more_after=automatic == "SAME_UPPER")
