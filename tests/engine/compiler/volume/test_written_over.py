"""Maps in host memory that are written over each other, byte by byte."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.memory.plan import ALIGNMENT, Lifetime, aligned
from cuda_cyclegan.engine.compiler.volume.written_over import (
    BlockOrder,
    WrittenOver,
    rows_of,
    written_over,
)
from cuda_cyclegan.engine.network.layers import Triple


@settings(max_examples=examples(300))
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 4),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.booleans(),
    st.booleans(),
)
def test_no_run_reads_what_one_before_it_wrote_over(
    counts: Triple, batch: int, sizes: tuple[int, int], by_copies: bool, backward: bool
) -> None:
    grid = BlockGrid(counts, (1, 1, 1))
    stored = grid.stored_blocks(batch)
    each, other = (ALIGNMENT * size for size in sizes)
    before, after = Lifetime("a", stored * each, 0, 1), Lifetime("b", stored * other, 1, 2)
    over = written_over(before, after, BlockOrder(grid, batch, backward), by_copies=by_copies)
    if over is None:
        return
    [row] = rows_of([before, after], [over])
    places = row.offsets
    assert {*places.values()} >= {0}
    assert row.lifetime == Lifetime("a", row.lifetime.bytes, 0, 2)
    assert row.lifetime.bytes < before.bytes + after.bytes
    runs = list(grid.runs(batch))
    if backward:
        runs.reverse()
    _, height, width = counts
    lost: set[int] = set()
    for run in runs:
        for number in run.numbers:
            for block in (
                {number} if by_copies and each == other else _around(number, height, width)
            ):
                if 0 <= block < grid.blocks:
                    assert not lost & _pieces(places["a"] + block * each, each)
        for number in run.numbers:
            start = places["b"] + number * other
            assert 0 <= start <= row.lifetime.bytes - other
            lost |= _pieces(start, other)


def _pieces(start: int, size: int) -> set[int]:
    return set(range(start // ALIGNMENT, (start + size) // ALIGNMENT))


def _around(number: int, height: int, width: int) -> set[int]:
    steps = (-1, 0, 1)
    return {number + (d * height + h) * width + w for d in steps for h in steps for w in steps}


def test_rows_hold_each_map_once_and_begin_with_the_lowest() -> None:
    maps = [Lifetime(name, 1000, number, number + 1) for number, name in enumerate("abcd")]
    over = [WrittenOver("a", "b", -aligned(300)), WrittenOver("b", "c", 0)]
    row, alone = rows_of(maps, over)
    assert row.offsets == {"a": aligned(300), "b": 0, "c": 0}
    assert row.lifetime == Lifetime("a", 1000 + aligned(300), 0, 3)
    assert (alone.offsets, alone.lifetime) == ({"d": 0}, maps[3])
