"""Memory that goes from one array to the next."""

import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.io.volume import AnyArray
from cuda_cyclegan.pipelines.run.host_arrays import GRAIN_BYTES, LARGEST_EXCESS, HostArrays

MIB = 1 << 20


def place(array: AnyArray) -> int:
    return array.__array_interface__["data"][0]


def test_an_array_is_as_asked() -> None:
    array = HostArrays().empty((3, 500, 701), np.int16)
    assert array.shape == (3, 500, 701)
    assert array.dtype == np.int16
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 7
    assert int(array.sum(dtype=np.int64)) == 7 * array.size


def test_memory_is_used_again_once_no_view_is_left() -> None:
    arrays = HostArrays()
    first = arrays.empty((4 * MIB,), np.uint8)
    there, view = place(first), first[:10].view(np.int16)
    del first
    other = arrays.empty((4 * MIB,), np.uint8)
    assert place(other) != there
    del view
    again = arrays.empty((MIB,), np.float32)
    assert place(again) == there
    assert arrays.held == 8 * MIB


def test_two_arrays_in_use_never_share_memory() -> None:
    arrays, problems = HostArrays(), list[int]()

    def fill(mark: int) -> None:
        for _ in range(200):
            array = arrays.empty((2 * MIB + 64,), np.uint8)
            array[::4096] = mark
            if (array[::4096] != mark).any():
                problems.append(mark)
            del array

    threads = [threading.Thread(target=fill, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert arrays.held <= 4 * 4 * MIB


def test_an_array_that_is_a_little_smaller_takes_the_smallest_block_that_holds_it() -> None:
    arrays = HostArrays()
    large, small = arrays.empty((24 * MIB,), np.uint8), arrays.empty((20 * MIB,), np.uint8)
    there = place(small)
    del large, small
    assert place(arrays.empty((17 * MIB,), np.uint8)) == there
    assert arrays.held == 44 * MIB


def test_blocks_that_do_not_fit_make_space_for_one_that_does() -> None:
    arrays = HostArrays()
    arrays.empty((10 * MIB,), np.uint8)
    kept = arrays.empty((30 * MIB,), np.uint8)
    assert arrays.held == 30 * MIB
    arrays.empty((4 * MIB,), np.uint8)
    del kept
    arrays.empty((2 * MIB,), np.uint8)
    assert arrays.held == 32 * MIB


@given(sizes=st.lists(st.integers(1, 40 * MIB), max_size=40), in_use=st.integers(1, 4))
def test_never_more_is_held_than_was_in_use_at_one_time(sizes: list[int], in_use: int) -> None:
    arrays, most = HostArrays(), 0
    lent = list[AnyArray]()
    for size in sizes:
        lent = lent[-in_use + 1 :] if in_use > 1 else []
        lent.append(arrays.empty((size,), np.uint8))
        most = max(most, sum(array.nbytes + GRAIN_BYTES for array in lent))
        assert arrays.held <= LARGEST_EXCESS * most


def test_smaller_studies_soon_leave_nothing_of_a_large_one() -> None:
    arrays = HostArrays()
    large = [arrays.empty((50 * MIB,), np.uint8) for _ in range(4)]
    del large
    for _ in range(4):
        arrays.empty((GRAIN_BYTES - 1,), np.uint8)
    assert arrays.held == 0


@pytest.mark.process
def test_arrays_may_outlive_their_source() -> None:
    array = HostArrays().empty((4 * MIB,), np.uint8)
    gc.collect()
    array[...] = 3
    assert (array == 3).all()


def test_small_arrays_are_left_alone() -> None:
    arrays = HostArrays()
    assert arrays.empty((0, 5), np.float32).shape == (0, 5)
    array = arrays.empty((100,), np.float32)
    assert array.base is None
    assert arrays.held == 0


def test_too_large_an_array_costs_nothing() -> None:
    arrays = HostArrays()
    with pytest.raises(MemoryError):
        arrays.empty((1 << 60,), np.uint8)
    assert arrays.held == 0
