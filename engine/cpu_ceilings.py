"""What the CPU does at most, measured with as many threads as the network has."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from .cpu import session, session_options
from .measured import Ceilings
from .onnx import OPSET

_EDGE = 2048
_COPIED = 256 << 20
"""Bytes of a copy: more than the caches of most processors hold."""

_FEWEST, _SECONDS = 2, 0.3


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
    while len(times) < _FEWEST or sum(times) < _SECONDS:
        begin = perf_counter()
        run()
        times.append(perf_counter() - begin)
    return min(times)
