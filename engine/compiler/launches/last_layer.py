"""Launches of the last layer: translated patches out."""

from math import prod

from ...network.layers import Triple
from ...options import Precision
from ..card_properties import CardProperties
from ..kernel_source import constants, structure
from ..kernels import LAST_STAGES, MOST_SUMMED
from ..steps import (
    ConvolveToPatches,
    ConvolveVoxels,
    ConvTransposeToPatches,
)
from ..tensors import TRANSLATED
from .launch import (
    MOST_WALKS,
    OVERFLOW,
    WARP,
    Addresses,
    Launch,
    vectors,
    warp_group_columns,
)
from .tensor_arguments import (
    activation_of,
    address_of,
    border_of,
    part_of,
    strides_of,
)
from .walks import cheapest_walk

_ROWS_BEFORE, _CELLS_BEFORE = 6, 1  # rows that a walk reads before the first it completes
_VOXEL_BLOCKS = 6  # of convolve_voxels.cu for each multiprocessor, at most


def convolve_to_patches(step: ConvolveToPatches, at: Addresses, card: CardProperties) -> Launch:
    """The last layer on the matrix units."""
    view = step.source
    depth, height, width = step.extents
    repeats = view.tensor.batch * step.channels
    tile = constants("convolve_to_patches.cu")
    wide, deep = tile["COLUMNS"], tile["PLANES"]
    if step.wgmma:
        wide = warp_group_columns(width)
        deep = _planes_of_groups(wide)
    columns, planes = -(-width // wide), -(-depth // deep)
    beside, at_once = columns * planes * repeats, card.multiprocessors
    rows = cheapest_walk(height, beside, at_once, _ROWS_BEFORE, range(1, height + 1))
    grid = columns * -(-height // rows), planes, repeats
    shared_fields = {
        "weights": at(step.weight),
        "bias": at(step.bias) if step.bias else None,
        "translated": at(TRANSLATED),
        "overflow": at(OVERFLOW),
        "extents": view.extents,
        "target_extents": step.extents,
        "kernel": step.kernel,
        "origin": step.origin,
        "border": border_of(step.mode)[0],
        "rows": rows,
        "outputs": step.channels,
        "activation": activation_of(step.activation, at),
    }
    if step.wgmma:
        name = f"convolve_to_patches_{view.channels}_{wide}"
        shared = _last_of_groups_shared(view.channels, wide)
        block = constants("convolve_to_patches_wgmma.cu")["THREADS"], 1, 1
        part = part_of(step.part, at)
        values = structure("convolve_to_patches_wgmma.cu", "ConvolveActivatedToPatches")(
            part=part, **shared_fields
        )
        return Launch("convolve_to_patches_wgmma", name, grid, block, shared, values)
    values = structure("convolve_to_patches.cu", "ConvolveToPatches")(
        source=address_of(view, at),
        source_strides=strides_of(view.tensor),
        channels=view.channels,
        shuffled=view.shuffled,
        **shared_fields,
    )
    shared = last_layer_shared(step.kernel, view.channels)
    name = "convolve_to_patches"
    kernel = f"{name}_zero" if step.mode == "zero" else name
    return Launch(name, kernel, grid, (tile["THREADS"], 1, 1), shared, values)


def last_layer_shared(kernel: Triple, channels: int) -> int:
    """Bytes of shared memory that a block of the last layer's kernel takes."""
    tile = constants("convolve_to_patches.cu")
    operands = kernel[0] * channels // tile["CHUNK"]
    sums = 2 * 8 * tile["PITCH"]
    return operands * 4 * 2 * 32 * 16 + tile["PLANES"] * (sums + operands + 2) * 4


def _last_of_groups_shared(channels: int, columns: int) -> int:
    tile, stages = constants("convolve_to_patches_wgmma.cu"), LAST_STAGES[channels]
    weights = tile["KERNEL"] * channels // 16 * 2 * tile["TURNED"] * tile["PIECE"] * 2
    width = columns + tile["TAPS"]
    stored = stages * channels * width * 2
    sums = tile["GROUPS"] * 8 * (width + 4) * 4
    planes = _planes_of_groups(columns) + tile["KERNEL"] - 1
    return weights + stored + sums + 16 * stages + 8 * planes + 4 * width


def _planes_of_groups(columns: int) -> int:
    """Planes of the target of a block of the last layer's warp groups."""
    groups = constants("convolve_to_patches_wgmma.cu")["GROUPS"]
    return 2 * groups if columns == 64 else groups


def conv_transpose_to_patches(
    step: ConvTransposeToPatches, at: Addresses, card: CardProperties
) -> Launch:
    """The last layer as a transposed convolution on the matrix units."""
    first, *others = step.parts
    depth, height, width = first.source.extents
    tile = constants("conv_transpose_to_patches.cu")
    strips = (depth + 1) * -(-(width + 1) // tile["CELLS"])
    blocks = -(-strips // tile["WARPS"])
    repeats = first.source.tensor.batch * step.channels
    channels = sum(part.source.channels for part in step.parts)
    shared = cells_shared(channels)
    at_once = card.multiprocessors * min(MOST_WALKS, max(1, card.resident_blocks(shared)))
    rows = cheapest_walk(height + 1, blocks * repeats, at_once, _CELLS_BEFORE, range(1, height + 2))
    parts = (part_of(first, at), *(part_of(part, at) for part in others))
    values = structure("conv_transpose_to_patches.cu", "ConvTransposeToPatches")(
        parts=parts,
        weights=at(step.weight),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED),
        overflow=at(OVERFLOW),
        extents=(depth, height, width),
        rows=rows,
        outputs=step.channels,
        activation=activation_of(step.activation, at),
    )
    name = "conv_transpose_to_patches"
    grid = blocks, -(-(height + 1) // rows), repeats
    return Launch(name, name, grid, (tile["WARPS"] * 32, 1, 1), shared, values)


def cells_shared(channels: int) -> int:
    """Bytes of shared memory that a block of the transposed last layer takes."""
    return 2 * channels // 32 * 4 * 32 * 16 + 2 * channels * 4


def convolve_voxels(step: ConvolveVoxels, at: Addresses, card: CardProperties) -> Launch:
    """The last layer as a sum over the channels of each voxel."""
    tensor = step.source.source.tensor
    voxels = prod(tensor.extents)
    values = structure("convolve_voxels.cu", "ConvolveVoxels")(
        part=part_of(step.source, at),
        weights=at(step.weight),
        bias=at(step.bias) if step.bias else None,
        translated=at(TRANSLATED),
        overflow=at(OVERFLOW),
        voxels=voxels,
        activation=activation_of(step.activation, at),
    )
    lanes = _lanes_of_voxel(tensor.channels, tensor.precision)
    tile = constants("convolve_voxels.cu")
    beside = tile["THREADS"] // lanes
    blocks = min(-(-voxels // (tile["AT_ONCE"] * beside)), _VOXEL_BLOCKS * card.multiprocessors)
    name = "convolve_voxels"
    grid, block = (blocks, tensor.batch, 1), (lanes, beside, 1)
    return Launch(name, f"{name}_{step.channels}", grid, block, 0, values)


def sums_voxels(channels: int, outputs: int, precision: Precision) -> bool:
    """Whether convolve_voxels.cu takes a voxel of so many channels, and makes so many of it."""
    return vectors(channels, precision) <= WARP and outputs <= MOST_SUMMED


def _lanes_of_voxel(channels: int, precision: Precision) -> int:
    """Those of a warp that share a voxel, of which each has a vector at most."""
    return 1 << (vectors(channels, precision) - 1).bit_length()
