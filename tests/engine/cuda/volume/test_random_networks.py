"""Random networks with a form for volumes: their blocks read each other's borders, whatever the
layers.
"""

import shutil
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.gpu_networks import OFF_GRID, TRANSPOSED, chain, random_network, transposed_graph
from support.gpu_on_cpu.convolutions import convolved_exactly
from support.random_graphs import random_graph
from support.volume_on_cpu import grid_for, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.blocks import BlockGrid, Margins
from cuda_cyclegan.engine.compiler.program.block_maps import margins
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import (
    Conv3d,
    InstanceNorm,
    Pad,
    Pool,
    Relu,
    Triple,
    Upsample,
)
from cuda_cyclegan.engine.whole_volume import volume_refusal

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]
EXTENTS: Triple = (12, 8, 8)
BLOCK: Triple = (8, 4, 8)
OFF_GRID_SEEDS = (26, 76, 119, 216)
ALWAYS_DIVIDED = {
    "pool of a padded map",
    "pool of a map padded at one end, halved",
    "pool with padding, N / 2 + 1",
    "reflected at one end, by other blocks",
    "border wider than a halo, of a map read twice",
    "convolution without padding, padded",
}
"""Graphs of OFF_GRID whose program is the same if low resolutions may be undivided."""
_LIMIT = 1e-3
"""Rounding stays a tenth of it, but for norms of what is nearly constant."""


def drawn(random: Random, *, off_grid: bool = False) -> Graph | None:
    """A network that has a form for volumes, if these random numbers make one."""
    graph = random_graph(random, EXTENTS, off_grid=off_grid)
    return None if graph is None or volume_refusal(graph) else graph


def check(graph: Graph, *, undivided: int, slab_bytes: int, most: float = _LIMIT) -> None:
    """undivided, slab_bytes: see `volume_on_cpu`. most: error allowed."""
    network = random_network(graph, seed=1)
    noise = np.random.default_rng(2).uniform(-1, 1, (graph.in_channels, *EXTENTS))
    volume = noise.astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        [wanted] = generator(volume[None])
    made = volume_on_cpu(
        network,
        grid_for(graph, EXTENTS, BLOCK),
        "fp32",
        undivided=undivided,
        slab_bytes=slab_bytes,
    )
    by_gpu = made(volume)
    assert made(volume, memory=made.memory_away()).tobytes() == by_gpu.tobytes()
    for found in (by_gpu, made(volume, memory=made.memory_recomputed())):
        assert np.linalg.norm(found - wanted) <= most * np.linalg.norm(wanted)


@pytest.mark.parametrize(("number", "seed"), [*enumerate((12, 15, 20, 21, 29, 33, 37, 38))])
def test_some_networks(number: int, seed: int) -> None:
    """Small ones that have many kinds of layers between them."""
    graph = drawn(Random(seed))
    assert graph is not None
    check(
        graph,
        undivided=1 << 30 if number & 4 else 0,
        slab_bytes=1 << 12 if number in (0, 3, 5, 6) else 1 << 27,
    )


@pytest.mark.parametrize(("number", "seed"), [*enumerate(OFF_GRID_SEEDS)])
def test_some_networks_off_the_grid(number: int, seed: int) -> None:
    """Small ones whose maps end before and after the grid of their blocks."""
    graph = drawn(Random(seed), off_grid=True)
    assert graph is not None
    assert margins(graph) != Margins()
    check(
        graph, undivided=1 << 30 if number & 1 else 0, slab_bytes=1 << 12 if number & 2 else 1 << 27
    )


@pytest.mark.parametrize("name", OFF_GRID)
def test_each_kind_of_map_off_the_grid(name: str) -> None:
    check(OFF_GRID[name], undivided=0, slab_bytes=1 << 27, most=1e-5)


@pytest.mark.parametrize("name", sorted(OFF_GRID.keys() - ALWAYS_DIVIDED))
def test_each_kind_of_map_off_the_grid_beside_undivided_ones(name: str) -> None:
    check(OFF_GRID[name], undivided=1 << 30, slab_bytes=1 << 27, most=1e-5)


@pytest.mark.parametrize("name", sorted(ALWAYS_DIVIDED))
def test_maps_are_divided_if_none_has_a_low_resolution(name: str) -> None:
    grid, network = grid_for(OFF_GRID[name], EXTENTS, BLOCK), random_network(OFF_GRID[name], 1)
    divided, asked = (
        volume_on_cpu(network, grid, "fp32", undivided=most).program.lowered
        for most in (0, 1 << 30)
    )
    assert asked.undivided is None
    assert asked.steps == divided.steps


