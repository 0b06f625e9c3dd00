"""Measures a network on a card."""

from collections.abc import Callable
from math import prod
from time import perf_counter

from .cuda import CudaGenerator, CudaOptions
from .cuda_ceilings import measure_ceilings
from .cuda_driver import Context
from .graph import FloatArray, Network
from .layer_times import layer_times
from .measured import Budget, Latency, LayerTime, Measured, MemoryUse
from .work import flops, layer_flops

_FEWEST, _MOST = 20, 2000
_FEWEST_CALLS, _MOST_CALLS = 5, 200
_LAYER_ROUNDS = 5


def measure_on_card(
    network: Network,
    options: CudaOptions,
    patches: FloatArray,
    budget: Budget,
    keep: Callable[[FloatArray], None],
) -> Measured:
    """A network on patches [N, C, D, H, W], timed on the card itself and from the host.

    keep: given what became of the patches. Raises DeviceMemoryError, PatchShapeError or CudaError.
    """
    with Context(options.device) as context:
        free, _ = context.memory
        with CudaGenerator(network, options) as generator:
            keep(generator(patches))
            taken = free - context.memory[0]
            runs = budget.runs(min(generator.times(3)), _FEWEST, _MOST)
            latency = Latency.of(generator.times(runs))
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
        voxels=prod(options.patch),
        flops=batch * flops(network.graph, options.patch),
        latency=latency,
        call=call,
        memory=memory,
        layers=layers,
        ceilings=ceilings,
    )


def _calls(generator: CudaGenerator, patches: FloatArray, budget: Budget) -> list[float]:
    """Seconds of runs that begin and end in host memory."""
    times: list[float] = []
    end = perf_counter() + budget.seconds / 2
    while len(times) < _FEWEST_CALLS or (perf_counter() < end and len(times) < _MOST_CALLS):
        begin = perf_counter()
        generator(patches)
        times.append(perf_counter() - begin)
    return times


def _layers(generator: CudaGenerator) -> tuple[LayerTime, ...]:
    timed = [(step, us / 1e6) for step, us in generator.step_times(_LAYER_ROUNDS)]
    each = layer_flops(generator.graph, generator.options.patch)
    batch = {layer: generator.batch * count for layer, count in each.items()}
    return layer_times(timed, batch, generator.algorithm)
