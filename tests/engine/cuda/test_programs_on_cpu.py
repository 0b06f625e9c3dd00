"""Compiled programs, kernel by kernel on the CPU, give what ONNX Runtime gives."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.described_cards import H200
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, random_network
from support.program_on_cpu import run_program

from cuda_cyclegan.engine.compiler.lowering.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Layout
from cuda_cyclegan.engine.network.architectures import UNetSpec, build
from cuda_cyclegan.engine.onnxruntime.session import open_cpu_generator
from cuda_cyclegan.engine.options import Precision

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
LIMITS = {"fp16": 5e-3, "fp32": 1e-5}


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_unusual_graphs(folder: Path, name: str, precision: Precision) -> None:
    network = random_network(ODD_GRAPHS[name], seed=1)
    graph, batch = network.graph, 2
    shape = batch, graph.in_channels, *ODD_PATCH
    patches = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    layout = Layout(ODD_PATCH, batch, precision, split_fp16=precision == "fp32")
    lowered = lower(network, layout, H200)
    made = run_program(lowered, patches, graph.out_channels, folder)
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    assert np.linalg.norm(made - wanted) <= LIMITS[precision] * np.linalg.norm(wanted)


@pytest.mark.parametrize("precision", LIMITS)
def test_a_unet_between_cells(folder: Path, precision: Precision) -> None:
    network, patch = random_network(build(UNetSpec(1, 1, width=32, levels=3)), seed=1), (8, 8, 8)
    patches = np.random.default_rng(2).uniform(-1, 1, (2, 1, *patch)).astype(np.float32)
    is_split = precision == "fp32"
    layout = Layout(patch, 2, precision, matrix_kernels=not is_split, split_fp16=is_split)
    made = run_program(lower(network, layout, H200), patches, 1, folder)
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    assert np.linalg.norm(made - wanted) <= LIMITS[precision] * np.linalg.norm(wanted)
