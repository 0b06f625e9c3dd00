"""Order statistics against a sorted array."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.pipelines.study import statistics as module
from cuda_cyclegan.pipelines.study.statistics import order_statistics

LARGE = 1_500_000


def values(kind: str, seed: int, size: int) -> npt.NDArray[Any]:
    random = np.random.default_rng(seed)
    match kind:
        case "smooth":
            return random.normal(0, 300, size).astype(np.float32)
        case "integers":
            return random.normal(0, 300, size).astype(np.int16)
        case "background":
            noise = random.normal(0, 300, size).astype(np.int16)
            return np.where(random.random(size) < 0.4, np.int16(-1024), noise)
        case _:
            return np.sort(random.integers(0, 256, size).astype(np.uint8))


@settings(deadline=None, max_examples=examples(60))
@given(
    kind=st.sampled_from(["smooth", "integers", "background", "sorted"]),
    size=st.integers(1, 400_000),
    percent=st.floats(0, 100),
    seed=st.integers(0, 5),
)
def test_they_are_the_values_of_the_sorted_array(
    kind: str, size: int, percent: float, seed: int
) -> None:
    flat = values(kind, seed, size)
    rank = int(percent / 100 * (size - 1))
    ranks = [rank, min(rank + 1, size - 1)]
    assert order_statistics(flat, [ranks]) == [list(np.sort(flat)[ranks])]


@pytest.mark.parametrize("kind", ["smooth", "integers", "background"])
def test_a_large_array_is_not_sorted_as_a_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sort, sorted_sizes = np.sort, list[int]()

    def measured(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        sorted_sizes.append(array.size)
        return sort(array)

    def refused(_: npt.NDArray[Any], ranks: Sequence[int]) -> None:
        raise AssertionError(ranks)

    flat = values(kind, 1, LARGE)
    wanted = [sort(flat)[rank] for rank in (LARGE // 100, LARGE // 2, LARGE - 9)]
    monkeypatch.setattr(module.np, "sort", measured)
    monkeypatch.setattr(module.np, "partition", refused)
    found = order_statistics(flat, [[LARGE // 100], [LARGE // 2], [LARGE - 9]])
    assert [value for [value] in found] == wanted
    assert max(sorted_sizes) < LARGE // 8


def test_a_sample_that_misleads_costs_time_and_no_exactness() -> None:
    """All that the sample sees is one value, which no other voxel has."""
    flat = values("smooth", 2, LARGE)
    flat[:: LARGE // (1 << 17) | 1] = 5000
    ranks = [LARGE // 2, LARGE // 2 + 1]
    assert order_statistics(flat, [ranks]) == [list(np.sort(flat)[ranks])]
