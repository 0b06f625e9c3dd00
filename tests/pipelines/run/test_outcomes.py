"""Outcomes of studies, from events in any order of ends; and the way of events to the listener."""

import signal
import threading
import time
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import Any

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.events import (
    Event,
    StudyDone,
    StudyStarted,
    TilesDone,
    Worked,
)
from cuda_cyclegan.pipelines.results.resume import PlannedStudy
from cuda_cyclegan.pipelines.run.outcomes import BatchEvents, Outcomes
from cuda_cyclegan.pipelines.stopwatch import Span

STUDY = Study(PurePosixPath("a.nii"), (Path("/scans/a.nii"),), "nifti")
PLANNED = PlannedStudy(STUDY, Path("/results/a.nii"), "translate", "the model changed")
READ = Worked(Span("a.nii", "read", "read", 1.0, 3.0))
INFERRED = Worked(Span("a.nii", "infer", "card", 4.0, 4.5))
DONE = StudyDone(PLANNED.opening_row)


def heard(*events: Event) -> Outcomes:
    outcomes = Outcomes()
    for event in events:
        outcomes.handle(event)
    return outcomes


def test_a_study_that_the_network_did_not_begin_with_has_no_row() -> None:
    assert heard(StudyStarted(PLANNED), READ).of(PLANNED) is None


def test_an_interrupted_study_shows_the_seconds_of_all_its_stages() -> None:
    row = heard(
        StudyStarted(PLANNED), READ, TilesDone("a.nii", 0, 2), INFERRED, TilesDone("a.nii", 1, 2)
    ).of(PLANNED)
    assert row is not None
    assert (row.status, row.due) == ("interrupted", "the model changed")
    assert row.stages == {"read": 2.0, "infer": 0.5}
    assert row.seconds == 2.5


def test_a_study_that_is_begun_again_counts_its_last_try_only() -> None:
    row = heard(
        *(StudyStarted(PLANNED), READ, TilesDone("a.nii", 0, 2), INFERRED),
        *(StudyStarted(PLANNED), READ),
    ).of(PLANNED)
    assert row is not None
    assert row.stages == {"read": 2.0}


def test_the_row_of_a_study_that_ended_is_the_one_it_ended_with() -> None:
    outcomes = heard(StudyStarted(PLANNED), READ, TilesDone("a.nii", 0, 2))
    assert not outcomes.any_ended
    outcomes.handle(DONE)
    assert outcomes.of(PLANNED) is DONE.row
    assert outcomes.any_ended


def test_an_outcome_is_kept_before_its_event_is_handled() -> None:
    events = BatchEvents(Outcomes())
    thread = threading.Thread(target=events.report, args=(DONE,))
    thread.start()
    thread.join()
    assert events.outcomes.of(PLANNED) is DONE.row
    events.end()
    assert list(events.listen()) == [DONE]
    assert events.is_over


def test_spans_of_work_come_with_the_next_event_and_wake_nobody() -> None:
    events = BatchEvents(Outcomes())
    events.report(StudyStarted(PLANNED))
    assert next(events.listen(ENOUGH)) == StudyStarted(PLANNED)
    events.report(READ)
    assert events._wakes.empty()
    events.report(DONE)
    events.report(INFERRED)
    events.end()
    assert list(events.listen(ENOUGH)) == [READ, DONE, INFERRED]


def test_a_signal_that_another_thread_receives_ends_the_wait_for_events() -> None:
    """A stop by SIGSTOP may have ended, or another signal may be on its way."""
    waits = threading.Event()

    class WatchedQueue(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.set()
            return super().get(block, timeout)

    def receive() -> None:
        assert waits.wait(ENOUGH)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    events = BatchEvents(Outcomes())
    events._wakes = WatchedQueue()
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        begin = time.monotonic()
        threading.Thread(target=receive).start()
        with pytest.raises(KeyboardInterrupt):
            list(events.listen(2 * ENOUGH))
        assert time.monotonic() - begin < ENOUGH
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_fault_is_raised_and_what_follows_can_still_be_handled() -> None:
    events = BatchEvents(Outcomes(), (KeyError,))
    events.fail(KeyError())
    events.fail(ValueError("a fault"))
    events.report(DONE)
    with pytest.raises(ValueError, match="a fault"):
        next(events.listen())
    assert next(events.listen(ENOUGH)) == DONE
    assert not events.is_over
