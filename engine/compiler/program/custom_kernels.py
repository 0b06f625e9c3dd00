"""Lower convolutions to the first custom kernel that fits; list inputs that a kernel may read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...network.layers import Conv3d, ConvTranspose3d, FloatArray, Pad, Triple
from ..kernels.spec import ConvKernel
from ..kernels.table import fitting_kernel
from ..steps import ActivatedView, Conv, Geometry, PatchArray, Pointwise
from ..tensors import Tensor, TensorView
from ..weight_layout import Slots
from .builder import (
    Value,
    ValuePart,
    Writer,
    negative,
)

_ZERO: Triple = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class KernelInputs:
    """One way in which a kernel may read the input of a convolution.

    inputs: the patches, or views of tensors that may not be written yet. slots: stored position of
    each channel. pad: padding that is left to the kernel. write: returns the inputs once their
    tensors are written; None if they are.
    """

    inputs: tuple[ActivatedView, ...] | PatchArray
    slots: Slots
    pad: Pad
    write: Callable[[], tuple[ActivatedView, ...]] | None = None


def geometry_of(conv: Conv3d | ConvTranspose3d, pad: Pad | None = None) -> Geometry:
    """Return the geometry of a layer; pad: that of its value, None for the layer's own."""
    pad = pad or own_pad(conv)
    return Geometry(
        conv.kernel,
        conv.stride,
        pad.before,
        pad.after,
        conv.dilation,
        conv.groups,
        isinstance(conv, ConvTranspose3d),
        pad.mode,
    )


def own_pad(conv: Conv3d | ConvTranspose3d) -> Pad:
    """Return the zero padding of a layer's input."""
    return Pad("zero", conv.padding, conv.padding)


def append_custom(
    writer: Writer,
    wanted: Conv,
    weight: FloatArray,
    operands: Iterator[KernelInputs],
) -> Conv | None:
    """Append a convolution by the first kernel that fits it; None if there is none.

    wanted: the convolution without inputs, of its layer's geometry; its output need not be there.
    """
    if writer.layout.forms.get(wanted.layer) not in (None, "own"):
        return None
    for operand in operands:
        pad = operand.pad
        geometry = replace(wanted.geometry, before=pad.before, after=pad.after, mode=pad.mode)
        conv = replace(wanted, inputs=operand.inputs, geometry=geometry)
        spec = fitting_kernel(conv, writer.layout, writer.gpu)
        if spec is not None:
            inputs = operand.write() if operand.write else operand.inputs
            conv = _with_constants(writer, spec, replace(conv, inputs=inputs), weight, operand)
            writer.steps.append(conv)
            return conv
    return None


def _with_constants(
    writer: Writer, spec: ConvKernel, conv: Conv, weight: FloatArray, operand: KernelInputs
) -> Conv:
    assert spec.pack is not None
    laid = spec.pack(weight, operand.slots, conv.channels)
    if spec.has_float_weight:
        key = writer.constant(f"{conv.layer}.weights", laid.numbers())
    else:
        key = writer.weight(f"{conv.layer}.stored", laid)
    output = conv.output
    if isinstance(output, TensorView):
        of = output.tensor
        output = replace(output, tensor=writer.tensor(of.name, of.extents, of.channels))
    return replace(conv, kernel=spec.source, weight=key, output=output)


def unwritten(
    writer: Writer, name: str, extents: Triple, channels: int, scale: float | None = None
) -> Tensor:
    """Return a tensor that a kernel would read or write."""
    layout = writer.layout
    return Tensor(name, layout.batch, extents, channels, layout.precision, scale)


def operands_of(
    writer: Writer, name: str, conv: Conv3d | ConvTranspose3d
) -> Iterator[KernelInputs]:
    """Yield the value as it is if a kernel may compute the rest of it, else written as a whole.

    In blocks of a volume, whose halos are paddings, the padding is left to the kernel.
    """
    value, pad = writer.operand(name), own_pad(conv)
    if writer.scale(name) is not None:
        return  # split fp16 is for convolutions that plans do, too
    if writer.layout.in_blocks and value.pad is not None and not any(conv.padding):
        yield from _as_it_is(value, value.pad)
    elif value.is_elementwise:
        yield from _as_it_is(value, pad)
    if value.is_bare and value.parts[0].source.is_whole:
        return
    dense = unwritten(writer, name, value.extents, value.stored)
    yield KernelInputs(
        (ActivatedView(dense.whole),),
        value.slots,
        pad,
        lambda: (ActivatedView(writer.dense(name)[1].whole),),
    )


def operand_as_it_is(
    writer: Writer, name: str, conv: Conv3d | ConvTranspose3d
) -> Iterator[KernelInputs]:
    """Yield the unwritten value, if a kernel may compute the rest of it."""
    value = writer.operand(name)
    if value.is_elementwise:
        yield from _as_it_is(value, own_pad(conv))


def padded_operands(writer: Writer, layer: str, value: Value) -> Iterator[KernelInputs]:
    """Yield a padded value as it is, activated in the layout of its source, or with its border.

    layer: reads the value, and pads it past its source. Only blocks of a volume are written with a
    border, as each of them has its own.
    """
    pad, part = value.pad, value.parts[0]
    assert pad is not None
    if value.sampling is None:
        yield from _as_it_is(value, pad)
        is_read = part.residual is None and not (part.source.shuffled and part.activation.slopes)
        if len(value.parts) == 1 and is_read and not part.is_bare:
            yield KernelInputs(
                (ActivatedView(part.source),),
                value.slots,
                pad,
                lambda: (ActivatedView(_activated(writer, layer, part)),),
            )
    if writer.layout.in_blocks:
        bordered = unwritten(writer, layer, value.extents, value.stored)
        inside = Pad("replicate", _ZERO, _ZERO)

        def write() -> tuple[ActivatedView, ...]:
            target = writer.tensor(f"{layer}.bordered", value.extents, value.stored)
            writer.write_part(value, target, writer.all_patches, negative(pad.before))
            return (ActivatedView(target.whole),)

        yield KernelInputs((ActivatedView(bordered.whole),), value.slots, inside, write)


def _as_it_is(value: Value, pad: Pad) -> Iterator[KernelInputs]:
    if value.sampling is None and all(part.is_fusible for part in value.parts):
        views = tuple(ActivatedView(p.source, p.table, p.activation) for p in value.parts)
        yield KernelInputs(views, value.slots, pad)


def _activated(writer: Writer, layer: str, part: ValuePart) -> TensorView:
    """Write a part in the layout of its source, as space-to-depth if the source is."""
    source = part.source.tensor
    target = writer.tensor(f"{layer}.source", source.extents, source.channels)
    writer.steps.append(
        Pointwise(
            source.whole,
            target,
            writer.all_patches,
            source.extents,
            _ZERO,
            "zero",
            table=part.table,
            activation=part.activation,
        )
    )
    return replace(part.source, tensor=target)
