"""The passes of a network over the blocks of a volume, queued on a stream.

Offloaded maps are written on the GPU, run by run, and copied to host memory while the next run is
computed. A run's own blocks of its input are copied in ahead of it; the halo is read from host
memory by the kernels, each voxel once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import prod
from typing import Protocol, TypeAlias

from ...compiler.blocks import BlockGrid, BlockRun
from ...compiler.kernels.launch import CLIPPED, OVERFLOW, Launch, region_address
from ...compiler.kernels.sliding_window import CLIPPED_BYTES
from ...compiler.kernels.step_launches import block_launches, measured_volume, partial_bytes
from ...compiler.lowered import Lowered
from ...compiler.program.memory import scratch_name
from ...compiler.steps import Conv, Normalise, Pointwise, Statistics, Step, is_planned
from ...compiler.tensors import PATCHES, Tensor
from ...compiler.volume.passes import (
    Pass,
    finds_blocks,
    goes_in_any_order,
    narrow_steps,
    source_of,
)
from ...compiler.volume.volume_memory import (
    STAGES,
    WORKSPACE,
    VolumeMemory,
    fetched_name,
    staged_name,
)
from ..driver import CudaEvent, Stream
from .held_memory import parts_of

PlacedConvolution: TypeAlias = Callable[[Conv, tuple[int, int, int, int]], bool]
"""Queue a convolution with addresses of source, weight, target and workspace; return whether it
did.

If not, the custom kernel computes the convolution.
"""


class Launcher(Protocol):
    """Object that queues custom kernels."""

    def launch(self, stream: Stream, launch: Launch) -> None:
        """Queue a launch."""
        ...


@dataclass(frozen=True, slots=True)
class BlockProgram:
    """A network for blocks, whose weights are on the GPU at the addresses `constants`.

    lowered: its steps. kernels: queues custom kernels. convolve: queues convolutions by cuDNN.
    stream: in which all is computed.
    """

    lowered: Lowered
    constants: Mapping[str, int]
    kernels: Launcher
    convolve: PlacedConvolution
    stream: Stream


@dataclass(frozen=True, slots=True)
class StagedCopies:
    """Copies of one direction between the GPU and maps in host memory. stream: of the copies.

    ready, copied: of each staging buffer, events after the work that its copy waits for and after
    the copy.
    """

    stream: Stream
    ready: Sequence[CudaEvent]
    copied: Sequence[CudaEvent]

    def queue(self, stage: int, copy: Callable[[Stream], None]) -> None:
        """Queue the copies of a staging buffer, which is ready for them after its last event."""
        self.stream.after(self.ready[stage])
        copy(self.stream)
        self.copied[stage].record(self.stream)


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies of offloaded maps. out: D2H. back: H2D."""

    out: StagedCopies
    back: StagedCopies


