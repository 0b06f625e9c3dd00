"""Other forms of layers, with which the custom kernels of inner layers compete, and the forms of
transposed convolutions by cuDNN: as the data gradient, and by sub-pixels or phases.

They are timed on each GPU, as no rule on shapes was found that decides as well. On an H200 in fp16,
2026-11-29, 422 distinct layers of 255 networks (tests/benchmarks/form_losses.py):

    custom kernel             layers   another form is faster   by more than 5 %   at most
    convolve_by_planes           232                       33                 27      34 %
      of 32 channels             107                        1                  0       2 %
      of 64                      125                       32                 27      34 %
    convolve_strided              90                        8                  6      14 %
    conv_transpose_to_cells      100                       39                 32     214 %
      if `pays`                  100                       25                 18     180 %

For convolve_by_planes the best rule found (32 channels; 64 from 32,000 voxels) leaves 9 layers that
lose more than 5 %, at most 23 %.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from ...network.graph import Network
from ...network.layers import TWOS, multiplied
from ..kernels.table import kernel_of
from ..lowered import LayerForm, Lowered
from ..steps import Conv, Interleave, Normalise, Pointwise, Statistics, planned
from ..tensors import Tensor, stored_channels
from .lowering import lower

_MOST_WEIGHTS = 4
"""Most weights by phases for each of a data gradient that they are compared with: others are 0. A
large stride would take up to 8 times as many, of several GB with many channels.
"""

PassOfForm: TypeAlias = Statistics | Pointwise | Normalise | Interleave


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A convolution by cuDNN, and passes, with the same result as a step of a program.

    name: of the form. lowered: the program that has them. convolve: the convolution. passes: one
    that writes the source as a custom kernel activates it, and all that read the output.
    """

    name: LayerForm
    lowered: Lowered
    convolve: Conv
    passes: tuple[PassOfForm, ...]


def compared(lowered: Lowered) -> Iterator[Conv]:
    """Yield the convolutions of a program that cuDNN may compute in another form."""
    for step in lowered.steps:
        if isinstance(step, Conv) and forms_of(lowered, step):
            yield step


def forms_of(lowered: Lowered, step: Conv) -> tuple[LayerForm, ...]:
    """Return the forms in which cuDNN may compute a convolution of a program instead.

    In blocks of a volume, only custom kernels have such forms.
    """
    forms, geometry = kernel_of(step).forms, step.geometry
    if forms or step.kernel is not None or lowered.layout.in_blocks:
        return forms
    if any(isinstance(one, Interleave) and one.source == step.target for one in lowered.steps):
        return ("gradient",)
    if not geometry.transposed or geometry.groups > 1 or prod(geometry.stride) == 1:
        return ()
    taps = zip(geometry.kernel, geometry.stride, strict=True)
    if prod(-(-count // step) * step for count, step in taps) > _MOST_WEIGHTS * prod(
        geometry.kernel
    ):
        return ()
    doubles = step.target.extents == multiplied(TWOS, step.source.extents)
    return ("subpixel",) if doubles and geometry.stride == TWOS else ("phases",)


def other_forms(network: Network, lowered: Lowered, step: Conv) -> Iterator[OtherForm]:
    """Yield a step of a program in its other forms."""
    for name in forms_of(lowered, step):
        forms = {**lowered.layout.forms, step.layer: name}
        other = lower(network, replace(lowered.layout, forms=forms), lowered.gpu)
        [convolve] = [one for one in planned(other.steps) if one.layer == step.layer]
        added = _added_pass(lowered, other, convolve) if step.kernel else ()
        yield OtherForm(name, other, convolve, (*added, *passes_over(other, convolve.target)))


def passes_over(lowered: Lowered, tensor: Tensor) -> Iterator[PassOfForm]:
    """Yield the steps that compute statistics of a tensor or read it to write another.

    A layer that computes statistics in its epilogue leaves less to these, and one in another form
    may let them be fused. The voxels of phases are read as the tensor of another form is, unless
    they are written to a joined map, to which another form's tensor is copied.
    """
    for step in lowered.steps:
        match step:
            case Statistics(source=source) | Pointwise(source=source):
                is_over = source.tensor == tensor
            case Normalise(statistics=statistics):
                is_over = statistics.source.tensor == tensor
            case Interleave(target=target, channels=channels) if step.source == tensor:
                is_over = True
                if target.channels == stored_channels(channels, target.precision):
                    yield from passes_over(lowered, target)
            case _:
                continue
        if is_over:
            yield step


def _added_pass(lowered: Lowered, other: Lowered, convolve: Conv) -> Iterator[PassOfForm]:
    """Yield the pass that only exists to write the source of a convolution."""
    passes, others = list(_passes(lowered)), list(_passes(other))
    if len(others) > len(passes):
        for step in others:
            written_by = step.pointwise if isinstance(step, Normalise) else step
            if written_by.target == convolve.source:
                yield step


def _passes(lowered: Lowered) -> Iterator[Pointwise | Normalise]:
    return (step for step in lowered.steps if isinstance(step, Pointwise | Normalise))
