"""Arithmetic of triples, along each axis by itself."""

from typing import Any

import pytest

from cuda_cyclegan.engine.network.layers import (
    added,
    divided_up,
    multiplied,
    negative,
    subtracted,
    triple,
)


def test_each_axis_is_computed_by_itself() -> None:
    assert added((1, 2, 3), (10, 20, 30), (100, 200, 300)) == (111, 222, 333)
    assert subtracted((9, 8, 7), (1, 2, 3), (10, 0, 1)) == (-2, 6, 3)
    assert multiplied((2, 3, 4), (5, -6, 7)) == (10, -18, 28)
    assert negative((1, -2, 0)) == (-1, 2, 0)


def test_quotients_are_rounded_up() -> None:
    assert divided_up((8, 9, -9), (4, 4, 4)) == (2, 3, -2)


@pytest.mark.parametrize("wrong", [(1, 2), (1, 2, 3, 4)])
def test_another_number_of_axes_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValueError, match="unpack"):
        triple(wrong)
    with pytest.raises(ValueError, match="argument 2"):
        added((1, 1, 1), wrong)
