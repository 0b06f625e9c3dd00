"""A network compiled for the blocks of volumes: steps, passes, and plans that were checked."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ...compiler.blocks import BlockGrid
from ...compiler.convolution import Convolution
from ...compiler.lowered import Lowered
from ...compiler.memory.trials import bytes_of_trials
from ...compiler.steps import Convolve, Step
from ...compiler.volume.lifetimes import WORKSPACE_BYTES, VolumeRequest
from ...compiler.volume.lowering import lowered_blocks
from ...compiler.volume.memory import VolumeMemory, constants_of, volume_memory
from ...compiler.volume.passes import Pass, passes_of
from ...network.graph import Graph, Network
from ...network.layers import Triple
from ...options import SearchSettings
from ..card import OpenCard
from ..kernel_check import check_outer_layers, refused_kernels, with_right_kernels
from ..plan_search import Algorithm, PlanSearch
from ..trial_memory import TrialMemory
from .transfer import slot_voxels


@dataclass(frozen=True)
class CompiledBlocks:
    """For blocks of one size on one card.

    grid: of the volume for which they were made. lowered: its steps. algorithms: by the
    convolution's shape.
    """

    grid: BlockGrid
    lowered: Lowered
    algorithms: Mapping[Convolution, Algorithm]

    def serves(self, grid: BlockGrid) -> bool:
        """Whether it is for blocks and runs like those of a grid."""
        return _form(grid) == _form(self.grid)

    @cached_property
    def constants(self) -> tuple[Mapping[str, int], int]:
        """Offsets of weights and tables, and their bytes in all."""
        return constants_of(self.lowered)


def _form(grid: BlockGrid) -> tuple[Triple, int, Triple | None, bool]:
    """What the steps for a grid follow from."""
    one = grid.undivided
    if one is None:
        return grid.block, grid.batch, None, False
    return grid.block, grid.batch, one.block, one.block == one.extents


def costs_of(passes: Sequence[Pass], grid: BlockGrid) -> list[float]:
    """What each pass over a grid costs beside the others, by the products of its convolutions."""
    return [
        1e6 + one.grid_in(grid).blocks * sum(_products_of_a_block(step) for step in one.steps)
        for one in passes
    ]


def _products_of_a_block(step: Step) -> float:
    if not isinstance(step, Convolve):
        return 0.0
    shape = step.shape
    of_a_run = float(shape.batch * prod(shape.target_extents)) * shape.weights
    return of_a_run / step.target.batch


def memory_of(
    lowered: Lowered, grid: BlockGrid, graph: Graph, room: int, may_recompute: bool = True
) -> VolumeMemory:
    """Memory of a grid where the card has so many bytes. Raises DeviceMemoryError.

    may_recompute: whether maps of full resolution may be recomputed.
    """
    slot = slot_voxels(grid.extents)
    channels = graph.in_channels, graph.out_channels
    rows = 4 * slot, 8 * slot
    passes, trial = passes_of(lowered), bytes_of_trials(lowered, WORKSPACE_BYTES)
    wanted = VolumeRequest(lowered, passes, grid, channels, rows, may_recompute, trial)
    return volume_memory(wanted, room)


def compiled_blocks(
    network: Network,
    card: OpenCard,
    grid: BlockGrid,
    settings: SearchSettings,
    memory: TrialMemory,
    on_lowered: Callable[[Lowered], None],
) -> CompiledBlocks:
    """The program of plans and own kernels that were checked on this card.

    memory: to check them in. on_lowered: told the steps before plans are looked for, which takes
    longest.
    """
    search = PlanSearch(card.library, card.kernels, card.stream, card.cache, memory)

    def attempt() -> CompiledBlocks:
        without = refused_kernels(card.cache, card.kernels)
        lowered = lowered_blocks(network, grid, card.kernels.precision, card.context.card, without)
        on_lowered(lowered)
        shapes = [step.shape for step in lowered.steps if isinstance(step, Convolve)]
        algorithms = search.algorithms(shapes, WORKSPACE_BYTES, settings)
        check_outer_layers(lowered, card.kernels, card.stream, card.cache, memory)
        return CompiledBlocks(grid, lowered, algorithms)

    return with_right_kernels(attempt, card.cache, card.kernels, settings.progress)


def time_key(lowered: Lowered, memory: VolumeMemory) -> str:
    """Under which the milliseconds of a block are kept."""
    parts = repr((lowered.layout, lowered.steps, memory.residence))
    return f"volume {hashlib.sha256(parts.encode()).hexdigest()[:24]}"
