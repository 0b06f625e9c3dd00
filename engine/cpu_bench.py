"""Measures a network on the CPU: ONNX Runtime's times, those of layers from its own profiler."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

from .cores import usable_cores
from .cpu import CpuGenerator, session, session_options
from .cpu_ceilings import measure_ceilings
from .graph import INPUT, FloatArray, Network, Triple
from .measured import Budget, Latency, LayerTime, Measured, MemoryUse
from .onnx import to_onnx
from .work import flops, layer_flops

_FEWEST, _MOST = 3, 500
_PROFILED = 3
_KERNEL = "_kernel_time"

_Event: TypeAlias = dict[str, Any]


def measure_on_cpu(
    network: Network,
    patches: FloatArray,
    budget: Budget,
    keep: Callable[[FloatArray], None],
    taken: Callable[[], int],
) -> Measured:
    """A network on patches [N, C, D, H, W].

    keep: given what became of the patches. taken: bytes of host memory that were needed since the
    caller began to watch. Raises PatchShapeError.
    """
    depth, height, width = patches.shape[2:]
    patch = depth, height, width
    network.graph.check_patch(patch)
    with CpuGenerator(network) as generator:
        keep(generator(patches))
        first = _timed(generator, patches)
        times = [_timed(generator, patches) for _ in range(budget.runs(first, _FEWEST, _MOST))]
        device = generator.device
    latency = Latency.of(times)
    return Measured(
        device=device,
        batch=len(patches),
        voxels=prod(patch),
        flops=len(patches) * flops(network.graph, patch),
        latency=latency,
        call=latency,
        memory=MemoryUse(None, taken()),
        layers=tuple(_layers(network, patches, patch)) if budget.layers else (),
        ceilings=measure_ceilings(usable_cores()) if budget.layers else None,
    )


def _timed(generator: CpuGenerator, patches: FloatArray) -> float:
    begin = perf_counter()
    generator(patches)
    return perf_counter() - begin


def _layers(network: Network, patches: FloatArray, patch: Triple) -> Iterator[LayerTime]:
    times: dict[str, list[float]] = defaultdict(list)
    seen: dict[str, _Event] = {}
    for event in _profile(network, patches):
        name = str(event["name"]).removesuffix(_KERNEL)
        times[name].append(float(event["dur"]) / 1e6)
        seen[name] = event["args"]
    arithmetic = layer_flops(network.graph, patch)
    for name, found in seen.items():
        [shapes] = found["output_type_shape"][0].values()
        yield LayerTime(
            layer=name,
            operation=f"{found['op_name']}, {'x'.join(map(str, shapes[1:]))}",
            plan=None,
            seconds=median(times[name]),
            flops=len(patches) * arithmetic.get(name, 0),
            bytes=sum(int(found[f"{part}_size"]) for part in ("activation", "parameter", "output")),
        )


def _profile(network: Network, patches: FloatArray) -> Iterator[_Event]:
    """What ONNX Runtime tells of each node in each of several runs."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(usable_cores())
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        opened = session(to_onnx(network), options)
        for _ in range(_PROFILED):
            opened.run(None, {INPUT: patches})
        events: list[_Event] = json.loads(Path(opened.end_profiling()).read_text())
    for event in events:
        if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL):
            yield event
