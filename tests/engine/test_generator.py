"""A study is begun again after an overflow, and only then; a device holds one program at a time."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from support.waiting import ENOUGH, ToldCondition

from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError, PrecisionOverflowError
from cuda_cyclegan.engine.generator import SharedGenerator, shared_generator

OVERFLOW = PrecisionOverflowError("Too large.")


class Device:
    """Device with memory for one generator, which keeps what was opened and closed."""

    def __init__(self, *without_room: str) -> None:
        self.log: list[str] = []
        self._without_room = without_room
        self._is_full = False

    @contextmanager
    def open(self, precision: str) -> Iterator[Any]:
        assert not self._is_full, "two programs at a time"
        if precision in self._without_room:
            raise DeviceMemoryError("There is no room.")
        self._is_full = True
        self.log.append(f"open {precision}")
        yield Generator(precision)
        self.log.append(f"close {precision}")
        self._is_full = False


class Generator:
    def __init__(self, precision: str) -> None:
        self.precision, self.device = precision, f"a card, {precision}"


def overflowing(*failures: Exception) -> Any:
    """Work that fails as configured, one failure after another."""
    left = list(failures)

    def work(generator: Any) -> str:
        if left:
            raise left.pop(0)
        return f"done in {generator.precision}"

    return work


def shared(device: Device) -> AbstractContextManager[SharedGenerator]:
    return shared_generator(device.open, ("fp16", "bf16", "fp32"))


def test_an_overflow_is_done_again_in_the_next_wider_precision():
    device = Device()
    with shared(device) as generator:
        assert generator.open("fp16") == "a card, fp16"
        outcome = generator.do(overflowing(OVERFLOW, OVERFLOW), "fp16")
    assert (outcome.result, outcome.precision) == ("done in fp32", "fp32")
    assert outcome.notes == (
        "A value exceeded the range of fp16; the computation was repeated in bf16.",
        "A value exceeded the range of bf16; the computation was repeated in fp32.",
    )


def test_a_precision_that_the_device_lacks_is_skipped():
    with shared_generator(Device().open, ("fp16", "fp32")) as generator:
        outcome = generator.do(overflowing(OVERFLOW), "fp16")
        assert outcome.precision == "fp32"
        assert outcome.notes == (
            "A value exceeded the range of fp16; the computation was repeated in fp32.",
        )
        with pytest.raises(PrecisionOverflowError):
            generator.do(overflowing(OVERFLOW, OVERFLOW), "fp16")


def test_the_program_that_overflowed_makes_space_and_is_opened_again_when_it_is_needed():
    device = Device()
    with shared(device) as generator:
        generator.do(overflowing(OVERFLOW), "fp16")
        assert device.log == ["open fp16", "close fp16", "open bf16"]
        for _ in range(2):
            assert generator.do(overflowing(), "fp16").precision == "fp16"
    assert device.log[3:] == ["close bf16", "open fp16", "close fp16"]


def test_an_overflow_of_the_widest_precision_is_raised():
    reported = "A value exceeded the range of fp32; the input differs too much"
    with shared(Device()) as generator, pytest.raises(PrecisionOverflowError, match=reported):
        generator.do(overflowing(*[OVERFLOW] * 3), "fp16")


def test_other_errors_pass_through():
    device = Device()
    with shared(device) as generator, pytest.raises(CudaError):
        generator.do(
            overflowing(CudaError("cuLaunchKernel", "ILLEGAL_ADDRESS", "start again")), "fp16"
        )
    assert device.log == ["open fp16", "close fp16"]


def test_work_after_one_that_found_no_space_is_done():
    device = Device("bf16")
    with shared(device) as generator:
        with pytest.raises(DeviceMemoryError):
            generator.do(overflowing(OVERFLOW), "fp16")
        assert generator.do(overflowing(), "fp16").precision == "fp16"


class Turn:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self.come = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.come.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_nothing_is_closed_while_a_thread_works_with_it_and_later_work_waits_for_its_turn():
    device = Device()
    works, may_end = threading.Event(), threading.Event()
    ends: list[str] = []

    def long(_: Any) -> None:
        works.set()
        assert may_end.wait(ENOUGH)
        assert device.log == ["open fp16"]
        ends.append("long")

    def wide(generator: Any) -> None:
        if generator.precision == "fp16":
            raise OVERFLOW
        ends.append("wide")

    turn, wide_waits = Turn(), threading.Event()
    with shared(device) as generator:
        generator._turn, generator._changed = turn, ToldCondition(wide_waits.set)
        threads = [
            threading.Thread(target=generator.do, args=(work, "fp16"))
            for work in (long, wide, lambda _: ends.append("late"))
        ]
        threads[0].start()
        assert works.wait(ENOUGH)
        threads[1].start()
        assert wide_waits.wait(ENOUGH), "for a program that nobody works with"
        comers = 4  # the wide one twice: it overflowed
        threads[2].start()
        assert all(turn.come.acquire(timeout=ENOUGH) for _ in range(comers))
        assert ends == []
        may_end.set()
        for thread in threads:
            thread.join(ENOUGH)
    assert ends == ["long", "wide", "late"]
    assert device.log[1:4] == ["close fp16", "open bf16", "close bf16"]


def test_threads_that_overflow_share_one_program():
    device = Device()
    together = threading.Barrier(2)

    def work(generator: Any) -> None:
        together.wait(ENOUGH)
        if generator.precision == "fp16":
            raise OVERFLOW

    with shared(device) as generator:
        threads = [threading.Thread(target=generator.do, args=(work, "fp16")) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ENOUGH)
    assert device.log == ["open fp16", "close fp16", "open bf16", "close bf16"]
