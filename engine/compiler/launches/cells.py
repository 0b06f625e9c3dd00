"""Launches of transposed convolutions to cells of 2^3 voxels."""

from math import prod

from ..card_properties import CardProperties
from ..kernel_source import structure
from ..steps import ConvTransposeToCells, ConvTransposeVoxels
from .launch import Addresses, Launch
from .tensor_arguments import part_of, strides_of
from .walks import PlaneBox, Walks

CHANNELS, OUTPUTS = (64, 128), 32
"""Channels that conv_transpose_to_cells.cu reads, and the number of which it writes a multiple."""

VOXEL_CHANNELS = (32, 64, 128)
"""Channels that conv_transpose_voxels.cu reads."""

_THREADS = 3 * 128
_CELLS = PlaneBox(16, 16, beginning=0.4)
_BOX, _STAGE = 4 * 290 * 16, 3 * 64 * 32 * 2  # bytes
_STAGED = 2 * 4 * 128 * 16
_BOXES_AND_STAGES = {64: (6, 8), 128: (8, 5)}  # by the channels of the source
_WORTH = 0.72  # share of the cells that boxes compute which the target needs, for the kernel to pay
_WARPS, _MADE = 8, 256  # of a block of conv_transpose_voxels.cu: warps, and outputs
_RESIDENT = 2  # of its blocks on each multiprocessor
_VOXELS, _TURNS = 64, 2  # of a block at a time, and how often shared memory has room for these


def _shared(channels: int) -> int:
    boxes, stages = _BOXES_AND_STAGES[channels]
    return boxes * _BOX + stages * _STAGE + _STAGED + 8 * 16 * 12 + 8 * (2 * (boxes + stages) + 1)


def walks_of_cells(step: ConvTransposeToCells, card: CardProperties) -> Walks:
    """Through the planes of cells."""
    parts = step.source.batch * step.target.channels // step.outputs_per_product
    return _CELLS.walks(step.target.tensor.extents, parts, card)


def fills_boxes(step: ConvTransposeToCells) -> bool:
    """Whether the target needs so many of the cells that are computed that the kernel pays."""
    _, height, width = extents = step.target.tensor.extents
    computed = _CELLS.count(extents) * _CELLS.height * _CELLS.width
    return height * width >= _WORTH * computed


def conv_transpose_to_cells(
    step: ConvTransposeToCells, at: Addresses, card: CardProperties, partials: int | None
) -> Launch:
    """The transposed convolution; partials: where the moments of its blocks go."""
    view, tensor = step.target, step.target.tensor
    walks = walks_of_cells(step, card)
    values = structure("conv_transpose_to_cells.cu", "ConvTransposeToCells")(
        source=at(step.source.name),
        weights=at(step.weight),
        target=at(tensor.name),
        partials=partials,
        target_strides=strides_of(tensor),
        source_extents=step.source.extents,
        cells=tensor.extents,
        outputs=view.channels,
        planes=walks.planes,
    )
    name = "conv_transpose_to_cells"
    kernel = f"{name}_{step.source.channels}_{step.outputs_per_product}"
    shared = _shared(step.source.channels)
    return Launch(name, kernel, walks.grid, (_THREADS, 1, 1), shared, values)


def conv_transpose_voxels(step: ConvTransposeVoxels, at: Addresses, card: CardProperties) -> Launch:
    """The transposed convolution whose cells see a voxel each."""
    source, cells = step.source.source.tensor, step.target.tensor
    voxels, parts = prod(source.extents), cells.channels // _MADE
    values = structure("conv_transpose_voxels.cu", "ConvTransposeVoxels")(
        part=part_of(step.source, at),
        weights=at(step.weight),
        target=at(cells.name),
        voxels=voxels,
        outputs=cells.channels,
    )
    beside = max(1, _RESIDENT * card.multiprocessors // (parts * source.batch))
    walks = min(beside, -(-voxels // _VOXELS))
    name, grid = "conv_transpose_voxels", (walks, parts, source.batch)
    shared = _TURNS * _VOXELS * source.channels * 2
    return Launch(name, f"{name}_{source.channels}", grid, (_WARPS * 32, 1, 1), shared, values)
