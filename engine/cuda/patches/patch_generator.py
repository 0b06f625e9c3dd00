"""The patch generator on an NVIDIA GPU: cuDNN plans and custom kernels in one block of memory."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from ...compiler.gpu_properties import GpuProperties
from ...compiler.kernels.checks import NOISE, fill_patches
from ...compiler.lowered import EarlyConstants, Layout, Lowered
from ...compiler.program.fitting import (
    MOST_WORKSPACE,
    Fitted,
    MemoryBudget,
    ProgramRequest,
    fit,
    usual_batch,
)
from ...compiler.program.memory import MemoryPlan
from ...compiler.steps import ConvShape, Step
from ...errors import CudaError, PatchShapeError, PrecisionOverflowError
from ...network.graph import Graph, Network
from ...network.layers import FloatArray, Triple
from ...options import Precision, Progress, SearchSettings
from ...patch_grid import PatchWindow, Timing
from ...probe.gpus import cuda_devices
from ...scaling import Stored
from ..driver import PinnedBuffer
from ..open_gpu import OpenGpu, open_gpu
from ..tuning.cache import TuningCache
from ..tuning.tactics import Tactic
from ..tuning.tuner import Tuner, refused_kernels
from .captured_program import Program, open_program
from .device_plan import DevicePlan, in_faster_forms, plan_program, program_key
from .streamed_window import SharedProgram, WindowBuffers, open_window_buffers

_TIMED_RUNS = 9


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """Options for compiling a network.

    patch: (D, H, W). batch: patches in one run, at most; None for the fastest on the GPU.
    precision: of the arithmetic. device: index of the GPU, as CUDA counts. vram_limit: bytes that
    program and arrays may take, without the CUDA context of about half a GiB; None for all that is
    free. cache: folder of compiled kernels and tuning results, None to keep nothing. search: tuning
    level.
    """

    patch: Triple
    batch: int | None = 1
    precision: Precision = "fp16"
    device: int = 0
    vram_limit: int | None = None
    cache: Path | None = None
    search: SearchSettings = field(default_factory=SearchSettings)

    def wanted(
        self, graph: Graph, gpu: GpuProperties, without: frozenset[str] = frozenset()
    ) -> ProgramRequest:
        """Return the options that determine the program of a graph; without: custom kernels."""
        batch = self.batch or usual_batch(graph, self.patch, gpu.multiprocessors)
        return ProgramRequest(self.patch, batch, self.precision, gpu, without)


def device_plan_of(network: Network, options: CudaOptions) -> DevicePlan:
    """Return the plan of a generator with these options; allocates nothing but CUDA's own context.

    Raises DeviceMemoryError if the generator would not fit.
    """
    before = {gpu.index: gpu.free_bytes for gpu in cuda_devices()}.get(options.device)
    with open_gpu(options.device, options.precision, options.cache) as opened:
        left = opened.context.memory[0]
        budget = MemoryBudget(left, options.vram_limit)
        cache = TuningCache(options.cache, opened.identity)
        without = refused_kernels(cache, opened.kernels)
        wanted = options.wanted(network.graph, opened.context.properties, without)
        return DevicePlan(
            name=opened.context.name,
            program=plan_program(network, wanted, budget, cache, options.search.effort),
            budget=budget.bytes,
            channels=(network.graph.in_channels, network.graph.out_channels),
            context=None if before is None else before - left,
        )


@contextmanager
def open_cuda_generator(network: Network, options: CudaOptions) -> Generator["CudaGenerator"]:
    """Open a network compiled for one GPU and patch shape.

    It may be closed by another thread than the one that opened it. Raises PatchShapeError,
    DeviceMemoryError if the program does not fit, or CudaError.
    """
    network.graph.check_patch(options.patch)
    with ExitStack() as opening:
        opened = open_gpu(options.device, options.precision, options.cache)
        gpu = opening.enter_context(opened)
        budget = MemoryBudget(gpu.context.memory[0], options.vram_limit)
        cache = TuningCache(options.cache, gpu.identity)
        tuner = Tuner(gpu, cache, budget.bytes, options.search)
        constants = EarlyConstants()
        fitted = _fitted(network, options, gpu, tuner, budget, constants)
        encoded = constants.encoded(fitted.lowered)
        program = opening.enter_context(open_program(fitted, encoded, gpu.kernels, gpu.stream))
        staging = opening.enter_context(_open_staging(network.graph, fitted.lowered.layout))
        windows = opening.enter_context(ExitStack())
        generator = CudaGenerator(
            network=network,
            options=options,
            gpu=gpu,
            tuner=tuner,
            budget=budget,
            fitted=fitted,
            program=program,
            staging=staging,
            opened=windows,
        )
        generator.warm_up()
        try:
            yield generator
        finally:
            with suppress(CudaError):  # a lost device refuses this too
                gpu.context.use()


def _fitted(
    network: Network,
    options: CudaOptions,
    gpu: OpenGpu,
    tuner: Tuner,
    budget: MemoryBudget,
    constants: EarlyConstants,
) -> Fitted[Tactic]:
    """Return the program of the fastest tactics that were verified on this GPU."""

    def begin(lowered: Lowered) -> None:
        constants.begin(lowered)
        tuner.check_layers(lowered)

    def attempt(without: frozenset[str]) -> Fitted[Tactic]:
        wanted = options.wanted(network.graph, gpu.context.properties, without)
        fitted = fit(network, wanted, budget, tuner.convolutions, begin)
        tuner.compare_forms(network, fitted.lowered)
        fitted = in_faster_forms(network, wanted, fitted, budget, tuner.convolutions, tuner.cache)
        tuner.check_layers(fitted.lowered)
        return fitted

    return tuner.with_right_kernels(attempt)


@dataclass(frozen=True, slots=True)
class _Staging:
    """Pinned host memory of a run's patches, of their translations, and of the overflow flag."""

    into: FloatArray
    out_of: FloatArray
    flag: npt.NDArray[np.int32]


