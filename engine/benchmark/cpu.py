"""Measures a network on the CPU: ONNX Runtime's times, those of layers from its own profiler,
and what the CPU does at most.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from ..cores import usable_cores
from ..network.flops import flops, layer_flops
from ..network.graph import INPUT, Network
from ..network.layers import FloatArray, Triple
from ..onnxruntime.conversion import OPSET, to_onnx
from ..onnxruntime.session import SessionGenerator, open_cpu_generator, session, session_options
from .measurement import Budget, Ceilings, Latency, LayerTime, Measured, MemoryUse

_FEWEST, _MOST = 3, 500
_PROFILED = 3
_KERNEL = "_kernel_time"
_MOVED = ("activation", "parameter", "output")

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
    with open_cpu_generator(network) as generator:
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


def _timed(generator: SessionGenerator, patches: FloatArray) -> float:
    begin = perf_counter()
    generator(patches)
    return perf_counter() - begin


def _layers(network: Network, patches: FloatArray, patch: Triple) -> Iterator[LayerTime]:
    """Time and bytes of each layer, the sum of its operators': a norm has many."""
    times: dict[str, list[float]] = defaultdict(list)
    seen: dict[str, _Event] = {}
    for event in _profile(network, patches):
        name = str(event["name"]).removesuffix(_KERNEL)
        times[name].append(float(event["dur"]) / 1e6)
        seen[name] = event["args"]
    layers = {node.name: node.layer for node in network.graph.nodes}
    operators: dict[str, list[str]] = defaultdict(list)
    for name in seen:
        operators[name if name in layers else name.rpartition(".")[0]].append(name)
    arithmetic = layer_flops(network.graph, patch)
    for layer, names in operators.items():
        last = seen[names[-1]]
        [shapes] = last["output_type_shape"][0].values()
        operator = last["op_name"] if len(names) == 1 else type(layers[layer]).__name__
        yield LayerTime(
            layer=layer,
            operation=f"{operator}, {'x'.join(map(str, shapes[1:]))}",
            plan=None,
            seconds=sum(median(times[name]) for name in names),
            flops=len(patches) * arithmetic.get(layer, 0),
            bytes=sum(int(seen[name][f"{part}_size"]) for name in names for part in _MOVED),
        )


def _profile(network: Network, patches: FloatArray) -> Iterator[_Event]:
    """What ONNX Runtime tells of each node in each of several runs."""
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(usable_cores())
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        opened = session(to_onnx(network, exact_norms=True, by_columns=True), options)
        for _ in range(_PROFILED):
            opened.run(None, {INPUT: patches})
        events: list[_Event] = json.loads(Path(opened.end_profiling()).read_text())
    for event in events:
        if event.get("cat") == "Node" and str(event["name"]).endswith(_KERNEL):
            yield event


_EDGE = 2048
_COPIED = 256 << 20
"""Bytes of a copy: more than the caches of most processors hold."""

_FEWEST_PRODUCTS, _SECONDS = 2, 0.3


def measure_ceilings(threads: int) -> Ceilings:
    """A product of square matrices by ONNX Runtime, and a copy by all threads."""
    return Ceilings(_matrix_rate(threads), _bandwidth(threads))


def _matrix_rate(threads: int) -> float:
    def matrix(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [_EDGE, _EDGE])

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        [matrix("a"), matrix("b")],
        [matrix("c")],
    )
    opset = helper.make_opsetid("", OPSET)
    opened = session(
        helper.make_model(graph, ir_version=8, opset_imports=[opset]), session_options(threads)
    )
    noise = np.random.default_rng(0)
    factors = {name: noise.normal(size=(_EDGE, _EDGE)).astype(np.float32) for name in "ab"}
    return 2 * _EDGE**3 / _fastest(lambda: opened.run(None, factors))


def _bandwidth(threads: int) -> float:
    source, target = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    edges = [_COPIED * part // threads for part in range(threads + 1)]
    parts = [slice(*pair) for pair in pairwise(edges)]

    def copy(part: slice) -> None:
        target[part] = source[part]

    with ThreadPoolExecutor(threads) as pool:
        return 2 * _COPIED / _fastest(lambda: list(pool.map(copy, parts)))


def _fastest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times: list[float] = []
    while len(times) < _FEWEST_PRODUCTS or sum(times) < _SECONDS:
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return min(times)
