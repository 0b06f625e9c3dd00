"""Launches of convolutions that halve what they read."""

from ...network.layers import Triple
from ..card_properties import CardProperties
from ..steps import ConvolveStrided
from . import arguments
from .launch import Addresses, Launch, table_addresses
from .walks import walks

CHANNELS, OUTPUTS = (32,), 64
"""Of the source of convolve_strided.cu, and of what those of its target are a multiple.

The kernel takes 64 and 128 channels too, for which cuDNN and a pass were always faster.
"""

_HEIGHT, _WIDTH, _THREADS = 32, 8, 4 * 128
_BOXES, _BOX = 3, 2 * 1178 * 16  # bytes of one
_STAGES, _STAGE = 6, 9 * 64 * 16 * 2
_STAGED, _JOINED = 2 * 2 * 8 * 64 * 2, 8 * 16 * 12
_BEGINNING = 1.2  # of the time of a plane, until the first products of a block


def _shared(channels: int) -> int:
    signals = 8 * (3 * _BOXES + 2 * _STAGES)
    return _BOXES * _BOX + _STAGES * _STAGE + _STAGED + 2 * channels * 4 + _JOINED + signals


def _walks(step: ConvolveStrided, card: CardProperties) -> tuple[Triple, int]:
    """The grid, and the planes of the target of a block."""
    depth, height, width = step.target.extents
    boxes = -(-height // _HEIGHT) * -(-width // _WIDTH)
    parts = step.target.batch * step.target.channels // OUTPUTS
    return walks(boxes, depth, parts, _BEGINNING, card)


def blocks_that_halve(step: ConvolveStrided, card: CardProperties) -> int:
    """Blocks that measure a part of the same channels."""
    (across, deep, _), _ = _walks(step, card)
    return across * deep


def convolve_strided(
    step: ConvolveStrided, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The convolution; partials: where the moments of its blocks go."""
    view, target = step.source, step.target
    source = view.source.tensor
    grid, planes = _walks(step, card)
    factor, summand, stride = table_addresses(view.table, at)
    values = arguments.ConvolveStridedArguments(
        source=at(source.name),
        weights=at(step.weight),
        target=at(target.name),
        partials=partials,
        factor=factor,
        summand=summand,
        table_stride=stride,
        slope=view.activation.slope,
        source_extents=arguments.Three(*source.extents),
        extents=arguments.Three(*target.extents),
        outputs=target.channels,
        planes=planes,
    )
    name = "convolve_strided"
    kernel = f"{name}_{source.channels}"
    return Launch(name, kernel, grid, (_THREADS, 1, 1), _shared(source.channels), values)