@contextmanager
def _open_staging(graph: Graph, layout: Layout) -> Generator[_Staging]:
    into, out_of = (
        (layout.batch, channels, *layout.patch)
        for channels in (graph.in_channels, graph.out_channels)
    )
    with (
        PinnedBuffer(4 * prod(into)) as patches,
        PinnedBuffer(4 * prod(out_of)) as translated,
        PinnedBuffer(4) as flag,
    ):
        yield _Staging(patches.array(into), translated.array(out_of), flag.array((1,), np.int32))


class CudaGenerator:
    """A network on a GPU, opened by `open_cuda_generator`; threads may use it concurrently."""

    def __init__(
        self,
        network: Network,
        options: CudaOptions,
        gpu: OpenGpu,
        tuner: Tuner,
        budget: MemoryBudget,
        fitted: Fitted[Tactic],
        program: Program,
        staging: _Staging,
        opened: ExitStack,
    ) -> None:
        """opened: closes the window buffers that are opened later."""
        self.graph = network.graph
        self.options = options
        self._network = network
        self._gpu = gpu
        self._tuner = tuner
        self._budget = budget
        self._fitted = fitted
        self._program = program
        self._staging = staging
        self._opened = opened
        self._turn, self._placing = threading.Lock(), threading.Lock()
        channels = network.graph.in_channels, network.graph.out_channels
        self._shared = SharedProgram(
            program, gpu.kernels, gpu.stream, self._turn, self.batch, channels
        )
        self._windows: list[WindowBuffers] = []
        self._idle: list[WindowBuffers] = []

    @property
    def device(self) -> str:
        return f"{self._gpu.description}, {self.options.precision}"

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
        return self.memory.bytes + sum(buffers.held for buffers in self._windows)

    def warm_up(self) -> None:
        """Leave zeros as input; measure the time of a run for later plans first.

        It is measured on noise: zeros run too fast.
        """
        into, cache = self._staging.into, self._tuner.cache
        key = program_key(self.graph, self._fitted)
        if cache.time(key) is None:
            kernels, patches = self._gpu.kernels, self._program.patches
            noise = fill_patches(into.shape, NOISE.source, patches, kernels.gpu)
            kernels.launch(self._gpu.stream, noise)
            cache.put_time(key, 1e3 * median(self._program.times(_TIMED_RUNS)))
        into[...] = 0
        self._gpu.stream.fill(self._program.patches, 0, into.nbytes)

    def run_window(
        self,
        source: Stored,
        window: PatchWindow,
        target: Stored,
        on_patches: Callable[[int], None],
    ) -> list[Timing]:
        """Translate [C, D, H, W] into `target`, cut and blended on the GPU.

        Threads may call this concurrently; their runs take turns. on_patches: called with how many
        more patches are done. Raises DeviceMemoryError if the array's rows do not fit on the GPU or
        the host has no memory to copy them from, and PrecisionOverflowError.
        """
        self._gpu.context.use()
        with self._window_buffers() as buffers:
            with self._placing:
                free = self._budget.bytes - self.held + buffers.held
                placed = buffers.allocate(window, free)
            return buffers.run(source, window, target, placed, on_patches)

    @contextmanager
    def _window_buffers(self) -> Generator[WindowBuffers]:
        try:
            buffers = self._idle.pop()
        except IndexError:
            buffers = self._opened.enter_context(open_window_buffers(self._shared))
            self._windows.append(buffers)
        try:
            yield buffers
        finally:
            self._idle.append(buffers)

    def __call__(self, patches: FloatArray) -> FloatArray:
        """Translate patches [N, C, D, H, W] of the compiled extents, any number of them.

        Raises PrecisionOverflowError if a result is not finite.
        """
        into, out_of = self._staging.into, self._staging.out_of
        if patches.shape[1:] != into.shape[1:]:
            raise PatchShapeError(
                f"Patches of {patches.shape[1:]} do not fit this generator, which was compiled "
                f"for {into.shape[1:]}."
            )
        self._gpu.context.use()
        results = np.empty((len(patches), *out_of.shape[1:]), np.float32)
        for first in range(0, len(patches), self.batch):
            part = patches[first : first + self.batch]
            with self._turn:
                self._run(part)
                results[first : first + len(part)] = out_of[: len(part)]
        return results

    def _run(self, patches: FloatArray) -> None:
        staging, stream, program = self._staging, self._gpu.stream, self._program
        staging.into[: len(patches)] = patches
        staging.into[len(patches) :] = 0  # an earlier patch could overflow again
        stream.upload(program.patches, staging.into.ctypes.data, staging.into.nbytes)
        program.launch()
        stream.download(staging.out_of.ctypes.data, program.translated, staging.out_of.nbytes)
        stream.download(staging.flag.ctypes.data, program.overflow, 4)
        stream.wait()
        if staging.flag[0]:
            raise PrecisionOverflowError.of(self.options.precision)

    def tune(self, until: float, progress: Progress) -> None:
        """Search as `Tunable` describes, in the memory that the program leaves."""
        budget = self._budget.bytes - self.held
        workspace = min(MOST_WORKSPACE, budget // 2)
        with self._turn:
            lowered = self._fitted.lowered
            self._tuner.search_later(self._network, lowered, budget, workspace, until, progress)

    def times(self, repeats: int) -> list[float]:
        """Return seconds of each of many runs of a batch on the GPU, without copies."""
        self._gpu.context.use()
        return self._program.times(repeats)

    def step_times(self, repeats: int) -> list[tuple[Step, float]]:
        """Return microseconds of each step run by itself; for profiles."""
        self._gpu.context.use()
        return self._program.step_times(repeats)

    def tactic(self, shape: ConvShape) -> str:
        """Return the tactic of a convolution of the program."""
        return self._fitted.tactics[shape].name
