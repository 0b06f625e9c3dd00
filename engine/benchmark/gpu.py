"""Measure a network on a GPU, and the GPU's ceilings in the same arithmetic."""

from collections.abc import Callable
from contextlib import ExitStack
from math import prod
from time import perf_counter

import numpy as np

from ..compiler.program.memory import WORKSPACE_BYTES, between_guards, convolution_blocks
from ..compiler.steps import ConvShape
from ..compiler.tensors import NUMBER_BYTES
from ..compiler.weight_layout import encoded
from ..cuda.cudnn import Cudnn
from ..cuda.driver import Context, DeviceBuffer, Stream
from ..cuda.kernel_images import Kernels
from ..cuda.open_gpu import CudaOptions, OpenGpu
from ..cuda.patches.patch_generator import CudaGenerator, open_cuda_generator
from ..cuda.tuning.cache import TuningCache
from ..cuda.tuning.tuner import Tuner
from ..errors import CudaError, DeviceMemoryError
from ..network.graph import Network
from ..network.graph_analysis import flops, layer_flops
from ..network.layers import FloatArray
from ..options import Precision, SearchSettings
from ..probe.gpus import EnergyMeter
from .layer_times import layer_times
from .measurement import Budget, Ceilings, Latency, LayerTime, Measured, MemoryUse

_FEWEST, _MOST = 20, 2000
_FEWEST_CALLS, _MOST_CALLS = 5, 200
_LAYER_ROUNDS = 5


def measure_on_gpu(
    network: Network,
    options: CudaOptions,
    most: int | None,
    patches: FloatArray,
    budget: Budget,
    keep: Callable[[FloatArray], None],
) -> Measured:
    """Measure a network on patches [N, C, D, H, W], timed on the GPU itself and from the host.

    most: patches in one run, at most; None for the fastest number. keep: called with the translated
    patches. Raises DeviceMemoryError, PatchShapeError or CudaError.
    """
    _, _, depth, height, width = patches.shape
    patch = depth, height, width
    with Context(options.device) as context:
        free, _ = context.memory
        with open_cuda_generator(network, options, patch, most) as generator:
            keep(generator(patches))
            taken = free - context.memory[0]
            runs = budget.runs(min(generator.times(3)), _FEWEST, _MOST)
            meter = EnergyMeter([context.bus])
            latency = Latency.of(generator.times(runs))
            energy = meter.read()
            call = Latency.of(_calls(generator, patches[: generator.batch], budget))
            layers = _layers(generator) if budget.layers else ()
            memory = MemoryUse(generator.memory.bytes, taken)
            batch, device = generator.batch, generator.device
        room = min(context.memory[0] * 9 // 10, options.vram_limit or free)
        ceilings = (
            measure_ceilings(options.device, options.precision, room) if budget.layers else None
        )
    return Measured(
        device=device,
        batch=batch,
        voxels=prod(patch),
        flops=batch * flops(network.graph, patch),
        latency=latency,
        call=call,
        memory=memory,
        layers=layers,
        ceilings=ceilings,
        energy=energy if energy and energy.is_exact else None,
    )


def _calls(generator: CudaGenerator, patches: FloatArray, budget: Budget) -> list[float]:
    """Return the seconds of runs that begin and end in host memory."""
    times: list[float] = []
    end = perf_counter() + budget.seconds / 2
    while len(times) < _FEWEST_CALLS or (perf_counter() < end and len(times) < _MOST_CALLS):
        begin = perf_counter()
        generator(patches)
        times.append(perf_counter() - begin)
    return times


def _layers(generator: CudaGenerator) -> tuple[LayerTime, ...]:
    timed = [(step, us / 1e6) for step, us in generator.step_times(_LAYER_ROUNDS)]
    each = layer_flops(generator.graph, generator.patch)
    batch = {layer: generator.batch * count for layer, count in each.items()}
    return layer_times(timed, batch, generator.tactic)


_EDGES = ((8, 32, 32), (4, 32, 32))
"""Extents whose product is the edge of the square matrices; the first that fits is used."""

_COPIED, _CACHES = 1 << 30, 4
"""Most bytes of a copy; and how often it must fill the GPU's cache, so that it does not measure
that.
"""

_NOISE = 64 << 20
_REPEATS = 20
_SECONDS = 10.0


def measure_ceilings(index: int, precision: Precision, room: int) -> Ceilings | None:
    """Return the ceilings of a GPU with `room` bytes to measure in; None if that is too little."""
    with Context(index) as context, Stream() as stream:
        try:
            return Ceilings(
                _matrix_rate(context, stream, precision, room), _bandwidth(context, stream, room)
            )
        except (CudaError, DeviceMemoryError):
            return None


def _matrix_rate(context: Context, stream: Stream, precision: Precision, room: int) -> float:
    """Return FLOP/s of the fastest plan for a product of square matrices.

    A convolution of single voxels is one: its voxels are the rows, its channels the columns.
    """
    shapes = [_product(extents, precision) for extents in _EDGES]
    shape = next((shape for shape in shapes if _trial_bytes(shape) <= room), None)
    if shape is None:
        raise DeviceMemoryError("There is too little memory for a matrix product.")
    with ExitStack() as opened:
        library = opened.enter_context(Cudnn(stream))
        kernels = opened.enter_context(Kernels(precision, context.properties, None))
        gpu, settings = (
            OpenGpu(context, stream, library, kernels),
            SearchSettings("quick", _SECONDS),
        )
        tuner = Tuner(gpu, TuningCache(None, {}), room, settings)
        tactic = tuner.convolutions([shape], WORKSPACE_BYTES)[shape]
        size = _matrix_bytes(shape)
        buffer = opened.enter_context(DeviceBuffer(3 * size + WORKSPACE_BYTES))
        source, weight, target, workspace = (buffer.address + i * size for i in range(4))
        noise = np.random.default_rng(0).normal(size=size // NUMBER_BYTES[precision])
        for address in (source, weight):
            stream.upload_now(address, encoded(noise.astype(np.float32), precision))
        addresses = source, weight, target, workspace
        seconds = min(stream.times(lambda: tuner.run(shape, tactic, addresses), _REPEATS))
    return 2 * prod(shape.source_extents) * shape.source_channels**2 / seconds


def _product(extents: tuple[int, int, int], precision: Precision) -> ConvShape:
    edge, one, none = prod(extents), (1, 1, 1), (0, 0, 0)
    return ConvShape(1, extents, edge, extents, edge, one, one, none, none, precision)


def _trial_bytes(shape: ConvShape) -> int:
    return between_guards(convolution_blocks(shape, WORKSPACE_BYTES)).bytes


def _matrix_bytes(shape: ConvShape) -> int:
    return shape.source_channels**2 * NUMBER_BYTES[shape.precision]


def _bandwidth(context: Context, stream: Stream, room: int) -> float:
    """Return bytes per second, read and written, of copies within GPU memory."""
    size = min(_COPIED, room // 2 // 512 * 512)
    if size < _CACHES * context.properties.l2_bytes:
        raise DeviceMemoryError("There is too little memory for a copy.")
    with DeviceBuffer(2 * size) as buffer:
        first, second = buffer.address, buffer.address + size
        noise = np.random.default_rng(0).bytes(min(_NOISE, size))
        for address in range(first, first + size - len(noise) + 1, len(noise)):
            stream.upload_now(address, noise)
        seconds = min(stream.times(lambda: stream.copy(second, first, size), _REPEATS))
    return 2 * size / seconds
