"""Retries of whatever cannot be done now."""

from threading import Event

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.node import periodic_thread
from cuda_cyclegan.pipelines.node.events import NodeEvent, Trouble
from cuda_cyclegan.pipelines.node.periodic_thread import PeriodicThread


def test_a_thread_continues_after_an_unexpected_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_thread, "POLL_SECONDS", 0.01)
    reported, failing, is_done = list[NodeEvent](), [KeyError("a patient"), KeyError("x")], Event()

    def do() -> bool:
        if failing:
            raise failing.pop()
        is_done.set()
        return False

    thread = PeriodicThread("delivery", do, reported.append)
    thread.wake()
    assert is_done.wait(ENOUGH)
    thread.close()
    assert reported == [Trouble("delivery met an unexpected KeyError, and is retried")]
