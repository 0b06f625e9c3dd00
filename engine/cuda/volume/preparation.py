"""Preparation of a volume's grid: program, weights and memory, kept for the volumes that follow."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ...compiler.blocks import BlockGrid
from ...compiler.lowered import EarlyConstants, Lowered
from ...compiler.steps import Conv
from ...compiler.volume.recomputed import recomputed_convolutions
from ...compiler.volume.volume_memory import STAGES, VolumeMemory
from ...errors import CudaError, DeviceMemoryError
from ...network.graph import Network
from ...whole_volume import HostBudget
from ..driver import CudaEvent, Stream
from ..open_gpu import OpenGpu
from ..tuning.tuner import Tuner
from .compiled import CompiledBlocks, compiled_blocks, costs_of, memory_of, parts_of_passes
from .held_memory import HeldMemory
from .lanes import LanePlan, Lanes, plan_lanes
from .program import BlockProgram, HostCopies, PlacedVolume, StagedCopies


@dataclass(slots=True)
class Ready:
    """A grid with its program and memory, for volumes of these extents.

    compiled: steps and tactics. placed: the program with its memory. lanes: those that a volume may
    take. costs: of the passes. parts: of the passes between the
    first and the last, see `parts_of_passes`. runs: volumes that went through; from the first one
    on, all kernels are loaded.
    """

    compiled: CompiledBlocks
    placed: PlacedVolume
    lanes: LanePlan
    costs: Sequence[float]
    parts: Sequence[range]
    runs: int = 0

    @property
    def may_capture(self) -> bool:
        """Whether work may be captured: kernels are loaded, and no map is copied."""
        return self.runs > 0 and not self.placed.memory.host_bytes


@dataclass(frozen=True, slots=True)
class _KnownMemory:
    """A memory plan with its inputs: steps, grid, and whether maps may be recomputed."""

    lowered: Lowered
    grid: BlockGrid
    may_recompute: bool
    memory: VolumeMemory

    def serves(self, lowered: Lowered, grid: BlockGrid, may_recompute: bool) -> bool:
        is_alike = (self.grid, self.may_recompute) == (grid, may_recompute)
        return self.lowered is lowered and is_alike


class Preparation:
    """Owner of the program and the memory of one grid at a time; one thread uses it.

    ready: the last grid that was prepared, None if there is none. lanes: of volumes in flight.
    copies: of offloaded maps.
    """

    def __init__(
        self,
        network: Network,
        gpu: OpenGpu,
        tuner: Tuner,
        budget: int,
        host_budget: HostBudget,
        opened: ExitStack,
    ) -> None:
        """budget: bytes of GPU memory. opened: closes what is allocated."""
        self.ready: Ready | None = None
        self.copies = _host_copies(opened)
        self._held = opened.enter_context(HeldMemory(host_budget))
        self.lanes = Lanes(opened)
        self._network = network
        self._gpu = gpu
        self._tuner = tuner
        self._budget = budget
        self._compiled: CompiledBlocks | None = None
        self._known_memory: _KnownMemory | None = None
        self._constants: dict[str, int] = {}

    def prepare(self, grid: BlockGrid) -> Ready:
        """Return memory and program for a grid; those of the last one are reused if possible.

        No volume is in flight. Raises DeviceMemoryError and CudaError.
        """
        ready = self.ready
        if ready is not None and ready.placed.grid == grid:
            return ready
        self.ready = None
        compiled = self._compiled_for(grid)
        placed = self._placed(compiled, grid, may_recompute=True)
        if placed.memory.is_recomputed and not self._is_same_anywhere(placed):
            placed = self._placed(compiled, grid, may_recompute=False)
        lanes = plan_lanes(placed.memory, grid, self._network.graph, self._budget)
        self.lanes.arrange(lanes)
        costs = costs_of(placed.memory.passes, grid)
        self.ready = Ready(compiled, placed, lanes, costs, parts_of_passes(costs))
        return self.ready

    def _placed(
        self, compiled: CompiledBlocks, grid: BlockGrid, may_recompute: bool
    ) -> PlacedVolume:
        """Return the program with its memory; may_recompute: whether maps may be recomputed."""
        memory = self._memory_of(compiled.lowered, grid, may_recompute)
        base = self._held.device_for(memory.bytes)
        host = self._held.host_for(memory.host_bytes, self._gpu.context)
        program = BlockProgram(
            compiled.lowered,
            self._constants,
            self._gpu.kernels,
            self._convolve,
            self._gpu.stream,
        )
        channels = self._network.graph.in_channels
        return PlacedVolume(program, grid, channels, memory, base, host, self.copies)

    def _memory_of(self, lowered: Lowered, grid: BlockGrid, may_recompute: bool) -> VolumeMemory:
        """Return the memory plan, computed once: 50 ms if little fits on the GPU."""
        known = self._known_memory
        if known is None or not known.serves(lowered, grid, may_recompute):
            memory = memory_of(lowered, grid, self._network.graph, self._budget, may_recompute)
            self._known_memory = known = _KnownMemory(lowered, grid, may_recompute, memory)
        return known.memory

    def _is_same_anywhere(self, placed: PlacedVolume) -> bool:
        """Return whether tactics compute the same bytes of a voxel in differently placed blocks."""
        assert self._compiled is not None
        tactics = self._compiled.tactics
        for step in recomputed_convolutions(placed.memory.passes):
            tactic, addresses = tactics[step.shape], placed.addresses_of(step)
            try:
                if not self._tuner.is_same_anywhere(step.shape, tactic, addresses):
                    return False
            except CudaError as error:
                raise error.at(step.layer) from error
        return True

    def _compiled_for(self, grid: BlockGrid) -> CompiledBlocks:
        """Return the network compiled for such blocks, with its weights on the GPU."""
        if self._compiled is not None and self._compiled.serves(grid):
            return self._compiled
        self._compiled = None
        self._held.release()
        self.lanes.release()
        early = EarlyConstants()

        def begin(lowered: Lowered) -> None:
            self._take_host_memory(lowered, grid)
            early.begin(lowered)

        compiled = compiled_blocks(self._network, self._gpu, self._tuner, grid, begin)
        offsets, size = compiled.constants
        base = self._held.constants_for(size)
        self._constants = {name: base + offset for name, offset in offsets.items()}
        for name, content in early.encoded(compiled.lowered):
            self._gpu.stream.upload_now(self._constants[name], content)
        self._compiled = compiled
        return compiled

    def _take_host_memory(self, lowered: Lowered, grid: BlockGrid) -> None:
        """Start to pin the memory of a volume, which takes a second for some gigabytes.

        Raises DeviceMemoryError if the GPU has too little memory for the volume.
        """
        memory = self._memory_of(lowered, grid, may_recompute=True)
        with suppress(DeviceMemoryError):  # which is raised when it is needed
            self._held.begin_host(memory.host_bytes, self._gpu.context)

    def _convolve(self, step: Conv, addresses: tuple[int, int, int, int]) -> bool:
        """Queue a convolution by cuDNN's plan, if it has one; return whether it has."""
        assert self._compiled is not None
        tactic = self._compiled.tactics[step.shape]
        if tactic.plans is None:
            return False
        try:
            tactic.plans.run(tactic.index, *addresses)
        except CudaError as error:
            raise error.at(step.layer) from error
        return True


def _host_copies(opened: ExitStack) -> HostCopies:
    def staged() -> StagedCopies:
        stream = opened.enter_context(Stream())
        ready, copied = (
            [opened.enter_context(CudaEvent()) for _ in range(STAGES)] for _ in range(2)
        )
        return StagedCopies(stream, ready, copied)

    return HostCopies(staged(), staged())
