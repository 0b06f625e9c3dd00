"""Compiled programs, kernel by kernel on the CPU, give what ONNX Runtime gives."""

import shutil

import numpy as np
import pytest
from msgspec import structs
from support.described_gpus import H200
from support.gpu_networks import (
    NORM_READ_TWICE,
    ODD_GRAPHS,
    ODD_PATCH,
    chain,
    layer_norm,
    random_network,
)
from support.program_on_cpu import run_program

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Pointwise
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.architectures import UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Add, Conv3d, InstanceNorm
from cuda_cyclegan.engine.options import Precision

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
LIMITS = {"fp16": 5e-3, "fp32": 1e-5}


def check(network: Network, layout: Layout) -> None:
    shape = layout.batch, network.graph.in_channels, *layout.patch
    patches = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    made = run_program(lower(network, layout, H200), patches, network.graph.out_channels)
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    limit = LIMITS[layout.precision] * np.linalg.norm(wanted)
    assert np.linalg.norm(made - wanted) <= limit


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_unusual_graphs(name: str, precision: Precision) -> None:
    layout = Layout(ODD_PATCH, 2, precision, split_fp16=precision == "fp32")
    check(random_network(ODD_GRAPHS[name], seed=1), layout)


def test_long_sums_to_few_channels_by_their_own_kernel() -> None:
    """Five splits, and a kernel of 5, which plans compute elsewhere."""
    layout = Layout(ODD_PATCH, 2, "fp16", matrix_kernels=True)
    check(random_network(ODD_GRAPHS["long sums to few channels"], seed=1), layout)


@pytest.mark.parametrize("precision", LIMITS)
def test_a_unet_between_cells(precision: Precision) -> None:
    network = random_network(build(UNetSpec(1, 1, width=32, levels=3)), seed=1)
    is_split = precision == "fp32"
    layout = Layout((8, 8, 8), 2, precision, matrix_kernels=not is_split, split_fp16=is_split)
    check(network, layout)


def test_a_norm_that_the_transposed_last_layer_reads_too() -> None:
    layout = Layout((8, 12, 16), 2, "fp16", matrix_kernels=True)
    check(random_network(NORM_READ_TWICE, seed=1), layout)


@pytest.mark.parametrize("width", [32, 160])
def test_a_norm_of_voxels_in_split_fp16(width: int) -> None:
    """Each thread has one vector, or several."""
    conv = Conv3d(width, width, (1, 1, 1), "weight")
    graph = chain(
        1,
        ("a", Conv3d(1, width, (1, 1, 1), "a.weight")),
        ("even", InstanceNorm(width)),
        ("b", structs.replace(conv, weight="b.weight")),
        *layer_norm("norm", "even", width),
        ("c", structs.replace(conv, weight="c.weight")),
        ("sum", Add(), ("c", "b")),
        ("leave", Conv3d(width, 1, (1, 1, 1), "leave.weight")),
    )
    network = random_network(graph, seed=1)
    layout = Layout((2, 3, 5), 2, "fp32", split_fp16=True)
    steps = lower(network, layout, H200).steps
    [step] = [step for step in steps if isinstance(step, Pointwise) and step.norm]
    assert step.source.tensor.scale
    check(network, layout)
