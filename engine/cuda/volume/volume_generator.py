"""Generator that runs a network over a whole volume on an NVIDIA GPU."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from ...compiler.blocks import BlockGrid, grid_of
from ...compiler.lowered import EarlyConstants, Lowered
from ...compiler.steps import Conv
from ...compiler.volume.recomputed import recomputed_convolutions
from ...compiler.volume.volume_lowering import lowered_blocks
from ...compiler.volume.volume_memory import STAGES, WORKSPACE_BYTES, VolumeMemory
from ...errors import CudaError, DeviceMemoryError, PatchShapeError, PrecisionOverflowError
from ...network.graph import Graph, Network
from ...network.layers import Triple
from ...options import Progress
from ...patch_grid import Timing
from ...scaling import Stored
from ...whole_volume import (
    HostBudget,
    VolumePlan,
    padded_extents,
    volume_refusal,
)
from ..driver import CudaEvent, Stream
from ..open_gpu import CudaOptions, OpenGpu, open_gpu
from ..tuning.cache import TuningCache
from ..tuning.tuner import Tuner, refused_kernels
from .compiled import (
    CompiledBlocks,
    compiled_blocks,
    costs_of,
    memory_of,
    parts_of_passes,
    time_key,
)
from .held_memory import HeldMemory, check_host_budget
from .lanes import Lane, LanePlan, Lanes, plan_lanes
from .overlap import AxisRows, QueueWork, RunsByRows, queue_by_launches
from .program import BlockProgram, HostCopies, PlacedVolume, StagedCopies
from .transfer import download_voxels, rows_to_download, slot_voxels, slowest_axis, upload_voxels


def planned_volume(network: Network, options: CudaOptions, extents: Triple) -> VolumePlan:
    """Return the plan of a volume (D, H, W); allocates nothing but CUDA's own context.

    Raises PatchShapeError if the network cannot process it, and DeviceMemoryError if GPU or host
    have too little memory.
    """
    _check_form(network.graph)
    grid = _grid(network.graph, extents)
    with open_gpu(options) as (gpu, budget):
        cache = TuningCache(options.cache, gpu.identity)
        without = refused_kernels(cache, gpu.kernels)
        lowered = lowered_blocks(network, grid, options.precision, gpu.context.properties, without)
        memory = memory_of(lowered, grid, network.graph, budget.bytes)
        lanes = plan_lanes(memory, grid, network.graph, budget.bytes)
        check_host_budget(memory.host_bytes, options.host_budget())
        milliseconds = cache.time(time_key(lowered, memory))
    seconds = None if milliseconds is None else milliseconds * grid.blocks / 1000
    device_bytes = memory.device_bytes + lanes.bytes
    return VolumePlan(grid.extents, device_bytes, memory.host_bytes, memory.residence, seconds)


def _grid(graph: Graph, extents: Triple) -> BlockGrid:
    return grid_of(padded_extents(graph, extents), graph.stride)


def _check_form(graph: Graph) -> None:
    if (refusal := volume_refusal(graph)) is not None:
        raise PatchShapeError(
            f"This network cannot run over a whole volume on a GPU: {refusal}; use setting "
            "inference=patches or setting device=cpu."
        )


@contextmanager
def open_cuda_volume_generator(
    network: Network, options: CudaOptions
) -> Generator["CudaVolumeGenerator"]:
    """Open a network for volumes of any extents on one GPU, compiled for each block size that
    occurs.

    It may be closed by another thread than the one that opened it. Raises PatchShapeError if the
    network has no form for volumes, or CudaError.
    """
    _check_form(network.graph)
    with ExitStack() as opened:
        gpu, budget = opened.enter_context(open_gpu(options))
        cache = TuningCache(options.cache, gpu.identity)
        tuner = Tuner(gpu, cache, budget.bytes, options.search)
        generator = CudaVolumeGenerator(
            network, gpu, tuner, budget.bytes, options.host_budget, opened
        )
        try:
            yield generator
        finally:
            with suppress(CudaError):  # a lost device refuses this too
                gpu.context.use()


@dataclass(frozen=True, slots=True)
class _Ready:
    """A volume's grid with its memory. lanes: those that it may take. costs: of its passes. parts:
    of the passes between the first and the last, see `parts_of_passes`.
    """

    compiled: CompiledBlocks
    placed: PlacedVolume
    lanes: LanePlan
    costs: Sequence[float]
    parts: Sequence[range]


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


class CudaVolumeGenerator:
    """Generator of volumes, opened by `open_cuda_volume_generator`; threads may share it.

    Volumes of one grid overlap: one is copied in and another copied out while a third is computed.
    A volume of another grid waits until the GPU is idle, as memory and program change with it.
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
        """budget: bytes of GPU memory. opened: closes what is allocated later."""
        self.graph = network.graph
        self._network = network
        self._gpu = gpu
        self._tuner = tuner
        self._cache = tuner.cache
        self._budget = budget
        self._copies = _host_copies(opened)
        self._held = opened.enter_context(HeldMemory(host_budget))
        self._lanes = Lanes(opened)
        self._computing, self._entrance = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._in_flight = 0
        self._compiled: CompiledBlocks | None = None
        self._known_memory: _KnownMemory | None = None
        self._constants: dict[str, int] = {}
        self._ready: _Ready | None = None
        self._timed: _Ready | None = None
        self._has_run = False

    @property
    def device(self) -> str:
        return f"{self._gpu.description}, {self._gpu.kernels.precision}"

    def make_ready(self, extents: Triple) -> None:
        """Compile the network for a volume (D, H, W) and allocate GPU memory for it.

        The host's memory is allocated concurrently with later work, as gigabytes take as long as
        reading the volume.

        Raises PatchShapeError, DeviceMemoryError and CudaError.
        """
        grid = _grid(self.graph, extents)
        with self._entrance, self._changed:
            self._gpu.context.use()
            self._changed.wait_for(lambda: not self._in_flight)
            self._prepared(grid)

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`; on_share: called with the share of the work done.

        Raises PatchShapeError, DeviceMemoryError before much is computed, and
        PrecisionOverflowError if a result is not finite.
        """
        _, depth, height, width = source.values.shape
        grid = _grid(self.graph, (depth, height, width))
        self._gpu.context.use()
        computing = self._gpu.stream, self._copies.out.stream, self._copies.back.stream
        with self._entered(grid) as (ready, lane), lane.flight.drained(computing):
            try:
                timings = self._run(ready, lane, source, target, on_share)
            except DeviceMemoryError:
                self._ready = None  # the next volume may find more
                raise
            self._has_run = True
            return timings

    @contextmanager
    def _entered(self, grid: BlockGrid) -> Generator[tuple[_Ready, Lane]]:
        """Own a lane of a grid during the block; volumes enter in the order in which they come."""
        with self._entrance, self._changed:
            while True:
                if not self._in_flight:
                    self._prepared(grid)
                ready = self._ready
                if ready is not None and ready.placed.grid == grid:
                    lane = self._lanes.take()
                    if lane is not None:
                        break
                self._changed.wait()
            self._in_flight += 1
        try:
            yield ready, lane
        finally:
            with self._changed:
                self._in_flight -= 1
                self._lanes.return_lane(lane)
                self._changed.notify_all()

    def tune(self, until: float, progress: Progress) -> None:
        """Search as `Tunable` describes, in the memory that the last volume leaves."""
        ready = self._ready
        if ready is None:
            return
        lowered = ready.compiled.lowered
        budget = self._budget - ready.placed.memory.device_bytes - ready.lanes.bytes
        with self._entrance, self._computing:
            self._tuner.search_later(
                self._network, lowered, budget, WORKSPACE_BYTES, until, progress
            )

    def _run(
        self,
        ready: _Ready,
        lane: Lane,
        source: Stored,
        target: Stored,
        on_share: Callable[[float], None],
    ) -> list[Timing]:
        placed = replace(ready.placed, own=lane.own)
        most, stream = slot_voxels(placed.grid.extents), self._gpu.stream
        first, *others = placed.memory.passes
        flight, phases = lane.flight, lane.flight.phases
        phases.restart()
        entering, computing, leaving = map(phases.mark, ("copy in", "compute", "copy out"))
        entering.start.record(flight.entering)
        placed.queue_start(flight.entering)
        queue_work = self._queue_work(placed, lane, ready)
        coming = RunsByRows(
            placed.in_runs(first),
            lambda: computing.start.record(stream),
            lambda: computing.stop.record(stream),
            queue_work,
        )
        turn = _Turn(self._computing)
        with turn:
            self._copy_in(placed, lane, source, most, coming, turn)
            entering.stop.record(flight.entering)
            turn.take()
            lane.arrived.record(flight.entering)
            stream.after(lane.arrived)
            coming.queue_all()
            self._compute(placed, lane, ready, on_share)
            going = RunsByRows(
                placed.in_runs(others[-1] if others else first, slowest_axis(target)),
                _nothing,
                lambda: computing.stop.record(stream),
                queue_work,
            )
            computed: list[CudaEvent] = []
            for rows in rows_to_download(target, most):
                if others:
                    going.queue_those_that_write(rows)
                computed.append(phases.event())
                computed[-1].record(stream)
        flight.leaving.after(computed[0])
        leaving.start.record(flight.leaving)
        is_finite = download_voxels(placed, target, flight.slots[0], most, flight.leaving, computed)
        leaving.stop.record(flight.leaving)
        timings = phases.timings(flight.leaving)
        self._keep_time(ready, computing.seconds)
        if not is_finite:
            raise PrecisionOverflowError.of(self._gpu.kernels.precision)
        on_share(1.0)
        return timings

    def _copy_in(
        self,
        placed: PlacedVolume,
        lane: Lane,
        source: Stored,
        most: int,
        coming: RunsByRows,
        turn: "_Turn",
    ) -> None:
        """Queue copies of the input, and runs of the first pass that need no more of it.

        The latter only if no other volume is being computed.
        """

        flight = lane.flight

        def came(rows: AxisRows) -> None:
            if turn.take_if_free():
                lane.arrived.record(flight.entering)
                self._gpu.stream.after(lane.arrived)
                coming.queue_those_that_read(rows)

        report = came if placed.takes_runs_early else _nothing
        upload_voxels(placed, source, flight.slots[0], most, flight.entering, report)

    def _compute(
        self,
        placed: PlacedVolume,
        lane: Lane,
        ready: _Ready,
        on_share: Callable[[float], None],
    ) -> None:
        """Queue all passes but the first and the last, several at a time in a small volume.

        The host stays one part ahead of the GPU, to report progress.
        """
        stream, passes = self._gpu.stream, placed.memory.passes
        total, done, before = sum(ready.costs), 0.0, None
        for part in ready.parts:
            queue = partial(placed.queue_passes, passes[part.start : part.stop])
            if self._may_capture(placed):
                lane.queue_captured(stream, part, queue)
            else:
                queue()
            if before is not None:
                before.wait()
                on_share(done / total)
            done += sum(ready.costs[part.start : part.stop])
            before = lane.flight.phases.event()
            before.record(stream)

    def _may_capture(self, placed: PlacedVolume) -> bool:
        """Return whether work may be captured: if kernels are loaded, and no map is copied."""
        return self._has_run and not placed.memory.host_bytes

    def _queue_work(self, placed: PlacedVolume, lane: Lane, ready: _Ready) -> QueueWork:
        """Return how runs of the first and the last pass are queued.

        They are captured for small volumes, whose rows come in a few pieces, always alike.
        """
        if len(ready.parts) > 1 or not self._may_capture(placed):
            return queue_by_launches
        return partial(lane.queue_captured, self._gpu.stream)

    def _keep_time(self, ready: _Ready, seconds: float) -> None:
        """Keep the time for later plans: of the first volume for which all kernels were loaded."""
        if not self._has_run or self._timed is ready:
            return
        self._timed = ready
        key = time_key(ready.compiled.lowered, ready.placed.memory)
        if self._cache.time(key) is None:
            self._cache.put_time(key, 1000 * seconds / ready.placed.grid.blocks)

    def _prepared(self, grid: BlockGrid) -> _Ready:
        """Return memory and program for a grid; those of the last one are reused if possible."""
        ready = self._ready
        if ready is not None and ready.placed.grid == grid:
            return ready
        self._ready, self._has_run = None, False
        compiled = self._compiled_for(grid)
        placed = self._placed(compiled, grid, may_recompute=True)
        if placed.memory.is_recomputed and not self._is_same_anywhere(placed):
            placed = self._placed(compiled, grid, may_recompute=False)
        lanes = plan_lanes(placed.memory, grid, self.graph, self._budget)
        self._lanes.arrange(lanes)
        costs = costs_of(placed.memory.passes, grid)
        self._ready = _Ready(compiled, placed, lanes, costs, parts_of_passes(costs))
        return self._ready

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
        channels = self.graph.in_channels
        return PlacedVolume(program, grid, channels, memory, base, host, self._copies)

    def _memory_of(self, lowered: Lowered, grid: BlockGrid, may_recompute: bool) -> VolumeMemory:
        """Return the memory plan, computed once: 50 ms if little fits on the GPU."""
        known = self._known_memory
        if known is None or not known.serves(lowered, grid, may_recompute):
            memory = memory_of(lowered, grid, self.graph, self._budget, may_recompute)
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
        self._lanes.release()
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

    @property
    def memory(self) -> VolumeMemory | None:
        """Memory plan of the last volume, made before any allocation."""
        return self._ready.placed.memory if self._ready else None


class _Turn:
    """One volume's turn to queue its passes; a context manager that ends it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock, self._is_taken = lock, False

    def take_if_free(self) -> bool:
        """Take the turn unless another volume has it; return whether it is this one's."""
        self._is_taken = self._is_taken or self._lock.acquire(blocking=False)
        return self._is_taken

    def take(self) -> None:
        """Wait for the turn, unless it is this volume's already."""
        if not self._is_taken:
            self._lock.acquire()
            self._is_taken = True

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self._is_taken:
            self._lock.release()


def _host_copies(opened: ExitStack) -> HostCopies:
    def staged() -> StagedCopies:
        stream = opened.enter_context(Stream())
        ready, copied = (
            [opened.enter_context(CudaEvent()) for _ in range(STAGES)] for _ in range(2)
        )
        return StagedCopies(stream, ready, copied)

    return HostCopies(staged(), staged())


def _nothing(*_: object) -> None:
    pass