@dataclass(frozen=True, slots=True)
class PlacedVolume:
    """A program over one volume.

    grid: of its blocks. channels: of the input. memory: plan. base: start of that on the GPU. host:
    returns the start in pinned host memory, and waits for it, which the first passes may not need.
    copies: of offloaded maps, None if there are none. own: addresses of data outside of the plan's
    memory, by name.
    """

    program: BlockProgram
    grid: BlockGrid
    channels: int
    memory: VolumeMemory
    base: int
    host: Callable[[], int]
    copies: HostCopies | None = None
    own: Mapping[str, int] = field(default_factory=dict[str, int])
    _busy: set[int] = field(default_factory=set[int])

    def at(self, name: str) -> int:
        """Return the start address of data that all blocks share, by name."""
        if name in self.own:
            return self.own[name]
        if name in self.program.constants:
            return self.program.constants[name]
        if name in self.memory.host_offsets:
            return self.host() + self.memory.host_offsets[name]
        return self.base + self.memory.offsets[name]

    def addresses_of(self, step: Conv) -> tuple[int, int, int, int]:
        """Return addresses of a convolution's source, weight, target and workspace, none a map."""
        names = step.source.name, step.weight, step.target.name, WORKSPACE
        source, weight, target, workspace = (self.at(name) for name in names)
        return source, weight, target, workspace

    def queue_start(self, stream: Stream) -> None:
        """Queue the work before the volume is copied in, on the stream of that copy.

        Products with weights that are 0 may read voxels that are not copied in yet: those must be
        finite numbers.
        """
        stream.fill(self.at(OVERFLOW), 0, 4)
        stream.fill(self.at(CLIPPED), 0, CLIPPED_BYTES)
        if self.takes_runs_early:
            stream.fill(self.at(PATCHES), 0, 4 * self.channels * prod(self.grid.extents))

    @property
    def takes_runs_early(self) -> bool:
        """Whether runs are queued before the input is complete: if the volume is on the GPU."""
        return PATCHES not in self.memory.host_offsets

    def queue_passes(self, passes: Iterable[Pass]) -> None:
        """Queue passes over all blocks, one after another."""
        for one in passes:
            queued = self.in_runs(one)
            queued.queue_together(queued.runs, is_last=True)

    def in_runs(self, one: Pass, slowest: int = 0) -> "PassInRuns":
        """Return a pass, run by run; slowest: slowest axis of the order, if that is free."""
        leaving = sorted(
            one.written_names & self.memory.maps.keys() & self.memory.host_offsets.keys()
        )
        fetched = self.memory.fetched_by(one)
        if fetched:
            self.free_stages(range(STAGES))
        grid = one.grid_in(self.grid)
        batch = grid.blocks if one.is_whole else one.batch or self.program.lowered.layout.batch
        is_free = not fetched and goes_in_any_order(one, self.memory.maps)
        runs = list(grid.runs(batch, slowest if is_free else 0))
        return PassInRuns(self, one, grid, tuple(runs), leaving, fetched)

    def wait_for_copy(self, stage: int) -> None:
        """Make later work wait until the content of a staging buffer is copied."""
        if self.copies is not None and stage in self._busy:
            self.program.stream.after(self.copies.out.copied[stage])
            self._busy.discard(stage)

    def free_stages(self, stages: Iterable[int]) -> None:
        """Make copies into staging buffers wait until the work queued so far has read these."""
        assert self.copies is not None
        for stage in stages:
            self.copies.back.ready[stage].record(self.program.stream)

    def queue_copies_back(self, placed: "_PlacedRun") -> None:
        """Queue copies of a run's input from offloaded maps, and make the run wait for them."""
        assert self.copies is not None

        def copy(stream: Stream) -> None:
            for name in placed.fetched:
                for offset, address, size in placed.in_host_memory(name):
                    stream.upload(placed.read_at(name) + offset, address, size)

        self.copies.back.queue(placed.stage, copy)
        self.program.stream.after(self.copies.back.copied[placed.stage])

    def queue_copies_out(self, placed: "_PlacedRun") -> None:
        """Queue copies of a run's output to offloaded maps."""
        assert self.copies is not None

        def copy(stream: Stream) -> None:
            for name in placed.leaving:
                for offset, address, size in placed.in_host_memory(name):
                    stream.download(address, placed.at(name) + offset, size)

        self.copies.out.ready[placed.stage].record(self.program.stream)
        self.copies.out.queue(placed.stage, copy)
        self._busy.add(placed.stage)

    def block_bytes(self, name: str) -> int:
        """Return the bytes of a block of a map."""
        tensor = self.memory.maps[name]
        return tensor.bytes // tensor.batch

    def queue_step(self, number: int, step: Step, placed: "_PlacedRun") -> None:
        """Queue a step for one run, or for all blocks as one."""
        run, gpu = placed.run, self.program.lowered.gpu
        if is_planned(step) and self._convolved(step, placed):
            return
        scratch = 0
        if step.flow.measures is not None:
            scratch = self.at(scratch_name(number)) + run.first * partial_bytes(step, gpu)
        kept = self._kept(step, placed)
        at = placed.at if isinstance(step, Pointwise) else placed.read_at
        for launch in block_launches(
            step, at, gpu, placed.grid, run, scratch, kept, placed.read_at
        ):
            self.launch(launch)

    def _kept(self, step: Step, placed: "_PlacedRun") -> BlockGrid | None:
        """Return the grid of the map that a step reads in other blocks, if that is not the run's.

        A map computed around smaller blocks has the extents of those of the volume's grid.
        """
        if not finds_blocks(step):
            return None
        usual = placed.grid if step.around is None else self.grid
        kept = self.memory.grids.get(source_of(step).tensor.name, usual)
        return None if placed.finds_by_run(kept) else kept

    def _convolved(self, step: Conv, placed: "_PlacedRun") -> bool:
        """Queue a convolution by cuDNN; return whether it is done, or is for none of the run's
        blocks.
        """
        if step.region is not None and step.region.first >= placed.run.count:
            return True
        target = region_address(step, placed.at)
        source, weight = placed.read_at(step.source.name), self.at(step.weight)
        return self.program.convolve(step, (source, weight, target, self.at(WORKSPACE)))

    def launch(self, launch: Launch) -> None:
        """Queue a custom kernel."""
        self.program.kernels.launch(self.program.stream, launch)


