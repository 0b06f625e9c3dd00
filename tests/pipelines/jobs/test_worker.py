"""A worker's jobs beside each other: what is read ahead, and what becomes of it when work stops."""

import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import queue_postgres
from support.batch_world import scan
from support.io_files import write_later
from support.queue_world import QueueWorld
from support.waiting import ENOUGH, ToldCondition
from support.watched_calls import watch_calls

from cuda_cyclegan.pipelines.errors import QueueLostError
from cuda_cyclegan.pipelines.jobs import source, worker
from cuda_cyclegan.pipelines.jobs.events import (
    JobEnded,
    Waiting,
    WorkerEvent,
    WorkerSettings,
)
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import Claim
from cuda_cyclegan.pipelines.jobs.queue.liveness import Membership
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.worker import Monitor, work
from cuda_cyclegan.pipelines.results.storing import Store
from cuda_cyclegan.pipelines.run import pipeline
from cuda_cyclegan.pipelines.run.concurrency import WeightedSemaphore
from cuda_cyclegan.pipelines.run.worker import Worker


class Rounds:
    """Rounds of a worker's monitor, which hardly pauses, reported to those who wait for them."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Any, name: str, times: int = 1) -> None:
        self._left, self._are_over = times, threading.Event()
        patch.setattr(worker, "MONITOR_SECONDS", 0.05)
        real = getattr(place, name)

        def watched(*arguments: Any) -> Any:
            done = real(*arguments)
            self._left -= 1
            if self._left <= 0:
                self._are_over.set()
            return done

        patch.setattr(place, name, watched)

    def wait(self) -> None:
        assert self._are_over.wait(ENOUGH)


@pytest.mark.slow
def test_the_next_job_is_read_and_the_last_one_stored_while_one_is_translated(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_is_read, first_is_finished = threading.Event(), threading.Event()
    waited: list[bool] = []

    def wait_for_both(number: int) -> None:
        if number == 1:
            waited.extend(event.wait(ENOUGH) for event in (third_is_read, first_is_finished))

    watch_calls(monkeypatch, "read", lambda number: number == 2 and third_is_read.set())
    watch_calls(monkeypatch, "finish", lambda number: number == 0 and first_is_finished.set())
    watch_calls(monkeypatch, "infer", wait_for_both)
    world.scans(3)
    batch = world.submit()
    world.work()
    assert waited == [True, True]
    assert world.states(batch) == ["done"] * 3


def test_one_job_at_most_is_taken_ahead(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.scans(5)
    batch = world.submit()
    second_is_read = threading.Event()
    held: list[int] = []
    waits = threading.Event()

    class Places(WeightedSemaphore):
        """Places that report when a thread waits for the third one."""

        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._asked = 0
            self._changed = ToldCondition(lambda: self._asked == 3 and waits.set(), self._lock)

        def acquire(self, amount: int = 1) -> bool:
            self._asked += 1
            return super().acquire(amount)

    def count(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(ENOUGH)
            assert waits.wait(ENOUGH)
            held.append(world.states(batch).count("running"))

    watch_calls(monkeypatch, "prepare", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer", count)
    monkeypatch.setattr(pipeline, "WeightedSemaphore", Places)
    world.work()
    assert held == [2]
    assert world.states(batch) == ["done"] * 5


def test_job_read_ahead_goes_back_when_its_window_closes(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that the network has begun with goes on; the clock jumps over the closing time."""

    class Clock(datetime):
        moment = datetime(2026, 11, 21, 6, 59)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.moment.replace(tzinfo=tz)

    second_is_read = threading.Event()

    def close(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(ENOUGH)
            Clock.moment = datetime(2026, 11, 21, 7, 0)

    monkeypatch.setattr(source, "datetime", Clock)
    watch_calls(monkeypatch, "prepare", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer", close)
    world.scans(3)
    batch = world.submit("--window", "night")
    world.work()
    assert world.states(batch) == ["done", "queued", "queued"]
    assert [job["tries"] for job in world.jobs(batch)] == [1, 0, 0]
    world.work()
    assert world.states(batch) == ["done", "queued", "queued"]
    Clock.moment = datetime(2026, 11, 20, 19, 0)  # the clock was set back
    world.work()
    assert world.states(batch) == ["done"] * 3


def test_a_pause_lets_nothing_more_begin(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_read = threading.Event()

    def pause(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(ENOUGH)
            with open_queue(queue_place(world.queue)) as queue:
                queue.pause()

    watch_calls(monkeypatch, "prepare", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer", pause)
    world.scans(3)
    batch = world.submit()
    world.work()
    assert world.states(batch) == ["done", "queued", "queued"]


def test_only_the_job_that_was_cancelled_is_left(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scans(3)
    batch = world.submit()
    left = Rounds(monkeypatch, Worker, "cancel")

    def cancel(number: int) -> None:
        if number == 1:
            with open_queue(queue_place(world.queue)) as queue:
                assert queue.cancel(f"{batch}/00002") == 1
            left.wait()

    watch_calls(monkeypatch, "infer", cancel)
    reported = world.work()
    assert world.states(batch) == ["done", "cancelled", "done"]
    assert world.made() == {"000.nii", "002.nii"}
    ended = {event.job: event.row for event in reported if isinstance(event, JobEnded)}
    row = ended[f"{batch}/00002"]
    assert row
    assert row.status == "interrupted"
    world.did("jobs", "retry", batch)
    world.work()
    assert world.states(batch) == ["done"] * 3


def test_a_job_that_was_cancelled_and_queued_again_is_done_by_the_same_worker(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker claims it a second time while its first claim is in flight."""
    world.scans(1)
    batch = world.submit()
    left = Rounds(monkeypatch, Worker, "cancel")

    def cancel(number: int) -> None:
        if number == 0:
            with open_queue(queue_place(world.queue)) as queue:
                assert queue.cancel(batch) == queue.retry(batch).again == 1
            left.wait()

    watch_calls(monkeypatch, "infer", cancel)
    reported = world.work()
    assert [
        event.row and event.row.status for event in reported if isinstance(event, JobEnded)
    ] == [
        "interrupted",
        "translated",
    ]
    assert world.states(batch) == ["done"]


def test_a_job_that_was_given_in_a_lost_answer_is_taken_again(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server recorded who has it and then went away, before it could say so."""
    take, answers = Claims.claim, iter([False])

    def take_deaf(claims: Claims, scheduling: SchedulingClass) -> Claim | None:
        claim = take(claims, scheduling)
        if claim and not next(answers, True):
            raise QueueLostError("the connection is closed")
        return claim

    monkeypatch.setattr(Claims, "claim", take_deaf)
    monkeypatch.setattr(worker, "STRAY_SECONDS", 0.5)
    world.scans(2)
    batch = world.submit()
    world.work()
    assert world.states(batch) == ["done", "done"]
    assert [job["tries"] for job in world.jobs(batch)] == [1, 1]


def test_a_worker_ends_after_its_monitor(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor that lives longer would use the queue's connections after their end."""
    ends, end, dead = threading.Event(), Monitor.__exit__, Membership.dead
    left: list[str] = []

    def told_end(monitor: Monitor, *reason: object) -> None:
        ends.set()
        end(monitor, *reason)
        left.extend(thread.name for thread in threading.enumerate())

    def look_at_the_end(membership: Membership, workers: Collection[str]) -> set[str]:
        assert ends.wait(ENOUGH)
        return dead(membership, workers)

    monkeypatch.setattr(worker, "MONITOR_SECONDS", 0.0)
    monkeypatch.setattr(Monitor, "__exit__", told_end)
    monkeypatch.setattr(Membership, "dead", look_at_the_end)
    world.scans(1)
    world.submit()
    world.work()
    assert left
    assert "monitor" not in left


def test_a_job_at_work_is_no_stray(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_for_strays(_: int) -> None:  # not before: the claim may still be in progress
        monkeypatch.setattr(worker, "STRAY_SECONDS", 0.0)
        Rounds(monkeypatch, Claims, "in_flight", times=3).wait()

    watch_calls(monkeypatch, "infer", look_for_strays)
    world.scans(1)
    batch = world.submit()
    [row] = [event.row for event in world.work() if isinstance(event, JobEnded)]
    assert row
    assert row.status == "translated"
    assert world.states(batch) == ["done"]


def test_rest_of_a_killed_worker_is_gone_when_no_job_is_left(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker was killed while this one, which opened the folder before, was at work."""

    def die_in_the_middle(number: int) -> None:
        if number == 1:
            write = (
                "import os, sys; from pathlib import Path\n"
                "from cuda_cyclegan.io.files.atomic import whole_file\n"
                "with whole_file(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
            )
            command = [sys.executable, "-c", write, str(world.output / "other.nii")]
            subprocess.run(command, check=False)
            assert len(list(world.output.rglob("*.part"))) == 1

    watch_calls(monkeypatch, "infer", die_in_the_middle)
    world.scans(2)
    batch = world.submit()
    world.work()
    assert world.states(batch) == ["done", "done"]
    assert not list(world.output.rglob("*.part"))


def test_two_jobs_for_one_result_follow_each_other(world: QueueWorld) -> None:
    world.scans(1)
    old = world.submit()
    write_later(world.inputs / "000.nii", scan(world.folder / "other.nii", seed=7).read_bytes())
    new = world.submit()
    assert old != new
    world.work()
    [first], [second] = world.jobs(old), world.jobs(new)
    assert (first["result"]["status"], second["result"]["status"]) == ("translated", "up to date")


def test_a_job_whose_result_another_worker_stored_meanwhile_is_done(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scans(1)
    one, other = world.submit(), world.submit("--overwrite")

    def other_worker(call: int) -> None:
        if call == 0:
            workers = list[Worker]()

            def end_after_a_job(event: WorkerEvent) -> None:
                if isinstance(event, JobEnded):
                    workers[0].finish()

            settings = WorkerSettings(only=other)
            work(queue_place(world.queue), "cpu", settings, end_after_a_job, workers.append)

    watch_calls(monkeypatch, "put", before=other_worker, where=Store)
    world.work(only=one)
    [first], [second] = world.jobs(one), world.jobs(other)
    assert (first["state"], second["state"]) == ("done", "done")
    assert (first["result"]["status"], second["result"]["status"]) == ("up to date", "translated")


def test_a_job_whose_place_a_foreign_file_took_meanwhile_fails_and_keeps_it(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scans(1)
    batch, foreign = world.submit(), world.output / "000.nii"
    watch_calls(monkeypatch, "put", before=lambda _: foreign.write_bytes(b"mine"), where=Store)
    world.work()
    [job] = world.jobs(batch)
    assert job["state"] == "failed"
    assert job["reason"].startswith(f"occupied: {foreign}")
    assert foreign.read_bytes() == b"mine"


def on_third_try(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something whenever a worker has found the queue's server away three times in a row.

    Several of its threads may try, and one of them does it.
    """
    tries, wait, one = list[QueueLostError](), source.Outage.wait, threading.Lock()

    def counted(self: source.Outage, error: QueueLostError) -> None:
        tries.append(error)
        wait(self, error)
        with one:
            if len(tries) >= 3:
                do()
                tries.clear()

    patch.setattr(source, "PAUSE_SECONDS", 0.01)
    patch.setattr(source.Outage, "wait", counted)


def test_an_answer_from_before_an_outage_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PAUSE_SECONDS", 0.0)
    reported: list[WorkerEvent] = []
    outage, lost = source.Outage(reported.append), QueueLostError("the connection is closed")
    outage.ask(lambda: outage.wait(lost))  # another thread's request fails before this answer
    outage.wait(lost)
    assert len(reported) == 1
    outage.ask(lambda: None)
    outage.wait(lost)
    assert len(reported) == 2


@pytest.mark.process
def test_a_worker_waits_for_a_server_that_was_killed_and_reports_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills happen before the worker has begun, and while a job is at its end."""
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    reported: list[WorkerEvent] = []
    with queue_postgres.server() as server:
        world = QueueWorld(tmp_path, server.url)
        world.scans(1)
        batch = world.submit()
        server.kill()
        on_third_try(monkeypatch, server.start)
        watch_calls(monkeypatch, "finish", lambda _: server.kill())
        place = queue_place(server.url)
        assert work(place, "cpu", WorkerSettings(until_empty=True), reported.append) == "empty"
        assert world.states(batch) == ["done"]
    lost = [news for news in reported if isinstance(news, Waiting) and news.reason]
    assert ["does not answer" in (news.reason or "") for news in lost] == [True, True]


@pytest.mark.parametrize("place", ["start", "__init__"])
def test_a_worker_that_gets_no_threads_puts_its_jobs_back(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """No study caused it, so none of their tries is used."""

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    world.scans(2)
    batch = world.submit()
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.StudyPipeline, place, refused)
        for _ in range(4):  # more tries than a study has that ends workers
            with pytest.raises(RuntimeError, match="new thread"):
                world.work()
            assert world.states(batch) == ["queued"] * 2
    world.work()
    assert world.states(batch) == ["done"] * 2
