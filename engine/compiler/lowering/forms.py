"""What the own kernel of a transposed convolution competes with."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...network.graph import Network
from ..steps import (
    Convolve,
    ConvTransposeToCells,
    Lowered,
    Statistics,
    TensorView,
    TransposedForm,
)
from .lowering import lower

OTHER_FORMS: tuple[TransposedForm, ...] = ("gradient", "subpixel")


@dataclass(frozen=True, slots=True)
class OtherForm:
    """A convolution by cuDNN that gives what the own kernel gives, and a pass for the statistics.

    name: of the form. lowered: the program that has them. convolve: the convolution. statistics:
    the pass; None where the own kernel takes none.
    """

    name: TransposedForm
    lowered: Lowered
    convolve: Convolve
    statistics: Statistics | None


def other_forms(
    network: Network, lowered: Lowered, step: ConvTransposeToCells
) -> Iterator[OtherForm]:
    """The forms of a step of a program."""
    for name in OTHER_FORMS:
        transposed = {**lowered.layout.transposed, step.layer: name}
        other = lower(network, replace(lowered.layout, transposed=transposed), lowered.card)
        [convolve] = [
            one for one in other.steps if isinstance(one, Convolve) and one.layer == step.layer
        ]
        view = TensorView(convolve.target, step.target.extents, shuffled=name == "subpixel")
        statistics = step.statistics and replace(step.statistics, source=view)
        yield OtherForm(name, other, convolve, statistics)
