"""Passes that recompute maps, of any network: they make whatever they read."""

from collections.abc import Iterable, Iterator
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.network_features import random_spec
from support.random_graphs import random_graph
from support.tiers import examples
from support.zero_weights import zero_network

from cuda_cyclegan.engine.compiler.blocks import grid_of
from cuda_cyclegan.engine.compiler.tensors import Tensor
from cuda_cyclegan.engine.compiler.volume.passes import Pass, passes_of
from cuda_cyclegan.engine.compiler.volume.volume_lowering import lowered_blocks
from cuda_cyclegan.engine.compiler.volume.volume_memory import VolumeRequest, _choices
from cuda_cyclegan.engine.network.architectures import build
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.whole_volume import padded_extents, volume_refusal

EXTENTS = 17, 33, 64, 70, 130, 200
WIDTHS = 8, 16, 24, 32, 64, 128


def a_graph(random: Random) -> Graph | None:
    """Return a graph of the family, or of layers in any order; None if the random one has no form
    for volumes.
    """
    if random.random() < 0.2:
        graph = build(random_spec(random, WIDTHS, blocks=(0, 1, 2)))
    else:
        graph = random_graph(
            random, (32, 16, 24), numbers=30_000_000, weights=3_000_000, channels=(1, 3, *WIDTHS)
        )
    return None if graph is None or volume_refusal(graph) else graph


def not_made(passes: Iterable[Pass]) -> Iterator[str]:
    """Tensors that a step reads before any has written them."""
    written: set[str] = set()
    for one in passes:
        for step in one.steps:
            read = {item.name for item in step.flow.reads if isinstance(item, Tensor)}
            yield from read - written
            written |= step.flow.written_names


@settings(max_examples=examples(200))
@given(st.integers(0, 10**6), st.sampled_from(["fp16", "fp16", "fp32"]))
@example(237, "fp16")
@example(361, "fp16")
@example(632, "fp16")
def test_values_are_written_before_they_are_read(seed: int, precision: Precision) -> None:
    random = Random(seed)
    graph = a_graph(random)
    if graph is None:
        return
    d, h, w = (random.choice(EXTENTS) for _ in range(3))
    grid = grid_of(padded_extents(graph, (d, h, w)), graph.stride)
    lowered = lowered_blocks(zero_network(graph), grid, precision, H200, frozenset())
    passes = passes_of(lowered)
    wanted = VolumeRequest(lowered, passes, grid, (graph.in_channels, 1), (1 << 18, 1 << 19))
    assert not list(not_made(passes))
    for choice in _choices(wanted):
        assert not list(not_made(choice.wanted.passes))
