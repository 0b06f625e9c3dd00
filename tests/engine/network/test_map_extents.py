"""Extents of maps in volumes of any size: a grid that grows with the volume, and a rest."""

from random import Random

import pytest
from support.gpu_networks import ODD_GRAPHS, OFF_GRID, chain
from support.random_graphs import random_graph

from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.network.graph import INPUT, Graph
from cuda_cyclegan.engine.network.layers import (
    ZEROS,
    ConvTranspose3d,
    Crop,
    Pool,
    added,
    triple,
)
from cuda_cyclegan.engine.network.map_extents import MapExtents, map_extents

UP = ConvTranspose3d(1, 1, (3, 3, 3), "up.weight", None, (2, 2, 2))
DOUBLED = chain(
    1,
    ("half", Pool("mean", (2, 2, 2), (2, 2, 2))),
    ("up", UP),
    ("cut", Crop((1, 0, 1), (0, 1, 0))),
)


def test_a_transposed_convolution_may_make_one_voxel_more_than_its_grid() -> None:
    found = map_extents(DOUBLED)
    assert found[INPUT] == found["cut"] == MapExtents((2, 2, 2), ZEROS)
    assert found["half"] == MapExtents((1, 1, 1), ZEROS)
    assert found["up"] == MapExtents((2, 2, 2), (1, 1, 1))
    assert found["up"].on_grid((3, 4, 5)) == (6, 8, 10)


@pytest.mark.parametrize("name", [*ODD_GRAPHS, *OFF_GRID])
def test_extents_are_those_of_any_volume(name: str) -> None:
    check((ODD_GRAPHS | OFF_GRID)[name])


def test_extents_of_random_networks_are_those_of_any_volume() -> None:
    graphs = (random_graph(Random(seed), (12, 8, 8), off_grid=True) for seed in range(40))
    found = [graph for graph in graphs if graph is not None]
    assert sum(any(any(one.excess) for one in map_extents(g).values()) for g in found) > 10
    for graph in found:
        check(graph)


def check(graph: Graph) -> None:
    strides = 33, 36, 41
    volume = triple(n * step for n, step in zip(strides, graph.stride, strict=True))
    shapes, found = graph.shapes(volume), map_extents(graph)
    assert {name: shape.extents for name, shape in shapes.items()} == {
        name: added(one.on_grid(strides), one.excess) for name, one in found.items()
    }


def test_a_graph_that_does_not_keep_extents_has_none() -> None:
    with pytest.raises(PatchShapeError, match="only networks that keep the extents"):
        map_extents(chain(1, ("up", UP)))
