"""From a step to the kernels that do it: grids, blocks and arguments."""

from collections.abc import Iterator

from ..card_properties import CardProperties
from ..steps import (
    AddPatches,
    Convolve,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvolveVoxels,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    ConvTransposeVoxels,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
    Unpack,
)
from .cells import conv_transpose_to_cells, conv_transpose_voxels, walks_of_cells
from .convolutions import convolve
from .first_layer import blocks_of_a_patch, convolve_patches, pack
from .last_layer import conv_transpose_to_patches, convolve_to_patches, convolve_voxels
from .launch import Addresses, Launch
from .passes import pointwise
from .planes import convolve_by_planes, walks_by_planes
from .statistics import (
    MOMENTS_BYTES,
    SUMS_BYTES,
    blocks_that_measure,
    blocks_that_normalise,
    conclude,
    normalise,
    statistics,
)
from .unpack import add_patches, sum_taps, unpack


def scratch_bytes(step: Step, card: CardProperties) -> int:
    """Bytes of the partial sums between the two parts of a normalisation's statistics."""
    measured = step.flow.measures
    if measured is None:
        return 0
    size = SUMS_BYTES if isinstance(step, Normalise) else MOMENTS_BYTES
    source = measured.source
    return source.tensor.batch * measuring_blocks(step, card) * source.channels * size


def measuring_blocks(step: Step, card: CardProperties) -> int:
    """Launched blocks that each measure a part of the same channels of a patch."""
    match step:
        case Normalise():
            return blocks_that_normalise(step, card)
        case Statistics(source=source):
            return blocks_that_measure(source, card)
        case ConvolvePatches(statistics=Statistics()):
            return blocks_of_a_patch(step, card)
        case ConvTransposeToCells(statistics=Statistics()):
            return walks_of_cells(step, card).blocks_of_a_part
        case ConvolveByPlanes(statistics=Statistics()):
            return walks_by_planes(step, card).blocks_of_a_part
        case _:
            return 0


def launches(step: Step, at: Addresses, card: CardProperties, scratch: int = 0) -> list[Launch]:
    """The kernels of a step that is not cuDNN's; scratch: address of its partial sums."""
    match step:
        case Pack():
            return [pack(step, at)]
        case ConvolvePatches() | ConvTransposeToCells() | ConvolveByPlanes():
            return list(_measuring_convolution(step, at, card, scratch))
        case ConvolveToPatches():
            return [convolve_to_patches(step, at, card)]
        case ConvTransposeToPatches():
            return [conv_transpose_to_patches(step, at, card)]
        case ConvolveVoxels():
            return [convolve_voxels(step, at, card)]
        case ConvTransposeVoxels():
            return [conv_transpose_voxels(step, at, card)]
        case Statistics():
            return statistics(step, at, card, scratch)
        case Pointwise():
            return [pointwise(step, at, card)]
        case Normalise():
            return [normalise(step, at, card, scratch)]
        case SumTaps():
            return [sum_taps(step, at)]
        case Unpack():
            return [unpack(step, at)]
        case AddPatches():
            return [add_patches(step, at)]
        case Convolve():
            return [convolve(step, at)]


def _measuring_convolution(
    step: ConvolvePatches | ConvTransposeToCells | ConvolveByPlanes,
    at: Addresses,
    card: CardProperties,
    scratch: int,
) -> Iterator[Launch]:
    measured = step.statistics
    partials = scratch if measured else None
    match step:
        case ConvolvePatches():
            yield convolve_patches(step, at, card, partials)
        case ConvTransposeToCells():
            yield conv_transpose_to_cells(step, at, card, partials)
        case ConvolveByPlanes():
            yield convolve_by_planes(step, at, card, partials)
    if measured is not None:
        yield conclude(measured, at, scratch, measuring_blocks(step, card))
