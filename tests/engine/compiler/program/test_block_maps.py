"""The graph of one block of a volume: halos of convolutions, and maps that end off the grid."""

import pytest
from support.gpu_networks import OFF_GRID, chain, random_network

from cuda_cyclegan.engine.compiler.blocks import Margins, grid_of
from cuda_cyclegan.engine.compiler.program.block_maps import BlockMaps, block_maps, margins
from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph
from cuda_cyclegan.engine.network.layers import (
    ZEROS,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Layer,
    Pad,
    Pool,
    Relu,
    Triple,
    Upsample,
)
from cuda_cyclegan.engine.network.map_extents import MapExtents, map_extents

ONE: Triple = (1, 1, 1)


def maps_of(graph: Graph, block: Triple = (8, 8, 8)) -> BlockMaps:
    return block_maps(random_network(graph, 1), block)


def layer(maps: BlockMaps, name: str) -> Layer:
    [found] = [node.layer for node in maps.network.graph.nodes if node.name == name]
    return found


def test_a_padded_convolution_reads_a_halo() -> None:
    maps = maps_of(chain(1, ("a", Conv3d(1, 2, (3, 3, 3), "a.weight", padding=ONE))))
    assert layer(maps, "a.halo") == Pad("zero", ONE, ONE)
    assert maps.shapes["a.halo"].extents == (10, 10, 10)
    assert maps.shapes["a"].extents == (8, 8, 8)
    assert not any(map(any, maps.excess.values()))


def test_a_convolution_without_padding_reads_the_next_block() -> None:
    conv, back = (Conv3d(1, 1, (3, 3, 3), f"{name}.weight") for name in "ab")
    pad = Pad("reflect", (2, 2, 2), (2, 2, 2))
    maps = maps_of(chain(1, ("a", conv), ("pad", pad), ("b", back)))
    assert layer(maps, "a.halo") == Pad("zero", ZEROS, (2, 2, 2))
    assert maps.shapes["a"].extents == maps.shapes["b"].extents == (8, 8, 8)
    assert maps.excess["a"] == (-2, -2, -2)
    assert layer(maps, "pad") == Pad("reflect", (2, 2, 2), ZEROS)  # and 2 voxels of other blocks
    assert maps.shapes["pad"].extents == (10, 10, 10)
    assert maps.excess["pad"] == maps.excess["a"]  # of what lies within the border
    assert maps.excess["b"] == ZEROS


def test_a_padding_for_other_layers_moves_the_map() -> None:
    pool = Pool("largest", (3, 3, 3), ONE)
    maps = maps_of(chain(1, ("pad", Pad("replicate", (1, 0, 2), (1, 2, 0))), ("pool", pool)))
    assert layer(maps, "pad") == Pad("replicate", (1, 0, 2), (-1, 0, -2))
    assert maps.shapes["pad"].extents == (8, 8, 8)
    assert maps.excess == {INPUT: ZEROS, "pad": (2, 2, 2), "pool": ZEROS}


def test_a_padding_for_convolutions_that_need_different_halos_moves_the_map() -> None:
    wide, narrow = Conv3d(1, 1, (5, 5, 5), "w.weight"), Conv3d(1, 1, (3, 3, 3), "n.weight")
    graph = chain(
        1,
        ("pad", Pad("reflect", (2, 2, 2), (2, 2, 2))),
        ("wide", wide),
        ("narrow", narrow, ("pad",)),
        ("cut", Crop(ONE, ONE)),
    )
    maps = maps_of(graph)
    assert layer(maps, "pad") == Pad("reflect", (2, 2, 2), (-2, -2, -2))
    assert layer(maps, "wide.halo") == Pad("zero", ZEROS, (4, 4, 4))
    assert layer(maps, "cut") == Crop(ONE, (-1, -1, -1))
    assert maps.shapes["narrow"].extents == (8, 8, 8)


