"""Other forms of layers, with which the custom kernels of inner layers compete.

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
from typing import TypeAlias

from ...network.graph import Network
from ..kernels.table import kernel_of
from ..lowered import LayerForm, Lowered
from ..steps import Conv, Normalise, Pointwise, Statistics, planned
from ..tensors import Tensor
from .lowering import lower

PassOfForm: TypeAlias = Statistics | Pointwise | Normalise


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A convolution by cuDNN, and passes, with the same result as the custom kernel.

    name: of the form. lowered: the program that has them. convolve: the convolution. passes: one
    that writes the source as the custom kernel activates it, and all that read the output.
    """

    name: LayerForm
    lowered: Lowered
    convolve: Conv
    passes: tuple[PassOfForm, ...]


def compared(lowered: Lowered) -> Iterator[Conv]:
    """Yield the convolutions of a program that cuDNN may compute in another form."""
    for step in lowered.steps:
        if isinstance(step, Conv) and kernel_of(step).forms:
            yield step


def other_forms(network: Network, lowered: Lowered, step: Conv) -> Iterator[OtherForm]:
    """Yield a step of a program in its other forms."""
    for name in kernel_of(step).forms:
        forms = {**lowered.layout.forms, step.layer: name}
        other = lower(network, replace(lowered.layout, forms=forms), lowered.gpu)
        [convolve] = [one for one in planned(other.steps) if one.layer == step.layer]
        passes = *_added_pass(lowered, other, convolve), *passes_over(other, convolve.target)
        yield OtherForm(name, other, convolve, passes)


def passes_over(lowered: Lowered, tensor: Tensor) -> Iterator[PassOfForm]:
    """Yield the steps that compute statistics of a tensor or read it to write another.

    A layer that computes statistics in its epilogue leaves less to these, and one in another form
    may let them be fused.
    """
    for step in lowered.steps:
        match step:
            case Statistics(source=source) | Pointwise(source=source):
                is_over = source.tensor == tensor
            case Normalise(statistics=statistics):
                is_over = statistics.source.tensor == tensor
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