@dataclass(frozen=True, slots=True)
class PassInRuns:
    """A pass whose runs are queued in any order, followed by the work that joins them.

    volume: that it belongs to. one: the pass. grid: of its blocks. runs: all of them, in their
    usual order. leaving: maps that it writes for host memory. fetched: maps whose blocks are copied
    back for it.
    """

    volume: PlacedVolume
    one: Pass
    grid: BlockGrid
    runs: tuple[BlockRun, ...]
    leaving: Sequence[str]
    fetched: Sequence[str]
    _stages: Iterator[int] = field(default_factory=lambda: cycle(range(STAGES)))

    def queue_together(self, runs: Iterable[BlockRun], *, is_last: bool) -> None:
        """Queue runs; is_last: whether the work that needs all runs follows them."""
        for run in runs:
            self._queue(run)
        if is_last:
            self._finish()

    def _queue(self, run: BlockRun) -> None:
        """Queue all steps for some blocks."""
        volume, stage = self.volume, next(self._stages)
        placed = _PlacedRun(volume, self.one, run, stage, self.grid, self.leaving, self.fetched)
        if self.leaving:
            volume.wait_for_copy(stage)
        if self.fetched:
            volume.queue_copies_back(placed)
        one = self.one.of_run(run)
        narrow = dict(narrow_steps(one, volume.memory.maps))
        for index, step in enumerate(one.steps):
            if index in narrow:
                self._queue_block_by_block(index, placed)
            elif index - 1 not in narrow and not self._is_measured_at_once(step):
                volume.queue_step(one.first + index, step, placed)
        if self.fetched:
            volume.free_stages([stage])
        if self.leaving:
            volume.queue_copies_out(placed)

    def _queue_block_by_block(self, index: int, placed: "_PlacedRun") -> None:
        """Queue a step and the next one, which reads its output, one block at a time."""
        maker, reader = self.one.steps[index : index + 2]
        [narrow] = maker.flow.written_names
        sizes = {
            item.name: item.bytes // item.batch
            for item in reader.flow.touches
            if isinstance(item, Tensor) and item.name != narrow
        }
        for number in range(placed.run.count):
            block = BlockRun(placed.run.numbers[number], 1)
            one = replace(placed, run=block, preceding=number, sizes=sizes)
            for step_number, step in enumerate((maker, reader), self.one.first + index):
                self.volume.queue_step(step_number, step, one)

    def _finish(self) -> None:
        """Queue the work that needs all runs."""
        volume, gpu = self.volume, self.volume.program.lowered.gpu
        for stage in range(STAGES):
            volume.wait_for_copy(stage)
        for number, step in self.one.measured:
            if self._is_measured_at_once(step):
                everything = BlockRun(0, self.grid.blocks)
                placed = _PlacedRun(volume, self.one, everything, 0, self.grid)
                volume.queue_step(number, step, placed)
            if isinstance(step, Normalise):
                continue
            partials, blocks = volume.at(scratch_name(number)), self.grid.blocks
            volume.launch(measured_volume(step, volume.at, gpu, partials, blocks))

    def _is_measured_at_once(self, step: Step) -> bool:
        """Return whether a map's statistics are computed in one launch, once all of it is on the
        GPU.
        """
        if not isinstance(step, Statistics):
            return False
        name = step.source.tensor.name
        return name in self.volume.memory.maps and name not in self.leaving


@dataclass(frozen=True, slots=True)
class _PlacedRun:
    """Addresses of a run's blocks in a pass. grid: of these. stage: staging buffer of copies.

    leaving, fetched: maps in host memory that it writes, and those of which it reads copies.
    preceding: blocks before it in a larger run, whose tensors it shares. sizes: of a block of these
    tensors.
    """

    volume: PlacedVolume
    one: Pass
    run: BlockRun
    stage: int
    grid: BlockGrid
    leaving: Sequence[str] = ()
    fetched: Sequence[str] = ()
    preceding: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    def at(self, name: str) -> int:
        """Return the address of the run's first block among those that the run reads or writes.

        For maps of another grid, it is the address of their first block.
        """
        volume = self.volume
        if name in self.leaving:
            return self._on_the_gpu(name, staged_name(name, self.stage))
        kept = volume.memory.kept
        if kept is not None and name == kept.tensor.name and kept.has(self.run):
            return volume.at(kept.name) + self.run.first * kept.block_bytes
        address = volume.at(name)
        if name not in volume.memory.maps:
            return address + self.preceding * self.sizes.get(name, 0)
        if not self.finds_by_run(volume.memory.grids[name]):
            return address
        return address + self.run.first * volume.block_bytes(name)

    def read_at(self, name: str) -> int:
        """Return the address at which the run's first block is read: of a copy, if there is one."""
        if name in self.fetched:
            return self._on_the_gpu(name, fetched_name(name, self.one, self.stage))
        return self.at(name)

    def _on_the_gpu(self, name: str, staged: str) -> int:
        address = self.volume.base + self.volume.memory.offsets[staged]
        return address + self.preceding * self.sizes.get(name, 0)

    def finds_by_run(self, kept: BlockGrid) -> bool:
        """Return whether maps stored by a grid have the run's blocks one after another."""
        return self.grid == kept and self.run.apart == 1

    def in_host_memory(self, name: str) -> Iterator[tuple[int, int, int]]:
        """Yield the run's blocks of an offloaded map, in parts that may be copied.

        Each part is its offset in bytes from the first block, its address and its bytes.
        """
        size, host = self.volume.block_bytes(name), self.volume.host()
        begin = self.volume.memory.host_offsets[name] + self.run.first * size
        for start, count in parts_of(begin, self.run.count * size):
            yield start - begin, host + start, count
