"""Launches of 3^3 convolutions that walk through the planes of what they read."""

from ...network.layers import Triple
from ..card_properties import CardProperties
from ..steps import ConvolveByPlanes
from . import arguments
from .launch import Addresses, Launch, part_of, strides_of
from .walks import walks

CHANNELS, OUTPUTS = (32, 64), 32
"""Of what convolve_by_planes.cu reads, and of what those of its target are a multiple."""

_HEIGHT, _WIDTH, _THREADS = 16, 32, 3 * 128
_BOX, _CHUNK = 4 * (18 * 34 + 6) * 16, 9 * 2 * 16 * 96 * 2  # bytes, the second of weights
_BOXES = {32: 4, 64: 3}  # by the channels of what is read
_BEGINNING = 2.3  # planes besides those of a block: what its ends see, and what it waits for


def channels_of(step: ConvolveByPlanes) -> int:
    """Channels of what is read."""
    return sum(part.source.channels for part in step.parts)


def _shared(channels: int) -> int:
    boxes, chunks = _BOXES[channels], channels // 32
    return boxes * _BOX + chunks * _CHUNK + 8 * 32 * 12 + 8 * (2 * boxes + 2)


def _walks(step: ConvolveByPlanes, card: CardProperties) -> tuple[Triple, int]:
    """The grid, and the planes of a block."""
    depth, height, width = step.target.extents
    boxes = -(-height // _HEIGHT) * -(-width // _WIDTH)
    parts = step.target.batch * step.target.channels // OUTPUTS
    return walks(boxes, depth, parts, _BEGINNING, card)


def blocks_by_planes(step: ConvolveByPlanes, card: CardProperties) -> int:
    """Blocks that measure a part of the same channels."""
    (across, deep, _), _ = _walks(step, card)
    return across * deep


def convolve_by_planes(
    step: ConvolveByPlanes, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The convolution; partials: where the moments of its blocks go."""
    first, *others = step.parts
    grid, planes = _walks(step, card)
    values = arguments.ConvolveByPlanesArguments(
        parts=(arguments.PartArguments * 2)(*(part_of(part, at) for part in (first, *others))),
        weights=at(step.weight),
        target=at(step.target.name),
        partials=partials,
        target_strides=strides_of(step.target),
        extents=arguments.Three(*step.target.extents),
        outputs=step.target.channels,
        planes=planes,
    )
    name, channels = "convolve_by_planes", channels_of(step)
    kernel = f"{name}_{channels}"
    return Launch(name, kernel, grid, (_THREADS, 1, 1), _shared(channels), values)
