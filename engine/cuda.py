"""The generator on an NVIDIA card: cuDNN plans and own kernels in one block of device memory."""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from .convolutions import Cudnn
from .cuda_driver import Context, PinnedBuffer, Stream, call, driver
from .errors import DeviceMemoryError, PatchShapeError, PrecisionOverflowError
from .graph import FloatArray, Network, Triple
from .kernel_images import Kernels
from .lowered import Layout, Lowered
from .lowering import lower
from .memory_plan import MemoryPlan, plan_memory
from .plan_search import Algorithm, PlanSearch, Search
from .program import Program
from .steps import Convolution, Convolve, Precision, Step
from .sweep import Compiled
from .sweeper import Sweeper
from .tuning import TuningCache
from .window import Timing, Window

_SLABS = (112 << 20, 48 << 20, 16 << 20)
_MATRIX_CAPABILITY = (8, 0)
_LEAST_WORKSPACE, _MOST_WORKSPACE = 4 << 10, 512 << 20
"""Bytes besides its tensors that a convolution may take at least and at most."""

_RESERVE = 64 << 20
"""Bytes of the card left alone: cuDNN loads its kernels there."""


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """How a network is compiled.

    batch: patches in one run, at most. vram_limit: bytes that the program may take, without the
    CUDA context of about half a GiB; None for all that is free. cache: folder of compiled kernels
    and measured plans, None to keep nothing.
    """

    patch: Triple
    batch: int = 1
    precision: Precision = "fp16"
    device: int = 0
    vram_limit: int | None = None
    cache: Path | None = None
    search: Search = field(default_factory=Search)


class CudaGenerator:
    """A network compiled for one card and patch shape; a context manager that owns all of it.

    Threads may use it at the same time.
    """

    def __init__(self, network: Network, options: CudaOptions) -> None:
        network.graph.check_patch(options.patch)
        self.graph = network.graph
        self.options = options
        self._network = network
        self._opened = ExitStack()
        self._name = ""
        self._turn = threading.Lock()
        self._sweepers: list[Sweeper] = []
        self._idle: list[Sweeper] = []

    @property
    def device(self) -> str:
        return f"{self._name}, cuDNN {self._version}, {self.options.precision}"

    @property
    def batch(self) -> int:
        """Patches in one run."""
        return self._lowered.layout.batch

    @property
    def memory(self) -> MemoryPlan:
        """Device memory, laid out before any of it was allocated."""
        return self._plan

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._context = opening.enter_context(Context(self.options.device))
            self._stream = opening.enter_context(Stream())
            library = opening.enter_context(Cudnn(self._stream))
            self._name, self._version = self._context.name, library.version
            self._kernels = opening.enter_context(
                Kernels(self.options.precision, self._context.capability, self.options.cache)
            )
            cache = TuningCache(self.options.cache, self._identity())
            search = PlanSearch(library, self._kernels, self._stream, cache)
            self._lowered, self._plan, self._algorithms = self._fitted(search)
            self._program = opening.enter_context(
                Program(self._lowered, self._plan, self._algorithms, self._kernels, self._stream)
            )
            self._open_staging(opening)
            self._stream.fill(self._program.patches, 0, self._into.nbytes)
            self._opened = opening.pop_all()
        return self

    def sweep(
        self,
        array: FloatArray,
        window: Window,
        target: FloatArray,
        on_tiles: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`, cut and blended on the card.

        Threads may sweep at the same time; their runs take turns. on_tiles: told how many more
        tiles are done. Raises DeviceMemoryError if the card has no room for the array's rows, and
        PrecisionOverflowError.
        """
        self._context.use()
        with self._sweeper() as sweeper:
            free = self._limit - self._plan.bytes - sum(s.held for s in self._sweepers)
            return sweeper.run(array, window, target, free + sweeper.held, on_tiles)

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

    def _identity(self) -> dict[str, str]:
        return {
            "card": self._name,
            "driver": str(call(driver.cuDriverGetVersion)),
            "cudnn": self._version,
            "precision": self.options.precision,
        }

    def _fitted(
        self, search: PlanSearch
    ) -> tuple[Lowered, MemoryPlan, dict[Convolution, Algorithm]]:
        """The largest batch and fastest plans that fit into the memory there is."""
        free = self._context.memory[0] - _RESERVE
        self._limit = limit = min(free, self.options.vram_limit or free)
        ends = self.graph.in_channels, self.graph.out_channels
        smallest = 0
        for layout in self._layouts():
            lowered = lower(self._network, layout)
            shapes = {
                index: step.shape
                for index, step in enumerate(lowered.steps)
                if isinstance(step, Convolve)
            }
            least = plan_memory(lowered, ends, dict.fromkeys(shapes, _LEAST_WORKSPACE)).bytes
            smallest = min(smallest or least, least)
            if least > limit:
                continue
            for workspace in (min(limit - least, _MOST_WORKSPACE), 0):
                algorithms = search.algorithms(
                    [*shapes.values()], workspace + _LEAST_WORKSPACE, self.options.search
                )
                needed = {index: algorithms[shape].workspace for index, shape in shapes.items()}
                plan = plan_memory(lowered, ends, needed)
                if plan.bytes <= limit:
                    return lowered, plan, algorithms
        raise DeviceMemoryError(
            f"The network needs {_mib(smallest)} MiB of device memory for patches of "
            f"{'x'.join(map(str, self.options.patch))}, but {_mib(limit)} MiB may be used; "
            f"use smaller patches or a --vram-limit of at least {_mib(smallest)} MiB."
        )

    def _layouts(self) -> Iterator[Layout]:
        options, batch = self.options, self.options.batch
        has_matrix = (
            options.precision in ("fp16", "bf16") and self._context.capability >= _MATRIX_CAPABILITY
        )
        while batch:
            for slab_bytes in _SLABS:
                yield Layout(
                    self.options.patch, batch, self.options.precision, slab_bytes, has_matrix
                )
            batch //= 2

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        self._stream.upload(self._program.patches, self._into.ctypes.data, self._into.nbytes)
        self._program.launch()
        target = self._out_of.ctypes.data
        self._stream.download(target, self._program.translated, self._out_of.nbytes)
        self._stream.download(self._flag.ctypes.data, self._program.overflow, 4)
        self._stream.wait()
        if self._flag[0]:
            raise PrecisionOverflowError(
                f"A value left the range of {self.options.precision}; use --precision bf16 or fp32."
            )

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
        return self._algorithms[shape].name

    def poison(self) -> None:
        """Fill all memory that a run must write with NaN, so that a test sees what it leaves."""
        self._context.use()
        self._program.poison()


def _mib(size: int) -> int:
    return -(-size // 2**20)
