"""Memory that goes from one array to the next."""

import gc
import threading

import numpy as np
import pytest

from cuda_cyclegan.io.volume import AnyArray
from cuda_cyclegan.pipelines.host_arrays import GRAIN_BYTES, USEFUL_FOR, HostArrays

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

    threads = [threading.Thread(target=fill, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert arrays.held <= 4 * 4 * MIB


def test_never_more_is_held_than_was_in_use_at_one_time() -> None:
    arrays = HostArrays()
    held = list[int]()
    for size in range(40, 4, -2):
        array = arrays.empty((size * MIB,), np.uint8)
        held.append(arrays.held)
        del array
    assert max(held) == 40 * MIB


def test_what_nobody_asks_for_again_goes_back_to_the_system() -> None:
    arrays = HostArrays()
    arrays.empty((100 * MIB,), np.uint8)
    assert arrays.held == 100 * MIB
    for _ in range(USEFUL_FOR + 1):
        arrays.empty((GRAIN_BYTES,), np.uint8)
    assert arrays.held == GRAIN_BYTES


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
