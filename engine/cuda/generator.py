"""The generator on an NVIDIA card: cuDNN plans and own kernels in one block of device memory."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

import numpy as np

from ..compiler.memory.fitting import Fitted, Room, Wanted, fit, usual_batch
from ..compiler.memory.plan import MemoryPlan
from ..compiler.steps import Convolution, Step
from ..errors import CudaError, PatchShapeError, PrecisionOverflowError
from ..network.graph import FloatArray, Graph, Network, Triple
from ..options import Precision
from ..probe.cards import cuda_devices
from ..scaling import Stored
from ..sliding_window import Timing, Window
from .cudnn import Cudnn
from .device_plan import DevicePlan, plan_program, program_key
from .driver import Context, PinnedBuffer, Stream
from .kernel_images import Kernels
from .plan_cache import TuningCache
from .plan_search import Algorithm, PlanSearch, Search
from .program import Program
from .streamed_window import Compiled
from .window_buffers import Sweeper

_TIMED_RUNS = 9


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How a network is compiled.

    batch: patches in one run, at most; None for what pays on the card. vram_limit: bytes that
    program and arrays may take, without the CUDA context of about half a GiB; None for all that is
    free. cache: folder of compiled kernels and measured plans, None to keep nothing.
    """

    patch: Triple
    batch: int | None = 1
    precision: Precision = "fp16"
    device: int = 0
    vram_limit: int | None = None
    cache: Path | None = None
    search: Search = field(default_factory=Search)

    def wanted(self, graph: Graph, card: Context) -> Wanted:
        """What of this the program depends on, for a graph on a card."""
        batch = self.batch or usual_batch(graph, self.patch, card.multiprocessors)
        return Wanted(self.patch, batch, self.precision, card.capability)


def _identity(context: Context, library: Cudnn, precision: Precision) -> dict[str, str]:
    """What findings of plans are valid for."""
    return {
        "card": context.name,
        "driver": str(context.driver_version),
        "cudnn": library.version,
        "precision": precision,
    }


def planned(network: Network, options: CudaOptions) -> DevicePlan:
    """What a generator with these options would take; nothing is allocated but CUDA's own context.

    Raises DeviceMemoryError if it would find no room.
    """
    before = {card.index: card.free_bytes for card in cuda_devices()}.get(options.device)
    with Context(options.device) as context, Stream() as stream, Cudnn(stream) as library:
        cache = TuningCache(options.cache, _identity(context, library, options.precision))
        left = context.memory[0]
        room = Room(left, options.vram_limit)
        wanted = options.wanted(network.graph, context)
        return DevicePlan(
            card=context.name,
            program=plan_program(network, wanted, room, cache, options.search.effort),
            room=room.bytes,
            channels=(network.graph.in_channels, network.graph.out_channels),
            context=None if before is None else before - left,
        )


