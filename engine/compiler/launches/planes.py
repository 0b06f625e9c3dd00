"""Launches of 3^3 convolutions that walk through the planes of what they read."""

from collections.abc import Mapping
from ctypes import Structure
from dataclasses import dataclass

from ..card_properties import CardProperties
from ..kernel_source import constants, structure
from ..kernels import PLANE_RINGS
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
    beginning: as of `PlaneBox`. in_blocks: whether patches may be blocks of a volume.
    """

    source: str
    channels: tuple[int, ...]
    parts: int
    beginning: float
    in_blocks: bool = False

    @property
    def tile(self) -> Mapping[str, int]:
        """Constants of its source."""
        return constants(f"{self.source}.cu")

    @property
    def outputs(self) -> int:
        """Channels of which its target has a multiple."""
        return self.tile["OUTPUTS"]

    @property
    def box(self) -> PlaneBox:
        """Voxels of the target that a block computes of a plane."""
        return PlaneBox(self.tile["HEIGHT"], self.tile["WIDTH"], self.beginning)


BY_PLANES = {
    1: PlaneKernel("convolve_by_planes", tuple(PLANE_RINGS), 2, beginning=2.3),
    2: PlaneKernel("convolve_strided", (32,), 1, beginning=1.2, in_blocks=True),
}
"""By the stride along all axes.

convolve_by_planes.cu begins with what the ends of a walk see, and what it waits for. Where 64 or
128 channels are halved, cuDNN and a pass were always faster than a form of convolve_strided.cu.
"""

_JOINED, _BARRIER = 12, 8  # bytes of the moments of a channel, and of a barrier


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
    block = kernel.tile["THREADS"], 1, 1
    return Launch(kernel.source, f"{kernel.source}_{channels}", walks.grid, block, shared, values)


def _plain(
    step: ConvolveByPlanes, at: Addresses, partials: int | None, planes: int
) -> tuple[Structure, int]:
    """Arguments, and bytes of shared memory."""
    tile, (boxes, held) = constants("convolve_by_planes.cu"), PLANE_RINGS[step.channels]
    rings = boxes * (tile["BOX"] + 3 * _BARRIER) + held * (tile["CHUNK"] + _BARRIER)
    shared = rings + 2 * tile["WARPS"] * tile["OUTPUTS"] * _JOINED
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
    tile = constants("convolve_strided.cu")
    boxes, stages, scales = tile["BOXES"], tile["STAGES"], 2 * source.channels * 4
    barriers = _BARRIER * (3 * boxes + stages)
    shared = boxes * tile["BOX"] + stages * tile["STAGE"] + 2 * tile["STAGED"]
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
