"""Measure a network on the CPU: its times, those of its layers, and the CPU's ceilings."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..cores import usable_cores
from ..cpu.onnx_model import OPSET
from ..cpu.openvino import OpenVino, open_openvino_generator
from ..cpu.openvino_support import is_installed
from ..cpu.session import session, session_options
from ..generator import PatchGenerator
from ..model.reference import relative_error
from ..network.graph import Network, TensorShape, times, weight_shapes
from ..network.graph_analysis import flops, layer_flops
from ..network.layers import FloatArray, Triple
from ..options import Precision
from .measurement import Budget, Ceilings, Latency, LayerTime, Measured, MemoryUse

_FEWEST, _MOST = 3, 500
_PROFILED = 3
_LEAST_SECONDS = 1e-6
"""Replacement of shorter times, which OpenVINO reports as none."""


def measure_on_cpu(
    network: Network,
    opening: AbstractContextManager[PatchGenerator],
    precision: Precision,
    patches: FloatArray,
    budget: Budget,
    keep: Callable[[FloatArray], None],
    taken: Callable[[], int],
) -> Measured:
    """Measure a network on patches [N, C, D, H, W].

    opening: of the network on the CPU in a precision. keep: called with the translated patches.
    taken: bytes of host memory used since the caller's first reading. Layers are measured if
    OpenVINO is installed. Raises PatchShapeError.
    """
    depth, height, width = patches.shape[2:]
    patch = depth, height, width
    network.graph.check_patch(patch)
    with opening as generator:
        output = generator(patches)
        keep(output)
        first = _timed(generator, patches)
        spent = [_timed(generator, patches) for _ in range(budget.runs(first, _FEWEST, _MOST))]
        device = generator.device
    latency = Latency.of(spent)
    has_layers = budget.layers and is_installed()
    return Measured(
        device=device,
        batch=len(patches),
        voxels=prod(patch),
        flops=len(patches) * flops(network.graph, patch),
        latency=latency,
        call=latency,
        memory=MemoryUse(None, taken()),
        error=_error(network, patches[:1], output[:1]) if precision == "bf16" else None,
        layers=tuple(_layers(network, precision, patches, patch)) if has_layers else (),
        ceilings=measure_ceilings(usable_cores(), precision) if budget.layers else None,
    )


def _error(network: Network, patch: FloatArray, output: FloatArray) -> float:
    with open_openvino_generator(network, "fp32") as generator:
        return relative_error(output, generator(patch))


def _timed(generator: PatchGenerator, patches: FloatArray) -> float:
    begin = perf_counter()
    generator(patches)
    return perf_counter() - begin


def _layers(
    network: Network, precision: Precision, patches: FloatArray, patch: Triple
) -> Iterator[LayerTime]:
    """Return the time of each layer in OpenVINO, summed over its operators: a norm has many.

    Layers fused into one operator count as the layer with most arithmetic, or the last one.
    """
    nodes = {node.name: node for node in network.graph.nodes}
    shapes, arithmetic = network.graph.shapes(patch), layer_flops(network.graph, patch)
    seconds: dict[str, float] = defaultdict(float)
    with open_openvino_generator(network, precision, profiled=True) as generator:
        for _ in range(_PROFILED):
            generator(patches)
        layer = network.graph.nodes[0].name
        for operator in generator.operators():
            parts = [name.partition("/")[0] for name in operator.names]  # x/WithoutBiases
            owners = [part if part in nodes else part.rpartition(".")[0] for part in parts]
            known = [owner for owner in reversed(owners) if owner in nodes]
            layer = max(known or [layer], key=lambda owner: arithmetic.get(owner, 0))
            seconds[layer] += operator.seconds
    for name, spent in seconds.items():
        shape = shapes[name]
        read = sum(_bytes(shapes[source]) for source in nodes[name].inputs)
        stored = sum(4 * prod(extents) for _, extents in weight_shapes(nodes[name].layer))
        yield LayerTime(
            layer=name,
            operation=f"{type(nodes[name].layer).__name__}, "
            f"{times((shape.channels, *shape.extents))}",
            plan=None,
            seconds=max(spent, _LEAST_SECONDS),
            flops=len(patches) * arithmetic.get(name, 0),
            bytes=len(patches) * (read + _bytes(shape)) + stored,
        )


def _bytes(shape: TensorShape) -> int:
    return 4 * shape.channels * prod(shape.extents)


_EDGE = 2048
_COPIED = 256 << 20
"""Bytes of a copy: more than the caches of most processors hold."""

_FEWEST_PRODUCTS, _SECONDS = 2, 0.3


def measure_ceilings(threads: int, precision: Precision) -> Ceilings:
    """Measure a product of square matrices in the runtime of the patches, and a copy by all
    threads.

    In bf16 the first matrix is converted from fp32, as in the network.
    """
    return Ceilings(_matrix_rate(threads, precision), _bandwidth(threads))


def _matrix_rate(threads: int, precision: Precision) -> float:
    def matrix(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [_EDGE, _EDGE])

    noise = np.random.default_rng(0)
    factor, weights = (noise.normal(size=(_EDGE, _EDGE)).astype(np.float32) for _ in range(2))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"])],
        "product",
        [matrix("a")],
        [matrix("c")],
        [numpy_helper.from_array(weights, "b")],
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, ir_version=8, opset_imports=[opset])
    run: Callable[[], object]
    if is_installed():
        compiled = OpenVino(precision, threads).compiled(model, {"a": factor.shape})
        run = partial(compiled, {"a": factor})
    else:
        run = partial(session(model, session_options(threads)).run, None, {"a": factor})
    return 2 * _EDGE**3 / _fastest(run)


def _bandwidth(threads: int) -> float:
    source, target = np.ones(_COPIED, np.uint8), np.zeros(_COPIED, np.uint8)
    edges = [_COPIED * part // threads for part in range(threads + 1)]
    parts = [slice(*pair) for pair in pairwise(edges)]

    def copy(part: slice) -> None:
        target[part] = source[part]

    with ThreadPoolExecutor(threads) as pool:
        return 2 * _COPIED / _fastest(lambda: list(pool.map(copy, parts)))


def _fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several runs."""
    times: list[float] = []
    while len(times) < _FEWEST_PRODUCTS or sum(times) < _SECONDS:
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return min(times)
