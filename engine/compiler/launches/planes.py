"""Launches of 3^3 convolutions that walk through the planes of what they read."""

from ctypes import Structure
from dataclasses import dataclass

from ..card_properties import CardProperties
from ..kernel_source import structure
from ..steps import ConvolveByPlanes
from .launch import Addresses, Launch
from .tensor_arguments import (
    part_of,
    strides_of,
    table_addresses,
)
from .walks import PlaneBox, Walks


@dataclass(frozen=True, slots=True)
class PlaneKernel:
    """A kernel for one stride.

    source: its .cu file. channels: of what it may read. parts: in which those may lie, at most.
    outputs: of what those of its target are a multiple. threads: of a block. box: of the target.
    in_blocks: whether patches may be blocks of a volume.
    """

    source: str
    channels: tuple[int, ...]
    parts: int
    outputs: int
    threads: int
    box: PlaneBox
    in_blocks: bool = False


BY_PLANES = {
    1: PlaneKernel(
        "convolve_by_planes", (32, 64, 128), 2, 32, 4 * 128, PlaneBox(8, 32, beginning=2.3)
    ),
    2: PlaneKernel(
        "convolve_strided", (32,), 1, 64, 5 * 128, PlaneBox(16, 8, beginning=1.2), in_blocks=True
    ),
}
"""By the stride along all axes.

convolve_by_planes.cu begins with what the ends of a walk see, and what it waits for. Where 64 or
128 channels are halved, cuDNN and a pass were always faster than a form of convolve_strided.cu.
"""

_JOINED, _BARRIER = 12, 8  # bytes of the moments of a channel, and of a barrier
_BOX, _CHUNK = 4 * (10 * 34 + 6) * 16, 9 * 2 * 16 * 96 * 2  # bytes, the second of weights
_BOXES = {32: 6, 64: 5, 128: 5}  # by the channels of what is read
_MOST_HELD = 2  # chunks of weights in shared memory
_STRIDED_BOXES, _STRIDED_BOX = 6, 2 * 602 * 16  # bytes of one
_STAGES, _STAGE = 6, 9 * 64 * 16 * 2
_STAGED = 2 * 2 * 8 * 64 * 2


def walks_by_planes(step: ConvolveByPlanes, card: CardProperties) -> Walks:
    """Through the planes of the target."""
    kernel, target = BY_PLANES[step.stride], step.target
    parts = target.batch * target.channels // kernel.outputs
    return kernel.box.walks(target.extents, parts, card)


def convolve_by_planes(
    step: ConvolveByPlanes, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The convolution; partials: where the moments of its blocks go."""
    kernel, walks, channels = BY_PLANES[step.stride], walks_by_planes(step, card), step.channels
    fill = _plain if step.stride == 1 else _strided
    values, shared = fill(step, at, partials, walks.planes)
    block = kernel.threads, 1, 1
    return Launch(kernel.source, f"{kernel.source}_{channels}", walks.grid, block, shared, values)


def _plain(
    step: ConvolveByPlanes, at: Addresses, partials: int | None, planes: int
) -> tuple[Structure, int]:
    """Arguments, and bytes of shared memory."""
    boxes, held = _BOXES[step.channels], min(step.channels // 32, _MOST_HELD)
    shared = boxes * (_BOX + 3 * _BARRIER) + held * (_CHUNK + _BARRIER) + 8 * 32 * _JOINED
    values = structure("convolve_by_planes.cu", "ConvolveByPlanes")(
        parts=tuple(part_of(part, at) for part in step.parts),
        weights=at(step.weight),
        target=at(step.target.name),
        partials=partials,
        target_strides=strides_of(step.target),
        extents=step.target.extents,
        outputs=step.target.channels,
        planes=planes,
    )
    return values, shared


def _strided(
    step: ConvolveByPlanes, at: Addresses, partials: int | None, planes: int
) -> tuple[Structure, int]:
    """Arguments, and bytes of shared memory."""
    [part] = step.parts
    source, target = part.source.tensor, step.target
    factor, summand, stride = table_addresses(part.table, at)
    barriers = _BARRIER * (3 * _STRIDED_BOXES + _STAGES)
    scales = 2 * source.channels * 4
    shared = _STRIDED_BOXES * _STRIDED_BOX + _STAGES * _STAGE + _STAGED
    values = structure("convolve_strided.cu", "ConvolveStrided")(
        source=at(source.name),
        weights=at(step.weight),
        target=at(target.name),
        partials=partials,
        factor=factor,
        summand=summand,
        table_stride=stride,
        slope=part.activation.slope,
        source_extents=source.extents,
        extents=target.extents,
        outputs=target.channels,
        planes=planes,
    )
    return values, shared + scales + 8 * 16 * _JOINED + barriers
