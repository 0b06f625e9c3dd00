"""Launches of transposed convolutions to cells of 2^3 voxels."""

from ...network.layers import Triple
from ..card_properties import CardProperties
from ..steps import ConvTransposeToCells
from . import arguments
from .launch import Addresses, Launch, strides_of
from .walks import walks

CHANNELS, OUTPUTS = (64, 128), 32
"""Of the source of conv_transpose_to_cells.cu, and of what those of its target are a multiple."""

_SIDE, _THREADS = 16, 3 * 128
_BOX, _STAGE = 4 * 290 * 16, 3 * 64 * 32 * 2  # bytes
_STAGED = 2 * 4 * 128 * 16
_BOXES_AND_STAGES = {64: (6, 8), 128: (8, 5)}  # by the channels of the source
_WORTH = (
    0.72  # share of the cells of its boxes that a target has, from which on the kernel is faster
)
_BEGINNING = 0.4  # of the time of a plane, until the first products of a block


def _shared(channels: int) -> int:
    boxes, stages = _BOXES_AND_STAGES[channels]
    return boxes * _BOX + stages * _STAGE + _STAGED + 8 * 16 * 12 + 8 * (2 * (boxes + stages) + 1)


def _walks(step: ConvTransposeToCells, card: CardProperties) -> tuple[Triple, int]:
    """The grid, and the planes of cells of a block."""
    depth, height, width = step.target.tensor.extents
    boxes = -(-height // _SIDE) * -(-width // _SIDE)
    parts = step.source.batch * step.target.channels // step.outputs_at_once
    return walks(boxes, depth, parts, _BEGINNING, card)


def fills_boxes(step: ConvTransposeToCells) -> bool:
    """Whether so few of the cells that are computed are none of the target's that it pays."""
    _, height, width = step.target.tensor.extents
    computed = -(-height // _SIDE) * -(-width // _SIDE) * _SIDE**2
    return height * width >= _WORTH * computed


def blocks_of_cells(step: ConvTransposeToCells, card: CardProperties) -> int:
    """Blocks that measure a part of the same channels."""
    (across, deep, _), _ = _walks(step, card)
    return across * deep


def conv_transpose_to_cells(
    step: ConvTransposeToCells, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The transposed convolution; partials: where the moments of its blocks go."""
    view, tensor = step.target, step.target.tensor
    grid, planes = _walks(step, card)
    values = arguments.ConvTransposeToCellsArguments(
        source=at(step.source.name),
        weights=at(step.weight),
        target=at(tensor.name),
        partials=partials,
        target_strides=strides_of(tensor),
        source_extents=arguments.Three(*step.source.extents),
        cells=arguments.Three(*tensor.extents),
        outputs=view.channels,
        planes=planes,
    )
    name = "conv_transpose_to_cells"
    kernel = f"{name}_{step.source.channels}_{step.outputs_at_once}"
    return Launch(name, kernel, grid, (_THREADS, 1, 1), _shared(step.source.channels), values)
