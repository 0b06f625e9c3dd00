"""Blocks that live at the same time never share memory."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.compiler.program.memory import (
    ALIGNMENT,
    Lifetime,
    aligned,
    arrange,
)

blocks = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=25
)


@given(blocks)
def test_no_two_living_blocks_overlap_and_none_leaves_the_arena(sizes):
    lifetimes = [
        Lifetime(str(index), size, first, first + length)
        for index, (size, first, length) in enumerate(sizes)
    ]
    arena = arrange(lifetimes)
    for one, other in combinations(lifetimes, 2):
        if one.first <= other.last and other.first <= one.last:
            starts = arena.offsets[one.name], arena.offsets[other.name]
            assert starts[0] + one.bytes <= starts[1] or starts[1] + other.bytes <= starts[0]
    for block in lifetimes:
        assert arena.offsets[block.name] % ALIGNMENT == 0
        assert arena.offsets[block.name] + block.bytes <= arena.bytes


@given(blocks)
def test_the_arena_is_no_larger_than_all_blocks_side_by_side(sizes):
    lifetimes = [Lifetime(str(i), size, 0, 5) for i, (size, _, _) in enumerate(sizes)]
    assert arrange(lifetimes).bytes == sum(aligned(size) for size, _, _ in sizes)


def test_blocks_that_follow_each_other_share_one_place():
    chain = [Lifetime(str(step), 1000, step, step + 1) for step in range(10)]
    assert arrange(chain).bytes == 2 * aligned(1000)
