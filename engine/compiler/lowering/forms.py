"""What the own kernels of layers between the outermost compete with."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from ...network.graph import Network
from ..lowered import LayerForm, Lowered
from ..steps import (
    Convolve,
    ConvolveByPlanes,
    ConvTransposeToCells,
    ConvTransposeVoxels,
    Normalise,
    Pointwise,
    Statistics,
)
from ..tensors import Tensor
from .lowering import lower

ComparedStep: TypeAlias = ConvTransposeToCells | ConvTransposeVoxels | ConvolveByPlanes
PassOfForm: TypeAlias = Statistics | Pointwise | Normalise


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A convolution by cuDNN, and passes, that give what the own kernel gives.

    name: of the form. lowered: the program that has them. convolve: the convolution. passes: one
    that writes the source as the own kernel activates it, and all over what is made.
    """

    name: LayerForm
    lowered: Lowered
    convolve: Convolve
    passes: tuple[PassOfForm, ...]


def names_of_other_forms(step: ComparedStep) -> tuple[LayerForm, ...]:
    """All that a layer may be done by but the own kernel."""
    match step:
        case ConvTransposeToCells():
            return "gradient", "subpixel"
        case ConvTransposeVoxels():
            return ("cells",)
        case ConvolveByPlanes():
            return ("plain",)


def other_forms(network: Network, lowered: Lowered, step: ComparedStep) -> Iterator[OtherForm]:
    """The forms of a step of a program."""
    for name in names_of_other_forms(step):
        forms = {**lowered.layout.forms, step.layer: name}
        other = lower(network, replace(lowered.layout, forms=forms), lowered.card)
        [convolve] = [
            one for one in other.steps if isinstance(one, Convolve) and one.layer == step.layer
        ]
        passes = *_added_pass(lowered, other, convolve), *passes_over(other, convolve.target)
        yield OtherForm(name, other, convolve, passes)


def passes_over(lowered: Lowered, tensor: Tensor) -> Iterator[PassOfForm]:
    """What measures a tensor, and what reads it to write another.

    A layer that measures what it makes leaves less to these, and one of another form may let them
    be joined.
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


def _added_pass(lowered: Lowered, other: Lowered, convolve: Convolve) -> Iterator[PassOfForm]:
    """The pass that writes the source of a convolution for that alone."""
    passes, others = list(_passes(lowered)), list(_passes(other))
    if len(others) > len(passes):
        for step in others:
            made = step.pointwise if isinstance(step, Normalise) else step
            if made.target == convolve.source:
                yield step


def _passes(lowered: Lowered) -> Iterator[Pointwise | Normalise]:
    return (step for step in lowered.steps if isinstance(step, Pointwise | Normalise))
