"""Back-pressure."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.interrupts import done_at_last, interrupted
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.run.concurrency import CommitBarrier, WeightedSemaphore


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a thread waits for another to release something."""
    waits, wait = threading.Event(), threading.Condition.wait

    def reported(condition: threading.Condition, timeout: float | None = None) -> bool:
        if threading.current_thread() is not threading.main_thread():
            waits.set()
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", reported)
    return waits


def test_study_that_does_not_fit_waits_until_something_is_released(waits: threading.Event) -> None:
    places = WeightedSemaphore(10)
    assert places.acquire(6)
    with ThreadPoolExecutor() as others:
        taking = others.submit(places.acquire, 5)
        assert waits.wait(ENOUGH)
        assert not taking.done()
        places.release(6)
        assert taking.result(timeout=ENOUGH)


def test_study_larger_than_the_space_gets_in_alone(waits: threading.Event) -> None:
    places = WeightedSemaphore(10)
    assert places.acquire(25)
    with ThreadPoolExecutor() as others:
        taking = others.submit(places.acquire, 1)
        assert waits.wait(ENOUGH)
        assert not taking.done()
        places.release(25)
        assert taking.result(timeout=ENOUGH)


def test_all_that_fit_into_what_is_given_back_get_in(waits: threading.Event) -> None:
    places = WeightedSemaphore(3)
    assert places.acquire(3)
    with ThreadPoolExecutor() as others:
        taking = [others.submit(places.acquire) for _ in range(3)]
        assert waits.wait(ENOUGH)
        places.release(2)
        places.release()
        assert all(each.result(timeout=ENOUGH) for each in taking)


@pytest.mark.parametrize("amount", [1, 100])
def test_a_closed_space_lets_nobody_wait(amount: int, waits: threading.Event) -> None:
    places = WeightedSemaphore(1)
    places.acquire()
    with ThreadPoolExecutor() as others:
        taking = others.submit(places.acquire, amount)
        assert waits.wait(ENOUGH)
        assert not taking.done()
        places.close()
        assert taking.result(timeout=ENOUGH) is False


def close_one() -> Callable[[], None]:
    return WeightedSemaphore(1).close


def shut_one() -> Callable[[], None]:
    return CommitBarrier().shut


@pytest.mark.parametrize("end_one", [close_one, shut_one])
def test_an_interrupt_while_it_is_ended_keeps_no_thread_from_it(
    end_one: Callable[[], Callable[[], None]],
) -> None:
    for _ in range(1500):
        end = end_one()
        interrupted(end)
        other = threading.Thread(target=end, daemon=True)
        other.start()
        other.join(ENOUGH)
        assert not other.is_alive()
        done_at_last(end)


@given(st.lists(st.integers(1, 12), max_size=30))
def test_never_more_inside_than_there_is_space_for(amounts: list[int]) -> None:
    places, inside, most = WeightedSemaphore(12), list[int](), 0
    for amount in amounts:
        while sum(inside) + amount > 12:
            places.release(inside.pop())
        assert places.acquire(amount)
        inside.append(amount)
        most = max(most, sum(inside))
    assert most <= 12
