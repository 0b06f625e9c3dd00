"""The smaller patch that is proposed where one is too large."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.flops import held_bytes
from cuda_cyclegan.engine.network.patches import largest_patch

GRAPH = build(ResNetSpec(1, 1, 4, 2))
EDGES = st.integers(8, 500).map(lambda edge: edge * 4)


@given(patch=st.tuples(EDGES, EDGES, EDGES), room=st.integers(1 << 20, 1 << 40))
def test_it_fits_is_taken_by_the_network_and_keeps_about_the_proportions(
    patch: tuple[int, int, int], room: int
) -> None:
    found = largest_patch(GRAPH, patch, lambda one: held_bytes(GRAPH, one) <= room)
    if found is None:
        return
    GRAPH.check_patch(found)
    assert held_bytes(GRAPH, found) <= room
    assert all(edge <= whole for edge, whole in zip(found, patch, strict=True))
    shares = [edge / whole for edge, whole in zip(found, patch, strict=True)]
    if min(found) >= 64:
        assert max(shares) / min(shares) < 1.5


@pytest.mark.parametrize("free", [1 << 28, 1 << 32, 1 << 36])
def test_it_is_not_much_smaller_than_it_must_be(free: int) -> None:
    found = largest_patch(GRAPH, (2000, 2000, 2000), lambda one: held_bytes(GRAPH, one) <= free)
    assert found is not None
    larger = found[0] + 48, found[1] + 48, found[2] + 48
    assert held_bytes(GRAPH, larger) > free
    assert prod(found) > 0


def test_there_may_be_none() -> None:
    assert largest_patch(GRAPH, (64, 64, 64), lambda _: False) is None
