"""A network compiled for the blocks of volumes: steps, passes, and plans that were checked."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...compiler.blocks import BlockGrid
from ...compiler.card_properties import CardProperties
from ...compiler.launches.cells import fills_boxes
from ...compiler.lowering.lowering import lower
from ...compiler.lowering.operator_fusion import measured_by_makers
from ...compiler.memory.fitting import ProgramRequest
from ...compiler.steps import Convolution, Convolve, ConvTransposeToCells, Lowered
from ...compiler.volume.memory import (
    WORKSPACE_BYTES,
    VolumeMemory,
    VolumeRequest,
    constants_of,
    volume_memory,
)
from ...compiler.volume.passes import Pass, passes_of
from ...compiler.volume.widened import widened
from ...network.graph import Graph, Network
from ...options import Precision
from ..generator import OpenCard
from ..kernel_check import WrongKernelError, check_outer_layers, refuse_kernel, refused_kernels
from ..plan_search import Algorithm, PlanSearch, SearchSettings
from .transfer import slot_voxels


@dataclass(frozen=True)
class CompiledBlocks:
    """For blocks of one size on one card.

    lowered: its steps. algorithms: by the convolution's shape.
    """

    lowered: Lowered
    algorithms: Mapping[Convolution, Algorithm]

    def serves(self, grid: BlockGrid) -> bool:
        """Whether it is for blocks and runs like those of a grid."""
        layout = self.lowered.layout
        return (layout.patch, layout.batch) == (grid.block, grid.batch)

    @cached_property
    def constants(self) -> tuple[Mapping[str, int], int]:
        """Offsets of weights and tables, and their bytes in all."""
        return constants_of(self.lowered)


def costs_of(passes: Sequence[Pass]) -> list[float]:
    """What each pass costs beside the others, by the products of its convolutions."""
    return [
        1e6 + sum(_products(step.shape) for step in one.steps if isinstance(step, Convolve))
        for one in passes
    ]


def _products(shape: Convolution) -> float:
    depth, height, width = shape.target_extents
    return float(shape.batch * depth * height * width) * shape.weights


def lowered_blocks(
    network: Network,
    grid: BlockGrid,
    precision: Precision,
    card: CardProperties,
    without: frozenset[str],
) -> Lowered:
    """Steps for the blocks of a grid, on which no limit of memory has a say.

    without: own kernels, by their .cu files, that are wrong on the card.
    """
    request = ProgramRequest(grid.block, grid.batch, precision, card, without)
    layout = replace(next(request.layouts()), in_blocks=True)
    lowered = widened(lower(network, layout, card), grid)
    if by_others := _layers_that_leave_boxes_empty(lowered):
        layout = replace(layout, transposed=dict.fromkeys(by_others, "subpixel"))
        lowered = widened(lower(network, layout, card), grid)
    return replace(lowered, steps=measured_by_makers(lowered.steps))


def _layers_that_leave_boxes_empty(lowered: Lowered) -> list[str]:
    """Transposed convolutions of which the own kernel computes too much for nothing."""
    return [
        step.layer
        for step in lowered.steps
        if isinstance(step, ConvTransposeToCells) and not fills_boxes(step)
    ]


def memory_of(
    lowered: Lowered, grid: BlockGrid, graph: Graph, room: int, anew: bool = True
) -> VolumeMemory:
    """Memory of a grid where the card has so many bytes. Raises DeviceMemoryError.

    anew: whether maps of full resolution may be made anew.
    """
    slot = slot_voxels(grid.extents)
    channels = graph.in_channels, graph.out_channels
    rows = 4 * slot, 8 * slot
    return volume_memory(
        VolumeRequest(lowered, passes_of(lowered), grid, channels, rows, anew), room
    )


def compiled_blocks(
    network: Network,
    card: OpenCard,
    grid: BlockGrid,
    settings: SearchSettings,
    on_lowered: Callable[[Lowered], None],
) -> CompiledBlocks:
    """The program of plans and own kernels that were checked on this card.

    on_lowered: told the steps before plans are looked for, which takes longest.
    """
    search = PlanSearch(card.library, card.kernels, card.stream, card.cache)
    while True:
        without = refused_kernels(card.cache, card.kernels)
        lowered = lowered_blocks(network, grid, card.kernels.precision, card.context.card, without)
        on_lowered(lowered)
        shapes = [step.shape for step in lowered.steps if isinstance(step, Convolve)]
        try:
            algorithms = search.algorithms(shapes, WORKSPACE_BYTES, settings)
            check_outer_layers(lowered, card.kernels, card.stream, card.cache)
        except WrongKernelError as error:
            refuse_kernel(card.cache, card.kernels, error)
            settings.progress(
                f"The own kernel {error.source} gave {error.wrong}, and is not used on this card.",
                None,
            )
            continue
        return CompiledBlocks(lowered, algorithms)


def time_key(lowered: Lowered, memory: VolumeMemory) -> str:
    """Under which the milliseconds of a block are kept."""
    parts = repr((lowered.layout, lowered.steps, memory.residence))
    return f"volume {hashlib.sha256(parts.encode()).hexdigest()[:24]}"