def test_norms_of_maps_that_end_before_blocks_that_fill_the_volume() -> None:
    """No norm of an undivided map is one launch, which would measure all of its memory."""
    one, two = (1, 1, 1), (2, 2, 2)
    convs = [Conv3d(8, 8, (3, 3, 3), f"{name}.weight", None, padding=one) for name in "bcd"]
    inner = [
        layer
        for name, conv in zip("bcd", convs, strict=True)
        for layer in ((name, conv), (f"{name} norm", InstanceNorm(8)), (f"{name} relu", Relu()))
    ]
    graph = chain(
        1,
        ("a", Conv3d(1, 8, (3, 3, 3), "a.weight", None, padding=one)),
        ("norm", InstanceNorm(8)),
        ("half", Pool("mean", (3, 3, 3), two)),
        *inner,
        ("near", Upsample("nearest", two)),
        ("pad", Pad("replicate", one, one)),
        ("leave", Conv3d(8, 1, (3, 3, 3), "l.weight", "l.bias", padding=one)),
    )
    network, grid = random_network(graph, 1), BlockGrid((12, 8, 8), (6, 4, 8))
    volume = np.random.default_rng(2).uniform(-1, 1, (1, *grid.extents)).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        [wanted] = generator(volume[None])
    made = volume_on_cpu(network, grid, "fp32", undivided=1 << 30)
    assert made.program.lowered.undivided is not None
    assert np.linalg.norm(made(volume) - wanted) <= 1e-5 * np.linalg.norm(wanted)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([0, 1 << 30]),
    st.sampled_from([1 << 12, 1 << 27]),
)
def test_any_network(random: Random, off_grid: bool, undivided: int, slab_bytes: int) -> None:
    graph = drawn(random, off_grid=off_grid)
    assume(graph is not None)
    assert graph is not None
    check(
        graph,
        undivided=undivided,
        slab_bytes=slab_bytes,
    )


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.booleans())
def test_any_network_on_matrix_units_gives_the_same_bytes_wherever_maps_are(
    random: Random, wgmma: bool
) -> None:
    graph = random_graph(random, EXTENTS, channels=(1, 3, 32, 64), off_grid=wgmma)
    assume(graph is not None and volume_refusal(graph) is None)
    assert graph is not None
    noise = np.random.default_rng(2).uniform(-1, 1, (graph.in_channels, *EXTENTS))
    volume = noise.astype(np.float32)
    made = volume_on_cpu(
        random_network(graph, seed=1),
        grid_for(graph, EXTENTS, BLOCK),
        "fp16",
        matrix_kernels=True,
        wgmma=wgmma,
        convolve=convolved_exactly,
    )
    wanted = made(volume)
    assume(np.isfinite(wanted).all())  # else a value left the range of fp16
    for memory in (made.memory_away(), made.memory_recomputed()):
        assert made(volume, memory=memory).tobytes() == wanted.tobytes()


def check_transposed(graph: Graph) -> None:
    """Check a transposed convolution in blocks, in all memories."""
    extents, block = (12, 6, 12), (6, 6, 6)
    assert volume_refusal(graph) is None
    network = random_network(graph, seed=1)
    volume = np.random.default_rng(2).uniform(-1, 1, (1, *extents)).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        [wanted] = generator(volume[None])
    for undivided in (0, 1 << 30):
        made = volume_on_cpu(network, BlockGrid(extents, block), "fp32", undivided=undivided)
        for memory in (made.memory(), made.memory_recomputed(), made.memory_away()):
            difference = np.linalg.norm(made(volume, memory=memory) - wanted)
            assert difference <= 1e-5 * np.linalg.norm(wanted)


@pytest.mark.parametrize(("kernel", "stride", "dilation", "groups"), TRANSPOSED)
def test_some_transposed_convolutions(
    kernel: Triple, stride: Triple, dilation: Triple, groups: int
) -> None:
    graph = transposed_graph(kernel, stride, dilation, groups)
    assert graph is not None
    check_transposed(graph)


def _triples(most: int) -> st.SearchStrategy[Triple]:
    return st.tuples(*(st.integers(1, most) for _ in range(3)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(_triples(5), _triples(3), _triples(2), st.sampled_from([1, 2]))
def test_any_transposed_convolution(
    kernel: Triple, stride: Triple, dilation: Triple, groups: int
) -> None:
    graph = transposed_graph(kernel, stride, dilation, groups)
    assume(graph is not None)
    assert graph is not None
    check_transposed(graph)
