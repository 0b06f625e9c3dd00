"""What cannot be done now is tried again, whatever it was."""

from threading import Event

import pytest

from cuda_cyclegan.pipelines.node import attempts
from cuda_cyclegan.pipelines.node.attempts import Rounds
from cuda_cyclegan.pipelines.node.events import NodeEvent, Trouble


def test_rounds_go_on_after_an_error_that_no_one_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "ROUND_SECONDS", 0.01)
    told, failing, is_done = list[NodeEvent](), [KeyError("a patient"), KeyError("x")], Event()

    def do() -> bool:
        if failing:
            raise failing.pop()
        is_done.set()
        return False

    rounds = Rounds("delivery", do, told.append)
    rounds.wake()
    assert is_done.wait(30)
    rounds.stop()
    rounds.join(30)
    assert told == [Trouble("delivery met an unexpected KeyError, and is tried again")]
