"""Random networks: their steps agree with ONNX Runtime, whatever the layers, in all forms."""

from random import Random
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.gpu_networks import random_network
from support.random_graphs import random_graph
from support.step_interpreter import interpret
from support.tiers import examples

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision

PATCH: Triple = (8, 4, 12)
FORMS: list[tuple[Precision, dict[str, Any]]] = [
    ("fp16", {}),
    ("fp16", {"matrix_kernels": True, "wgmma": True}),
    ("fp16", {"matrix_kernels": True, "slab_bytes": 1 << 14}),
    ("fp32", {"split_fp16": True}),
    ("tf32", {"split_fp16": True}),
]
_LIMIT = 1e-3
"""Rounding stays a tenth of it, but for norms of what is nearly constant."""


@settings(max_examples=examples(150))
@given(st.randoms(use_true_random=False), st.sampled_from(FORMS), st.integers(1, 2))
def test_any_network(random: Random, form: tuple[Precision, dict[str, Any]], batch: int) -> None:
    graph = random_graph(random, PATCH)
    assume(graph is not None)
    assert graph is not None
    network = random_network(graph, seed=1)
    noise = np.random.default_rng(2).uniform(-1, 1, (batch, graph.in_channels, *PATCH))
    patches = noise.astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    precision, choices = form
    lowered = lower(network, Layout(PATCH, batch, precision, **choices), H200)
    made = interpret(lowered, patches, graph.out_channels)
    assert np.linalg.norm(made - wanted) <= _LIMIT * np.linalg.norm(wanted)
