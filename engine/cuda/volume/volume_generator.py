"""Generator that runs a network over a whole volume on an NVIDIA GPU."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress

from ...compiler.blocks import BlockGrid, grid_of
from ...compiler.program.block_maps import margins
from ...compiler.program.memory import WORKSPACE_BYTES
from ...compiler.volume.volume_lowering import lowered_blocks
from ...compiler.volume.volume_memory import VolumeMemory
from ...errors import CudaError, DeviceMemoryError, PatchShapeError
from ...network.graph import Graph, Network
from ...network.layers import Triple
from ...options import Progress
from ...patch_grid import Timing
from ...scaling import Stored
from ...whole_volume import VolumePlan, padded_extents, volume_refusal
from ..open_gpu import CudaOptions, OpenGpu, open_gpu
from ..tuning.cache import TuningCache
from ..tuning.tuner import Tuner, refused_kernels
from .compiled import memory_of, time_key
from .held_memory import check_host_budget
from .lanes import Lane, plan_lanes
from .preparation import Preparation, Ready
from .streamed_volume import StreamedVolume


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
    return grid_of(padded_extents(graph, extents), graph.stride, margins(graph))


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
        preparation = Preparation(network, gpu, tuner, budget.bytes, options.host_budget, opened)
        generator = CudaVolumeGenerator(network, gpu, tuner, budget.bytes, preparation)
        try:
            yield generator
        finally:
            with suppress(CudaError):  # a lost device refuses this too
                gpu.context.use()


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
        preparation: Preparation,
    ) -> None:
        """budget: bytes of GPU memory."""
        self.graph = network.graph
        self._network = network
        self._gpu = gpu
        self._tuner = tuner
        self._budget = budget
        self._preparation = preparation
        self._computing, self._entrance = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._in_flight = 0

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
            self._preparation.prepare(grid)

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
        copies = self._preparation.copies
        computing = self._gpu.stream, copies.out.stream, copies.back.stream
        with self._entered(grid) as (ready, lane), lane.flight.drained(computing):
            streamed = StreamedVolume(ready, lane, self._computing, (source, target))
            try:
                timings, seconds = streamed.run(on_share)
            except DeviceMemoryError:
                self._preparation.ready = None  # the next volume may find more
                raise
            self._keep_time(ready, seconds)
            return timings

    @contextmanager
    def _entered(self, grid: BlockGrid) -> Generator[tuple[Ready, Lane]]:
        """Own a lane of a grid during the block; volumes enter in the order in which they come."""
        with self._entrance, self._changed:
            while True:
                if not self._in_flight:
                    self._preparation.prepare(grid)
                ready = self._preparation.ready
                if ready is not None and ready.placed.grid == grid:
                    lane = self._preparation.lanes.take()
                    if lane is not None:
                        break
                self._changed.wait()
            self._in_flight += 1
        try:
            yield ready, lane
        finally:
            with self._changed:
                self._in_flight -= 1
                self._preparation.lanes.return_lane(lane)
                self._changed.notify_all()

    def tune(self, until: float, progress: Progress) -> None:
        """Search as `Tunable` describes, in the memory that the last volume leaves."""
        ready = self._preparation.ready
        if ready is None:
            return
        lowered = ready.compiled.lowered
        budget = self._budget - ready.placed.memory.device_bytes - ready.lanes.bytes
        with self._entrance, self._computing:
            self._tuner.search_later(
                self._network, lowered, budget, WORKSPACE_BYTES, until, progress
            )

    def _keep_time(self, ready: Ready, seconds: float) -> None:
        """Keep the time for later plans: of the first volume for which all kernels were loaded."""
        if ready.runs == 1:
            key = time_key(ready.compiled.lowered, ready.placed.memory)
            if self._tuner.cache.time(key) is None:
                self._tuner.cache.put_time(key, 1000 * seconds / ready.placed.grid.blocks)
        ready.runs += 1

    @property
    def memory(self) -> VolumeMemory | None:
        """Memory plan of the last volume, made before any allocation."""
        ready = self._preparation.ready
        return ready.placed.memory if ready else None
