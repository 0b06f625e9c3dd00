"""Other forms of layers, with which the custom kernels of inner layers compete, and the forms of
transposed convolutions by cuDNN: as the data gradient, and by sub-pixels or phases.

A convolution to few channels by cuDNN is also compared with `convolve_narrow`, which was not
expected to be faster there. That kernel has no figures here yet.

The forms are timed on each GPU, as no rule on shapes was found that decides as well. On an H200 in
fp16, 2026-11-29, 422 distinct layers of 255 networks (tests/benchmarks/form_losses.py):

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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias, TypeGuard

from ...network.graph import Network
from ...network.layers import ONES, TWOS, multiplied
from ..kernels.table import fitting_kernel, kernel_of
from ..lowered import LayerForm, Lowered
from ..steps import Conv, Interleave, Normalise, PatchArray, Pointwise, Statistics, Step
from ..tensors import TensorView
from .lowering import lower

_MOST_WEIGHTS = 4
"""Most weights by phases for each of a data gradient that they are compared with: others are 0. A
large stride would take up to 8 times as many, of several GB with many channels.
"""

PassOfForm: TypeAlias = Statistics | Pointwise | Normalise | Interleave


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A convolution, and passes, with the same result as a step of a program.

    name: of the form. lowered: the program that has them. convolve: the convolution. passes: those
    that write the source as a custom kernel activates or joins it, and all that read the output.
    """

    name: LayerForm
    lowered: Lowered
    convolve: Conv
    passes: tuple[PassOfForm, ...]


def compared(lowered: Lowered) -> Iterator[Conv]:
    """Yield the convolutions of a program that may be computed in another form."""
    for step in lowered.steps:
        if isinstance(step, Conv) and forms_of(lowered, step):
            yield step


def forms_of(lowered: Lowered, step: Conv) -> tuple[LayerForm, ...]:
    """Return the forms in which a convolution of a program may be computed instead.

    In blocks of a volume, only custom kernels have such forms. There are none for a last layer that
    writes the patches, as cuDNN would write a tensor, which other steps than passes read; and none
    for a layer that shares its vectors, as cuDNN writes whole ones.
    """
    forms = kernel_of(step).forms
    if forms and not _is_alone(lowered, step):
        return ()
    if forms or step.kernel is not None or lowered.layout.in_blocks:
        return forms
    if any(isinstance(one, Interleave) and one.source == step.target for one in lowered.steps):
        return ("gradient",)
    if _may_be_narrow(lowered, step):
        return ("narrow",)
    return _forms_of_gradient(step) if step.geometry.transposed else ()


def _forms_of_gradient(step: Conv) -> tuple[LayerForm, ...]:
    """Return the form to compare a data gradient with, if few enough of its weights are 0."""
    geometry = step.geometry
    if geometry.groups > 1 or prod(geometry.stride) == 1:
        return ()
    along = zip(geometry.kernel, geometry.stride, strict=True)
    weights = prod(-(-taps // stride) * stride for taps, stride in along)
    if weights > _MOST_WEIGHTS * prod(geometry.kernel):
        return ()
    doubles = step.target.extents == multiplied(TWOS, step.source.extents)
    is_plain = geometry.stride == TWOS and geometry.dilation == ONES
    return ("subpixel",) if doubles and is_plain else ("phases",)


def _is_alone(lowered: Lowered, step: Conv) -> bool:
    """Return whether a convolution is the only one to write a tensor."""
    outputs = (one.output for one in lowered.steps if isinstance(one, Conv))
    return isinstance(step.output, TensorView) and sum(o == step.output for o in outputs) == 1


def _may_be_narrow(lowered: Lowered, step: Conv) -> bool:
    """Return whether `convolve_narrow` may compute a whole convolution that cuDNN does."""
    found = fitting_kernel(step, lowered.layout, lowered.gpu)
    return step.region is None and found is not None and found.source == "convolve_narrow"


def other_forms(network: Network, lowered: Lowered, step: Conv) -> Iterator[OtherForm]:
    """Yield a step of a program in its other forms.

    A form that its layer cannot take leaves the step as it is, and is not yielded: steps of cells,
    and of groups that share vectors, look like plain convolutions to few channels.
    """
    for name in forms_of(lowered, step):
        forms = {**lowered.layout.forms, step.layer: name}
        other = lower(network, replace(lowered.layout, forms=forms), lowered.gpu)
        convolutions = (one for one in other.steps if isinstance(one, Conv))
        [convolve] = [one for one in convolutions if one.layer == step.layer]
        if convolve == step:
            continue
        added = _added_passes(lowered, step, other, convolve) if step.kernel else ()
        yield OtherForm(name, other, convolve, (*added, *passes_over(other, convolve.output)))


def passes_over(lowered: Lowered, output: TensorView | PatchArray) -> Iterator[PassOfForm]:
    """Yield the steps that compute statistics of an output or read it to write another tensor.

    A layer that computes statistics or an activation in its epilogue leaves less to these, and one
    in another form may let them be fused. The voxels of phases are read as the tensor of another
    form is, unless they are written to a joined map, to which another form's tensor is copied. So
    are the voxels of a pass that may be the epilogue of another form. Steps that read a whole
    joined map do so in any form.
    """
    for step in lowered.steps:
        if isinstance(step, PassOfForm) and _reads(step, output):
            yield step
            if _replaces(step, lowered):
                yield from passes_over(lowered, step.target.whole)


def _reads(step: PassOfForm, output: TensorView | PatchArray) -> bool:
    """Return whether a step reads an output; of a joined map, just these channels."""
    if isinstance(output, PatchArray):
        return False
    if output.lanes is None:
        return output.tensor.name in step.flow.read_names
    return isinstance(step, Pointwise) and output in (step.source, step.residual)


def _replaces(step: PassOfForm, lowered: Lowered) -> TypeGuard[Pointwise | Interleave]:
    """Return whether later steps read what a pass writes as they would read an output in another
    form.
    """
    match step:
        case Interleave():
            return step.output.is_whole
        case Pointwise(table=table, residual=None, sampling=None):
            is_fixed = table is None or table.name in lowered.constants
            return is_fixed and step.output.is_whole
        case _:
            return False


def _added_passes(
    lowered: Lowered, step: Conv, other: Lowered, convolve: Conv
) -> Iterator[Pointwise | Normalise]:
    """Yield the passes that only exist to write the source of a convolution in another form.

    If other steps read that source too, the program has as many passes as before.
    """
    writing = list(_passes_to(other, convolve))
    more = len(writing) - sum(1 for _ in _passes_to(lowered, step))
    elsewhere = _passes_elsewhere(other, convolve) - _passes_elsewhere(lowered, step)
    yield from writing[: max(0, min(more, elsewhere))]


def _passes_to(lowered: Lowered, step: Conv) -> Iterator[Pointwise | Normalise]:
    """Yield the passes that write what a convolution reads."""
    read = {view.source.tensor.name for view in step.views}
    return (one for one in _passes(lowered.steps) if one.flow.written_names & read)


def _passes_elsewhere(lowered: Lowered, step: Conv) -> int:
    """Return how many passes of a program are not over a convolution's output."""
    own = sum(1 for _ in _passes(passes_over(lowered, step.output)))
    return sum(1 for _ in _passes(lowered.steps)) - own


def _passes(steps: Iterable[Step]) -> Iterator[Pointwise | Normalise]:
    return (step for step in steps if isinstance(step, Pointwise | Normalise))