class CudaGenerator:
    """A network compiled for one card and patch shape; a context manager that owns all of it.

    Threads may use it at the same time; another than the one that opened it may close it.
    """

    def __init__(self, network: Network, options: CudaOptions) -> None:
        network.graph.check_patch(options.patch)
        self.graph = network.graph
        self.options = options
        self._network = network
        self._opened = ExitStack()
        self._name = ""
        self._turn, self._placing = threading.Lock(), threading.Lock()
        self._sweepers: list[Sweeper] = []
        self._idle: list[Sweeper] = []

    @property
    def device(self) -> str:
        return f"{self._name}, cuDNN {self._version}, {self.options.precision}"

    @property
    def batch(self) -> int:
        """Patches in one run."""
        return self._fitted.lowered.layout.batch

    @property
    def memory(self) -> MemoryPlan:
        """Device memory, laid out before any of it was allocated."""
        return self._fitted.memory

    @property
    def held(self) -> int:
        """Bytes of device memory that are allocated now."""
        return self.memory.bytes + sum(sweeper.held for sweeper in self._sweepers)

    def __enter__(self) -> Self:
        options = self.options
        with ExitStack() as opening:
            self._context = opening.enter_context(Context(options.device))
            self._stream = opening.enter_context(Stream())
            library = opening.enter_context(Cudnn(self._stream))
            self._name, self._version = self._context.name, library.version
            self._kernels = opening.enter_context(
                Kernels(options.precision, self._context.capability, options.cache)
            )
            cache = TuningCache(options.cache, _identity(self._context, library, options.precision))
            search = PlanSearch(library, self._kernels, self._stream, cache)
            self._room = Room(self._context.memory[0], options.vram_limit)
            self._fitted = self._fit(search)
            self._program = opening.enter_context(
                Program(
                    self._fitted.lowered,
                    self.memory,
                    self._fitted.algorithms,
                    self._kernels,
                    self._stream,
                )
            )
            self._open_staging(opening)
            self._keep_time(cache)
            self._stream.fill(self._program.patches, 0, self._into.nbytes)
            self._opened = opening.pop_all()
        return self

    def _fit(self, search: PlanSearch) -> Fitted[Algorithm]:
        options = self.options
        return fit(
            self._network,
            options.wanted(self.graph, self._context),
            self._room,
            lambda shapes, workspace: search.algorithms(shapes, workspace, options.search),
        )

    def _keep_time(self, cache: TuningCache) -> None:
        """Have the time of a run known to later plans, measured on noise: zeros run too fast."""
        key = program_key(self.graph, self._fitted)
        if cache.time(key) is None:
            self._into[...] = np.random.default_rng(0).uniform(-1, 1, self._into.shape)
            self._stream.upload(self._program.patches, self._into.ctypes.data, self._into.nbytes)
            cache.put_time(key, 1e3 * median(self._program.times(_TIMED_RUNS)))
            self._into[...] = 0

    def sweep(
        self,
        source: Stored,
        window: Window,
        target: Stored,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`, cut and blended on the card.

        Threads may sweep at the same time; their runs take turns. on_tiles: told how many more
        tiles are done. Raises DeviceMemoryError if the card has no room for the array's rows, and
        PrecisionOverflowError.
        """
        self._context.use()
        with self._sweeper() as sweeper:
            with self._placing:
                free = self._room.bytes - self.held + sweeper.held
                placed = sweeper.place(window, free)
            return sweeper.run(source, window, target, placed, on_tiles)

    @contextmanager
    def _sweeper(self) -> Generator[Sweeper]:
        try:
            sweeper = self._idle.pop()
        except IndexError:
            channels = self.graph.in_channels, self.graph.out_channels
            compiled = Compiled(
                self._program, self._kernels, self._stream, self._turn, self.batch, channels
            )
            sweeper = self._opened.enter_context(Sweeper(compiled))
            self._sweepers.append(sweeper)
        try:
            yield sweeper
        finally:
            self._idle.append(sweeper)

    def _open_staging(self, opening: ExitStack) -> None:
        voxels = int(np.prod(self.options.patch))
        shapes = [
            (self.batch, channels, *self.options.patch)
            for channels in (self.graph.in_channels, self.graph.out_channels)
        ]
        buffers = [
            opening.enter_context(PinnedBuffer(self.batch * shape[1] * voxels * 4))
            for shape in shapes
        ]
        self._into, self._out_of = (b.array(s) for b, s in zip(buffers, shapes, strict=True))
        self._flag = opening.enter_context(PinnedBuffer(4)).array((1,)).view(np.int32)
        self._into[...] = 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(CudaError):  # a lost device refuses this too
            self._context.use()
        self._opened.__exit__(kind, error, trace)

    def __call__(self, patches: FloatArray) -> FloatArray:
        """Translate patches [N, C, D, H, W] of the compiled extents, any number of them.

        Raises PrecisionOverflowError if a result is not finite.
        """
        if patches.shape[1:] != self._into.shape[1:]:
            raise PatchShapeError(
                f"Patches of {patches.shape[1:]} do not fit this generator, which was compiled "
                f"for {self._into.shape[1:]}."
            )
        self._context.use()
        results = np.empty((len(patches), *self._out_of.shape[1:]), np.float32)
        for first in range(0, len(patches), self.batch):
            part = patches[first : first + self.batch]
            with self._turn:
                self._run(part)
                results[first : first + len(part)] = self._out_of[: len(part)]
        return results

    def _run(self, patches: FloatArray) -> None:
        self._into[: len(patches)] = patches
        self._into[len(patches) :] = 0  # an earlier patch could overflow again
        self._stream.upload(self._program.patches, self._into.ctypes.data, self._into.nbytes)
        self._program.launch()
        target = self._out_of.ctypes.data
        self._stream.download(target, self._program.translated, self._out_of.nbytes)
        self._stream.download(self._flag.ctypes.data, self._program.overflow, 4)
        self._stream.wait()
        if self._flag[0]:
            raise PrecisionOverflowError.of(self.options.precision)

    def times(self, repeats: int) -> list[float]:
        """Seconds of each of many runs of a batch on the card, copies left out."""
        self._context.use()
        return self._program.times(repeats)

    def step_times(self, repeats: int) -> list[tuple[Step, float]]:
        """Microseconds of each step run by itself; for profiles."""
        self._context.use()
        return self._program.step_times(repeats)

    def algorithm(self, shape: Convolution) -> str:
        """How a convolution of the program is done."""
        return self._fitted.algorithms[shape].name

    def poison(self) -> None:
        """Fill all memory that a run must write with NaN, so that a test sees what it leaves."""
        self._context.use()
        self._program.poison()
