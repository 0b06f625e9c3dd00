"""Lower a network to steps for the blocks of a volume."""

from dataclasses import replace

from ...network.graph import Network
from ...options import Precision
from ..blocks import BlockGrid
from ..card_properties import CardProperties
from ..kernels.table import kernel_of
from ..lowered import LayerForm, Lowered
from ..lowering.forms import compared
from ..lowering.lowering import lower
from ..lowering.operator_fusion import with_fused_statistics
from ..memory.fitting import ProgramRequest
from .undivided import with_low_resolutions_undivided


def lowered_blocks(
    network: Network,
    grid: BlockGrid,
    precision: Precision,
    card: CardProperties,
    without: frozenset[str],
) -> Lowered:
    """Return the steps for the blocks of a grid, which no memory limit affects.

    without: custom kernels, by their .cu files, that are wrong on the GPU.
    """
    request = ProgramRequest(grid.block, grid.batch, precision, card, without)
    layout = replace(next(request.layouts()), in_blocks=True)
    lowered = lower(network, layout, card)
    if forms := _other_forms(lowered):
        layout = replace(layout, forms=forms)
        lowered = lower(network, layout, card)
    lowered = _measured(lowered)
    if (one := grid.undivided) is None:
        return lowered
    whole = _measured(lower(network, replace(layout, patch=one.block, batch=1), card))
    return with_low_resolutions_undivided(lowered, whole, is_filled=one.block == one.extents)


def _measured(lowered: Lowered) -> Lowered:
    return replace(lowered, steps=with_fused_statistics(lowered.steps))


def _other_forms(lowered: Lowered) -> dict[str, LayerForm]:
    """Return layers whose custom kernel would compute too much in vain, with cuDNN's tactic."""
    return {
        step.layer: kernel_of(step).forms[-1]
        for step in compared(lowered)
        if not kernel_of(step).pays(step)
    }
