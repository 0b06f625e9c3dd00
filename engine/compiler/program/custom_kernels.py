"""Lower convolutions to the first custom kernel that fits; list inputs that a kernel may read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...network.layers import ZEROS, Conv3d, ConvTranspose3d, FloatArray, Pad, Triple, negative
from ..kernels.spec import ConvKernel
from ..kernels.table import fitting_kernel
from ..steps import ActivatedView, Conv, Geometry, PatchArray, Pointwise
from ..tensors import Tensor, TensorView
from ..weight_layout import Slots
from .builder import (
    ProgramBuilder,
    Value,
    ValuePart,
)


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


def geometry_of(conv: Conv3d | ConvTranspose3d) -> Geometry:
    """Return the geometry of a layer with its own padding."""
    return Geometry(
        conv.kernel,
        conv.stride,
        conv.padding,
        conv.padding,
        conv.dilation,
        conv.groups,
        isinstance(conv, ConvTranspose3d),
    )


def own_pad(conv: Conv3d | ConvTranspose3d) -> Pad:
    """Return the zero padding of a layer's input."""
    return Pad("zero", conv.padding, conv.padding)


def append_custom(
    builder: ProgramBuilder,
    wanted: Conv,
    weight: FloatArray,
    operands: Iterator[KernelInputs],
) -> Conv | None:
    """Append a convolution by the first kernel that fits it; None if there is none.

    wanted: the convolution without inputs, of its layer's geometry; its output need not be there.
    """
    if builder.layout.forms.get(wanted.layer) not in (None, "custom", "narrow"):
        return None
    if wanted.layer in builder.off_grid:
        return None  # kernels find the borders of a volume on the grid
    for operand in operands:
        pad = operand.pad
        geometry = replace(wanted.geometry, before=pad.before, after=pad.after, mode=pad.mode)
        conv = replace(wanted, inputs=operand.inputs, geometry=geometry)
        spec = fitting_kernel(conv, builder.layout, builder.gpu)
        if spec is not None:
            inputs = operand.write() if operand.write else operand.inputs
            conv = _with_constants(builder, spec, replace(conv, inputs=inputs), weight, operand)
            builder.steps.append(conv)
            return conv
    return None


def _with_constants(
    builder: ProgramBuilder, spec: ConvKernel, conv: Conv, weight: FloatArray, operand: KernelInputs
) -> Conv:
    assert spec.pack is not None
    packed = spec.pack(weight, operand.slots, conv.channels)
    if spec.has_float_weight:
        key = builder.constant(f"{conv.layer}.weights", packed.numbers())
    else:
        key = builder.weight(f"{conv.layer}.stored", packed)
    output = conv.output
    if isinstance(output, TensorView) and conv.lanes is None:
        of = output.tensor
        output = replace(output, tensor=builder.tensor(of.name, of.extents, of.channels))
    return replace(conv, kernel=spec.source, weight=key, output=output)


def unwritten(builder: ProgramBuilder, name: str, extents: Triple, channels: int) -> Tensor:
    """Return a tensor that a kernel would read or write."""
    layout = builder.layout
    return Tensor(name, layout.batch, extents, channels, layout.precision)


def operands_of(
    builder: ProgramBuilder, name: str, conv: Conv3d | ConvTranspose3d
) -> Iterator[KernelInputs]:
    """Yield the value as it is if a kernel may compute the rest of it, else written as a whole.

    In blocks of a volume, whose halos are paddings, the padding is left to the kernel.
    """
    value, pad = builder.operand(name), own_pad(conv)
    if builder.scale(name) is not None:
        return  # split fp16 is for convolutions that plans do, too
    if builder.layout.in_blocks and value.pad is not None and not any(conv.padding):
        yield from _as_it_is(value, value.pad)
    elif value.is_elementwise:
        yield from _as_it_is(value, pad)
    if value.is_bare and value.parts[0].source.is_whole:
        return
    dense = unwritten(builder, name, value.extents, value.stored)
    yield KernelInputs(
        (ActivatedView(dense.whole),),
        value.slots,
        pad,
        lambda: (ActivatedView(builder.dense(name)[1].whole),),
    )


def operand_as_it_is(
    builder: ProgramBuilder, name: str, conv: Conv3d | ConvTranspose3d
) -> Iterator[KernelInputs]:
    """Yield the unwritten value, if a kernel may compute the rest of it."""
    value = builder.operand(name)
    if value.is_elementwise:
        yield from _as_it_is(value, own_pad(conv))


def padded_operands(builder: ProgramBuilder, layer: str, value: Value) -> Iterator[KernelInputs]:
    """Yield a padded value as it is, activated in the layout of its source, or with its border.

    layer: reads the value, and pads it past its source. Only blocks of a volume are written with a
    border, as each of them has its own.
    """
    pad, part = value.pad, value.parts[0]
    assert pad is not None
    if value.sampling is None:
        yield from _as_it_is(value, pad)
        is_read = part.residual is None and not (part.source.shuffled and part.activation.slopes)
        if len(value.parts) == 1 and is_read and not part.norm and not part.is_bare:
            yield KernelInputs(
                (ActivatedView(part.source),),
                value.slots,
                pad,
                lambda: (ActivatedView(_activated(builder, layer, part)),),
            )
    if builder.layout.in_blocks:
        bordered = unwritten(builder, layer, value.extents, value.stored)
        inside = Pad("replicate", ZEROS, ZEROS)

        def write() -> tuple[ActivatedView, ...]:
            target = builder.tensor(f"{layer}.bordered", value.extents, value.stored)
            builder.write_part(value, target.whole, builder.all_patches, negative(pad.before))
            return (ActivatedView(target.whole),)

        yield KernelInputs((ActivatedView(bordered.whole),), value.slots, inside, write)


def _as_it_is(value: Value, pad: Pad) -> Iterator[KernelInputs]:
    if value.sampling is None and all(part.is_fusible for part in value.parts):
        views = tuple(ActivatedView(p.source, p.table, p.activation) for p in value.parts)
        yield KernelInputs(views, value.slots, pad)


def _activated(builder: ProgramBuilder, layer: str, part: ValuePart) -> TensorView:
    """Write a part in the layout of its source, as space-to-depth if the source is."""
    source = part.source.tensor
    target = builder.tensor(f"{layer}.source", source.extents, source.channels)
    builder.steps.append(
        Pointwise(
            source.whole,
            target.whole,
            builder.all_patches,
            source.extents,
            ZEROS,
            "zero",
            table=part.table,
            activation=part.activation,
        )
    )
    return replace(part.source, tensor=target)
