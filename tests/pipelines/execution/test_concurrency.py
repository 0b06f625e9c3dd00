"""Back-pressure."""

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.execution.concurrency import Room


def waits(taking: "Future[bool]") -> bool:
    try:
        taking.result(timeout=0.05)
    except NotYetError:
        return True
    return False


def test_who_does_not_fit_waits_until_something_is_given_back() -> None:
    room = Room(10)
    assert room.take(6)
    with ThreadPoolExecutor() as others:
        taking = others.submit(room.take, 5)
        assert waits(taking)
        room.give(6)
        assert taking.result(timeout=5)


def test_what_is_larger_than_the_room_gets_in_alone() -> None:
    room = Room(10)
    assert room.take(25)
    with ThreadPoolExecutor() as others:
        taking = others.submit(room.take, 1)
        assert waits(taking)
        room.give(25)
        assert taking.result(timeout=5)


@pytest.mark.parametrize("amount", [1, 100])
def test_a_closed_room_lets_nobody_wait(amount: int) -> None:
    room = Room(1)
    room.take()
    with ThreadPoolExecutor() as others:
        taking = others.submit(room.take, amount)
        assert waits(taking)
        room.close()
        assert taking.result(timeout=5) is False


@given(st.lists(st.integers(1, 12), max_size=30))
def test_never_more_inside_than_there_is_room_for(amounts: list[int]) -> None:
    room, inside, most = Room(12), list[int](), 0
    for amount in amounts:
        while sum(inside) + amount > 12:
            room.give(inside.pop())
        assert room.take(amount)
        inside.append(amount)
        most = max(most, sum(inside))
    assert most <= 12
