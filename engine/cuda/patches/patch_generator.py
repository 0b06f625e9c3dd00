"""The patch generator on an NVIDIA GPU: cuDNN plans and custom kernels in one block of memory."""

import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from statistics import median

import numpy as np
import numpy.typing as npt

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
from ...options import Progress
from ...patch_grid import PatchWindow, Timing
from ...probe.gpus import cuda_devices
from ...scaling import Stored
from ..driver import PinnedBuffer
from ..open_gpu import CudaOptions, OpenGpu, open_gpu
from ..tuning.cache import TuningCache
from ..tuning.tactics import Tactic
from ..tuning.tuner import Tuner, refused_kernels
from .captured_program import Program, open_program
from .device_plan import DevicePlan, in_faster_forms, plan_program, program_key
from .streamed_window import SharedProgram, WindowBuffers, open_window_buffers

_TIMED_RUNS = 9


def planned_patches(
    network: Network, options: CudaOptions, patch: Triple, batch: int | None = 1
) -> DevicePlan:
    """Return the plan of `open_cuda_generator`; allocates nothing but CUDA's own context.

    Raises DeviceMemoryError if the generator would not fit.
    """
    before = {gpu.index: gpu.free_bytes for gpu in cuda_devices()}.get(options.device)
    with open_gpu(options) as (gpu, budget):
        cache = TuningCache(options.cache, gpu.identity)
        without = refused_kernels(cache, gpu.kernels)
        wanted = _request(network.graph, gpu, patch, batch, without)
        return DevicePlan(
            name=gpu.context.name,
            program=plan_program(network, wanted, budget, cache, options.search.effort),
            budget=budget.bytes,
            channels=(network.graph.in_channels, network.graph.out_channels),
            context=None if before is None else before - budget.free,
        )


def _request(
    graph: Graph, gpu: OpenGpu, patch: Triple, batch: int | None, without: frozenset[str]
) -> ProgramRequest:
    """Return what determines the program of a graph; without: custom kernels."""
    properties = gpu.context.properties
    batch = batch or usual_batch(graph, patch, properties.multiprocessors)
    return ProgramRequest(patch, batch, gpu.kernels.precision, properties, without)


@contextmanager
def open_cuda_generator(
    network: Network, options: CudaOptions, patch: Triple, batch: int | None = 1
) -> Generator["CudaGenerator"]:
    """Open a network compiled for one GPU and patch shape.

    patch: (D, H, W). batch: patches in one run, at most; None for the fastest on the GPU. It may be
    closed by another thread than the one that opened it. Raises PatchShapeError, DeviceMemoryError
    if the program does not fit, or CudaError.
    """
    network.graph.check_patch(patch)
    with ExitStack() as opening:
        gpu, budget = opening.enter_context(open_gpu(options))
        cache = TuningCache(options.cache, gpu.identity)
        tuner = Tuner(gpu, cache, budget.bytes, options.search)
        constants = EarlyConstants()

        def attempt(without: frozenset[str]) -> Fitted[Tactic]:
            wanted = _request(network.graph, gpu, patch, batch, without)
            return _fitted(network, wanted, tuner, budget, constants)

        fitted = tuner.with_right_kernels(attempt)
        encoded = constants.encoded(fitted.lowered)
        program = opening.enter_context(open_program(fitted, encoded, gpu.kernels, gpu.stream))
        staging = opening.enter_context(_open_staging(network.graph, fitted.lowered.layout))
        windows = opening.enter_context(ExitStack())
        generator = CudaGenerator(
            network=network,
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
    wanted: ProgramRequest,
    tuner: Tuner,
    budget: MemoryBudget,
    constants: EarlyConstants,
) -> Fitted[Tactic]:
    """Return the program of the fastest tactics that were verified on this GPU."""

    def begin(lowered: Lowered) -> None:
        constants.begin(lowered)
        tuner.check_layers(lowered)

    fitted = fit(network, wanted, budget, tuner.convolutions, begin)
    tuner.compare_forms(network, fitted.lowered)
    fitted = in_faster_forms(network, wanted, fitted, budget, tuner.convolutions, tuner.cache)
    tuner.check_layers(fitted.lowered)
    return fitted


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
        return f"{self._gpu.description}, {self._gpu.kernels.precision}"

    @property
    def patch(self) -> Triple:
        """Extents (D, H, W) of a patch."""
        return self._fitted.lowered.layout.patch

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
            raise PrecisionOverflowError.of(self._gpu.kernels.precision)

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
