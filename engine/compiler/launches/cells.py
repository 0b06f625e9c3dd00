"""Launches of transposed convolutions to cells of 2^3 voxels."""

from math import prod

from ..card_properties import CardProperties
from ..kernel_source import constants, structure
from ..kernels import CELL_RINGS
from ..steps import ConvTransposeToCells, ConvTransposeVoxels
from .launch import Addresses, Launch
from .tensor_arguments import part_of, strides_of
from .walks import PlaneBox, Walks

_WORTH = 0.72  # share of the cells that boxes compute which the target needs, for the kernel to pay
_RESIDENT = 2  # blocks of conv_transpose_voxels.cu on each multiprocessor
_TURNS = 2  # how often shared memory has room for the voxels that its block takes at a time


def _shared(channels: int) -> int:
    tile, (boxes, stages) = constants("conv_transpose_to_cells.cu"), CELL_RINGS[channels]
    rings = boxes * tile["BOX"] + stages * tile["STAGE"]
    return rings + 2 * tile["STAGED"] + 8 * 16 * 12 + 8 * (2 * (boxes + stages) + 1)


def _cells() -> PlaneBox:
    side = constants("conv_transpose_to_cells.cu")["SIDE"]
    return PlaneBox(side, side, beginning=0.4)


def walks_of_cells(step: ConvTransposeToCells, card: CardProperties) -> Walks:
    """Through the planes of cells."""
    parts = step.source.batch * step.target.channels // step.outputs_per_product
    return _cells().walks(step.target.tensor.extents, parts, card)


def fills_boxes(step: ConvTransposeToCells) -> bool:
    """Whether the target needs so many of the cells that are computed that the kernel pays."""
    _, height, width = extents = step.target.tensor.extents
    cells = _cells()
    computed = cells.count(extents) * cells.height * cells.width
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
    block = constants("conv_transpose_to_cells.cu")["THREADS"], 1, 1
    return Launch(name, kernel, walks.grid, block, shared, values)


def conv_transpose_voxels(step: ConvTransposeVoxels, at: Addresses, card: CardProperties) -> Launch:
    """The transposed convolution whose cells see a voxel each."""
    source, cells = step.source.source.tensor, step.target.tensor
    tile = constants("conv_transpose_voxels.cu")
    voxels, parts = prod(source.extents), cells.channels // tile["OUTPUTS"]
    values = structure("conv_transpose_voxels.cu", "ConvTransposeVoxels")(
        part=part_of(step.source, at),
        weights=at(step.weight),
        target=at(cells.name),
        voxels=voxels,
        outputs=cells.channels,
    )
    beside = max(1, _RESIDENT * card.multiprocessors // (parts * source.batch))
    walks = min(beside, -(-voxels // tile["VOXELS"]))
    name, grid = "conv_transpose_voxels", (walks, parts, source.batch)
    shared = _TURNS * tile["VOXELS"] * source.channels * 2
    return Launch(name, f"{name}_{source.channels}", grid, (tile["THREADS"], 1, 1), shared, values)
