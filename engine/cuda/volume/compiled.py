"""A network compiled for the blocks of volumes: steps, passes and verified tactics."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...compiler.blocks import BlockGrid
from ...compiler.lowered import Lowered
from ...compiler.program.memory import WORKSPACE_BYTES, bytes_of_trials
from ...compiler.steps import ConvShape, Step, is_planned, planned
from ...compiler.volume.passes import Pass, passes_of
from ...compiler.volume.volume_lowering import lowered_blocks
from ...compiler.volume.volume_memory import (
    VolumeMemory,
    VolumeRequest,
    constants_of,
    volume_memory,
)
from ...network.graph import Graph, Network
from ...network.layers import Triple
from ..open_gpu import OpenGpu
from ..tuning.tactics import Tactic
from ..tuning.tuner import Tuner
from .transfer import slot_voxels


@dataclass(frozen=True)
class CompiledBlocks:
    """A network compiled for blocks of one size on one GPU.

    grid: of the volume that it was compiled for. lowered: its steps. tactics: by the convolution's
    shape.
    """

    grid: BlockGrid
    lowered: Lowered
    tactics: Mapping[ConvShape, Tactic]

    def serves(self, grid: BlockGrid) -> bool:
        """Return whether it is compiled for blocks and runs like those of a grid."""
        return _form(grid) == _form(self.grid)

    @cached_property
    def constants(self) -> tuple[Mapping[str, int], int]:
        """Offsets of weights and tables, and their bytes in all."""
        return constants_of(self.lowered)


def _form(grid: BlockGrid) -> tuple[Triple, int, Triple | None, bool]:
    """Return the properties of a grid that determine its steps."""
    one = grid.undivided
    if one is None:
        return grid.block, grid.batch, None, False
    return grid.block, grid.batch, one.block, one.block == one.extents


def costs_of(passes: Sequence[Pass], grid: BlockGrid) -> list[float]:
    """Return the relative cost of each pass over a grid, by the products of its convolutions."""
    return [
        1e6 + one.grid_in(grid).blocks * sum(_products_of_a_block(step) for step in one.steps)
        for one in passes
    ]


_PRODUCTS_AT_ONCE = 4e12
"""Products of passes that are queued together: 20 ms on an H200, 0.3 s on a T4."""


def parts_of_passes(costs: Sequence[float]) -> list[range]:
    """Return the numbers of the passes between the first and the last in parts that are queued
    together; costs: of all passes.
    """
    parts: list[range] = []
    for number, cost in enumerate(costs[1:-1], 1):
        last = parts[-1] if parts else range(0)
        if last and sum(costs[last.start : last.stop]) + cost <= _PRODUCTS_AT_ONCE:
            parts[-1] = range(last.start, number + 1)
        else:
            parts.append(range(number, number + 1))
    return parts


def _products_of_a_block(step: Step) -> float:
    if not is_planned(step):
        return 0.0
    return step.shape.products / step.target.batch


def memory_of(
    lowered: Lowered, grid: BlockGrid, graph: Graph, budget: int, may_recompute: bool = True
) -> VolumeMemory:
    """Return the memory plan of a grid on a GPU with so many bytes. Raises DeviceMemoryError.

    may_recompute: whether maps of full resolution may be recomputed.
    """
    slot = slot_voxels(grid.extents)
    channels = graph.in_channels, graph.out_channels
    rows = 4 * slot, 8 * slot
    passes, trial = passes_of(lowered), bytes_of_trials(lowered, WORKSPACE_BYTES)
    wanted = VolumeRequest(lowered, passes, grid, channels, rows, may_recompute, trial)
    return volume_memory(wanted, budget)


def compiled_blocks(
    network: Network,
    gpu: OpenGpu,
    tuner: Tuner,
    grid: BlockGrid,
    on_lowered: Callable[[Lowered], None],
) -> CompiledBlocks:
    """Return the program of tactics that were verified on this GPU.

    Steps and tactics follow from network, grid and GPU; the memory limit does not affect them, so
    that it changes no byte of a result. A trial that does not fit is an error here; none is left
    out. on_lowered: called with the steps before they are tuned, which takes longest.
    """

    def attempt(without: frozenset[str]) -> CompiledBlocks:
        lowered = lowered_blocks(
            network, grid, gpu.kernels.precision, gpu.context.properties, without
        )
        on_lowered(lowered)
        tuner.check_layers(lowered)
        shapes = [step.shape for step in planned(lowered.steps)]
        tactics = tuner.convolutions(shapes, WORKSPACE_BYTES)
        return CompiledBlocks(grid, lowered, tactics)

    return tuner.with_right_kernels(attempt)


def time_key(lowered: Lowered, memory: VolumeMemory) -> str:
    """Return the cache key of the milliseconds of a block."""
    parts = repr((lowered.layout, lowered.steps, memory.residence))
    return f"volume {hashlib.sha256(parts.encode()).hexdigest()[:24]}"