def test_a_padding_at_the_end_alone_keeps_its_mode() -> None:
    """A convolution of single voxels needs no halo, but the volume is continued."""
    pad = Pad("replicate", ZEROS, ONE)
    cut = Crop(ZEROS, ONE)
    maps = maps_of(chain(1, ("pad", pad), ("a", Conv3d(1, 1, ONE, "a.weight")), ("cut", cut)))
    assert layer(maps, "pad") == Pad("replicate", ZEROS, ZEROS)
    assert maps.excess["pad"] == maps.excess["a"] == ONE


def test_the_result_may_be_padded() -> None:
    conv = Conv3d(1, 1, (3, 3, 3), "a.weight")
    maps = maps_of(chain(1, ("a", conv), ("relu", Relu()), ("pad", Pad("zero", ONE, ONE))))
    assert layer(maps, "pad") == Pad("zero", ONE, (-1, -1, -1))
    assert maps.excess["pad"] == ZEROS


def test_maps_of_a_block_lie_on_the_grid() -> None:
    for graph in OFF_GRID.values():
        maps = maps_of(graph, (12, 16, 20))
        for node in graph.nodes:
            if not isinstance(node.layer, Pad):
                extents = maps.shapes[node.name].extents
                assert extents in ((12, 16, 20), (6, 8, 10)), node.name
        assert any(map(any, maps.excess.values()))


DOUBLED = chain(
    1,
    ("half", Pool("mean", (2, 2, 2), (2, 2, 2))),
    ("up", ConvTranspose3d(1, 1, (3, 3, 3), "up.weight", None, (2, 2, 2))),
    ("cut", Crop((1, 0, 1), (0, 1, 0))),
)


def test_margins_count_voxels_of_the_volume() -> None:
    assert margins(DOUBLED) == Margins(beyond=(1, 1, 1))
    halves = Pool("mean", (3, 2, 4), (2, 2, 2), (0, 1, 0))
    cut = chain(
        1,
        ("half", Pool("mean", (2, 2, 2), (2, 2, 2))),
        ("quarter", halves),
        ("up", ConvTranspose3d(1, 1, (8, 4, 8), "up.weight", None, (4, 4, 4))),
        ("ends", Crop((0, 2, 0), (0, 2, 0))),
    )
    assert map_extents(cut)["quarter"].excess == (-1, 1, -1)
    assert margins(cut) == Margins(beyond=(0, 4, 0), short=(4, 0, 4))


def test_margins_are_whole_voxels_of_the_volume() -> None:
    fine = chain(
        1,
        ("near", Upsample("nearest", (2, 2, 2))),
        ("cut", Crop(ZEROS, (1, 1, 1))),
        ("back", Pool("mean", (1, 1, 1), (2, 2, 2))),
    )
    assert map_extents(fine)["cut"] == MapExtents((2, 2, 2), (-1, -1, -1))
    assert margins(fine) == Margins(short=(1, 1, 1))


def test_margins_are_those_of_maps_in_every_block() -> None:
    """A block has the same margins whatever its extents."""
    for graph in OFF_GRID.values():
        beyond, short = margins(graph).beyond, margins(graph).short
        for block in ((8, 8, 8), (128, 64, 32)):
            of_full = [
                excess
                for name, excess in maps_of(graph, block).excess.items()
                if name in map_extents(graph) and map_extents(graph)[name].each == graph.stride
            ]
            assert all(
                -less <= voxels <= more
                for excess in of_full
                for voxels, more, less in zip(excess, beyond, short, strict=True)
            )


@pytest.mark.parametrize("spec", [ResNetSpec(1, 1, 32, 9), UNetSpec(1, 1, 32, 5)])
def test_the_borders_of_generators_are_halos_and_leave_blocks_as_they_are(spec: Spec) -> None:
    graph = build(spec)
    assert margins(graph) == Margins()
    for extents in ((128, 128, 128), (192, 256, 256)):
        grid = grid_of(extents, graph.stride, margins(graph))
        assert grid == grid_of(extents, graph.stride)
