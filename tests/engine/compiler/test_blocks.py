"""Blocks of a volume: they cover it, few sizes serve all volumes, and runs take each once."""

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.compiler.blocks import BlockGrid, Margins, grid_of
from cuda_cyclegan.engine.network.layers import Triple

strides = st.tuples(*[st.sampled_from([1, 2, 3, 4, 8, 16, 32, 256])] * 3)
sizes = st.tuples(*[st.integers(1, 1200)] * 3)


def padded(extents: Triple, stride: Triple) -> Triple:
    d, h, w = (-(-extent // step) * step for extent, step in zip(extents, stride, strict=True))
    return d, h, w


@given(sizes, strides)
def test_blocks_cover_a_volume_and_not_much_more(extents: Triple, stride: Triple) -> None:
    grid = grid_of(padded(extents, stride), stride)
    axes = zip(grid.extents, grid.block, grid.counts, stride, strict=True)
    for extent, block, count, step in axes:
        assert block % step == 0
        assert block <= max(128, step * 16)
        assert (count - 1) * block < extent <= count * block
        if extent > 128 and 16 % step == 0:
            assert count * block <= 1.25 * extent


margins = st.tuples(*[st.sampled_from([0, 1, 2, 4, 12])] * 3)


@given(sizes, strides, margins, margins)
def test_each_block_holds_voxels_of_all_maps(
    extents: Triple, stride: Triple, beyond: Triple, short: Triple
) -> None:
    grid = grid_of(padded(extents, stride), stride, Margins(beyond, short))
    axes = zip(grid.extents, grid.block, grid.counts, stride, beyond, short, strict=True)
    for extent, block, count, step, more, less in axes:
        assert block % step == 0
        assert extent + more <= count * block
        assert (count - 1) * block < max(1, extent - less)


def test_maps_of_other_extents_do_not_change_blocks_much() -> None:
    """A volume of 256 has no blocks of 128, of which a third one would hold one voxel."""
    assert grid_of((256, 256, 256), (4, 4, 4), Margins((1, 1, 1))).block == (96, 96, 96)
    wasted: list[float] = []
    for extent in range(132, 700, 4):
        grid = grid_of((extent, 128, 128), (4, 4, 4), Margins((2, 2, 2)))
        wasted.append(grid.counts[0] * grid.block[0] / extent - 1)
    assert sum(wasted) / len(wasted) < 0.05
    assert max(wasted) < 0.13


def test_little_of_usual_scans_is_computed_for_nothing() -> None:
    counts = {extent: grid_of((extent, 128, 128), (4, 4, 4)) for extent in range(130, 700, 2)}
    wasted = [grid.counts[0] * grid.block[0] / extent - 1 for extent, grid in counts.items()]
    assert sum(wasted) / len(wasted) < 0.05
    assert max(wasted) < 0.12
    assert counts[300].block[0] == 100


def test_few_sizes_of_blocks_serve_all_volumes() -> None:
    extents = product(range(4, 700, 4), [128], [128])
    found = {grid_of(one, (4, 4, 4)).block for one in extents}
    assert len(found) <= 13


@given(sizes, st.integers(1, 9))
def test_runs_take_each_block_once_in_order(extents: Triple, batch: int) -> None:
    grid = BlockGrid(extents, (128, 64, 96))
    runs = list(grid.runs(batch))
    taken = [number for run in runs for number in run.numbers]
    assert taken == list(range(grid.blocks))
    assert grid.stored_blocks(batch) == batch * len(runs)


@given(sizes, st.integers(1, 9), st.sampled_from([1, 2]))
def test_runs_along_another_axis_take_each_block_once(
    extents: Triple, batch: int, slowest: int
) -> None:
    grid = BlockGrid(extents, (128, 64, 96))
    _, height, width = grid.counts
    runs = list(grid.runs(batch, slowest))
    assert max(run.count for run in runs) <= batch
    taken = [number for run in runs for number in run.numbers]
    places = [(number // width % height, number % width)[slowest - 1] for number in taken]
    assert sorted(taken) == list(range(grid.blocks))
    assert places == sorted(places)


def test_runs_fill_a_gpu_and_leave_little_empty() -> None:
    assert grid_of((256, 256, 180), (4, 4, 4)) == BlockGrid((256, 256, 180), (128, 128, 60))
    for extents, batch in (((256, 256, 180), 4), ((64, 64, 64), 1), ((384, 128, 128), 1)):
        grid = grid_of(extents, (4, 4, 4))
        assert grid.batch == batch
        assert grid.batch * prod(grid.block) <= 8 << 20
