"""A worker's jobs beside each other: what is read ahead, and what becomes of it when work stops."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from support.batch_world import scan
from support.numerics_models import FunctionGenerator
from support.queue_world import QueueWorld
from support.waiting import ToldCondition

from cuda_cyclegan.engine.cuda.plan_cache import Progress
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import CudaError, PrecisionOverflowError
from cuda_cyclegan.engine.network.graph import FloatArray, Network, Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.pipelines.errors import QueueLostError
from cuda_cyclegan.pipelines.execution import stages, study_pipeline
from cuda_cyclegan.pipelines.execution.concurrency import WeightedSemaphore
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.liveness import Life
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.state import Claim, SchedulingClass
from cuda_cyclegan.pipelines.jobs.worker import client, warm_device, watch
from cuda_cyclegan.pipelines.jobs.worker.messages import (
    JobEnded,
    TuningBegan,
    TuningEnded,
    WorkerEvent,
    WorkerSettings,
)
from cuda_cyclegan.pipelines.jobs.worker.process import work
from cuda_cyclegan.pipelines.jobs.worker.worker import JobWorker
from cuda_cyclegan.pipelines.study import translation as study_run

SOON = 60.0  # seconds; only a test that fails waits so long


@pytest.fixture
def world(tmp_path: Path) -> Generator[QueueWorld]:
    made = QueueWorld(tmp_path)
    yield made
    made.close()


def watch_calls(
    patch: pytest.MonkeyPatch, name: str, before: Callable[[int], object], where: Any = stages
) -> None:
    """Have `before` called with the number of each call of a stage's work, from 0."""
    real, calls = getattr(where, name), iter(range(99))

    def watched(*arguments: Any) -> Any:
        before(next(calls))
        return real(*arguments)

    patch.setattr(where, name, watched)


class Rounds:
    """What a worker's watch does, which here hardly pauses, is told to those who wait for it."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Any, name: str, times: int = 1) -> None:
        self._left, self._are_over = times, threading.Event()
        patch.setattr(watch, "WATCH_SECONDS", 0.05)
        real = getattr(place, name)

        def watched(*arguments: Any) -> Any:
            done = real(*arguments)
            self._left -= 1
            if self._left <= 0:
                self._are_over.set()
            return done

        patch.setattr(place, name, watched)

    def wait(self) -> None:
        assert self._are_over.wait(SOON)


def states(world: QueueWorld, batch: str) -> list[str]:
    """Also for a worker's threads, where no command may run."""
    with open_queue(queue_place(world.queue)) as queue:
        return [row.state for row in queue.jobs(batch)]


def test_the_next_job_is_read_and_the_last_one_stored_while_one_is_translated(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_is_read, first_is_finished = threading.Event(), threading.Event()
    waited: list[bool] = []

    def wait_for_both(number: int) -> None:
        if number == 1:
            waited.extend(event.wait(SOON) for event in (third_is_read, first_is_finished))

    watch_calls(monkeypatch, "read_study", lambda number: number == 2 and third_is_read.set())
    watch_calls(monkeypatch, "finish_study", lambda number: number == 0 and first_is_finished.set())
    watch_calls(monkeypatch, "infer_study", wait_for_both)
    world.scans(3)
    batch = world.submit()
    world.work()
    assert waited == [True, True]
    assert states(world, batch) == ["done"] * 3


def test_one_job_at_most_is_taken_ahead(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.scans(5)
    batch = world.submit()
    second_is_read = threading.Event()
    held: list[int] = []
    waits = threading.Event()

    class Places(WeightedSemaphore):
        """Tells when a thread waits for the third place."""

        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._asked = 0
            self._changed = ToldCondition(lambda: self._asked == 3 and waits.set())

        def acquire(self, amount: int = 1) -> bool:
            self._asked += 1
            return super().acquire(amount)

    def count(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(SOON)
            assert waits.wait(SOON)
            held.append(states(world, batch).count("running"))

    watch_calls(monkeypatch, "prepare_study", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer_study", count)
    monkeypatch.setattr(study_pipeline, "WeightedSemaphore", Places)
    world.work()
    assert held == [2]
    assert states(world, batch) == ["done"] * 5


def test_what_was_read_ahead_goes_back_when_its_window_closes(
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
            assert second_is_read.wait(SOON)
            Clock.moment = datetime(2026, 11, 21, 7, 0)

    monkeypatch.setattr(client, "datetime", Clock)
    watch_calls(monkeypatch, "prepare_study", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer_study", close)
    world.scans(3)
    batch = world.submit("--window", "night")
    world.work()
    assert states(world, batch) == ["done", "queued", "queued"]
    assert [job["tries"] for job in world.jobs(batch)] == [1, 0, 0]
    world.work()
    assert states(world, batch) == ["done", "queued", "queued"]
    Clock.moment = datetime(2026, 11, 20, 19, 0)  # the clock was set back
    world.work()
    assert states(world, batch) == ["done"] * 3


def test_a_pause_lets_nothing_more_begin(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_read = threading.Event()

    def pause(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(SOON)
            with open_queue(queue_place(world.queue)) as queue:
                queue.pause()

    watch_calls(monkeypatch, "prepare_study", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer_study", pause)
    world.scans(3)
    batch = world.submit()
    world.work()
    assert states(world, batch) == ["done", "queued", "queued"]


def test_only_the_job_that_was_cancelled_is_left(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scans(3)
    batch = world.submit()
    left = Rounds(monkeypatch, JobWorker, "leave")

    def cancel(number: int) -> None:
        if number == 1:
            with open_queue(queue_place(world.queue)) as queue:
                assert queue.cancel(f"{batch}/00002") == 1
            left.wait()

    watch_calls(monkeypatch, "infer_study", cancel)
    told = world.work()
    assert states(world, batch) == ["done", "cancelled", "done"]
    assert world.made() == {"000.nii", "002.nii"}
    ended = {event.job: event.row for event in told if isinstance(event, JobEnded)}
    row = ended[f"{batch}/00002"]
    assert row
    assert row.status == "interrupted"
    world.did("jobs", "retry", batch)
    world.work()
    assert states(world, batch) == ["done"] * 3


def test_a_job_that_was_cancelled_and_queued_again_is_done_by_the_same_worker(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which gets it a second time while it still has it in hand."""
    world.scans(1)
    batch = world.submit()
    left = Rounds(monkeypatch, JobWorker, "leave")

    def cancel(number: int) -> None:
        if number == 0:
            with open_queue(queue_place(world.queue)) as queue:
                assert queue.cancel(batch) == queue.retry(batch).again == 1
            left.wait()

    watch_calls(monkeypatch, "infer_study", cancel)
    told = world.work()
    assert [event.row and event.row.status for event in told if isinstance(event, JobEnded)] == [
        "interrupted",
        "translated",
    ]
    assert states(world, batch) == ["done"]


def test_a_worker_whose_name_is_anothers_puts_its_jobs_back_and_is_replaced(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Life, "renew", lambda _: False)
    monkeypatch.setattr(Life, "is_lost", lambda _: True)
    told = Rounds(monkeypatch, JobWorker, "restart")
    watch_calls(monkeypatch, "infer_study", lambda _: told.wait())
    world.scans(3)
    batch = world.submit()
    settings = WorkerSettings(until_empty=True)
    assert work(queue_place(world.queue), "cpu", settings, lambda _: None) == "restart"
    assert "queued" in states(world, batch)
    monkeypatch.undo()
    world.work()
    assert states(world, batch) == ["done"] * 3


def test_a_job_that_was_given_in_a_lost_answer_is_taken_again(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server recorded who has it and then went away, before it could say so."""
    take, answers = Claims.take, iter([False])

    def take_deaf(claims: Claims, scheduling: SchedulingClass) -> Claim | None:
        claim = take(claims, scheduling)
        if claim and not next(answers, True):
            raise QueueLostError("the connection is closed")
        return claim

    monkeypatch.setattr(Claims, "take", take_deaf)
    monkeypatch.setattr(watch, "STRAY_SECONDS", 0.5)
    world.scans(2)
    batch = world.submit()
    world.work()
    assert states(world, batch) == ["done", "done"]
    assert [job["tries"] for job in world.jobs(batch)] == [1, 1]


def test_a_job_at_work_is_no_stray(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STRAY_SECONDS", 0.0)
    rounds = Rounds(monkeypatch, Claims, "held", times=3)
    watch_calls(monkeypatch, "infer_study", lambda _: rounds.wait())
    world.scans(1)
    batch = world.submit()
    [row] = [event.row for event in world.work() if isinstance(event, JobEnded)]
    assert row
    assert row.status == "translated"
    assert states(world, batch) == ["done"]


class Card:
    """A GPU with room for one program, on which one run of the usual precision overflows.

    Each program is tuned when it is opened for the first time.
    """

    def __init__(self, patch: pytest.MonkeyPatch, overflows_at: int) -> None:
        self.log: list[str] = []
        self._tuned: set[Precision] = set()
        self._runs, self._overflows_at = iter(range(99)), overflows_at
        device = Device("cuda", "fp16", ("fp16", "bf16"))
        patch.setattr(warm_device, "choose_device", lambda *_: device)
        patch.setattr(warm_device, "open_generator", self.open)

    @contextmanager
    def open(
        self, _: Network, __: Device, precision: Precision, ___: Triple, progress: Progress
    ) -> Iterator[FunctionGenerator]:
        if precision not in self._tuned:
            progress("convolution 3x3x3", 0.0)
            progress("convolution 7x7x7", 0.5)
            progress("", 1.0)
        self._tuned.add(precision)

        def run(patches: FloatArray) -> FloatArray:
            if precision == "fp16" and next(self._runs) == self._overflows_at:
                raise PrecisionOverflowError("A value left the range of fp16.")
            return patches

        self.log.append(f"open {precision}")
        yield FunctionGenerator(run)
        self.log.append(f"close {precision}")


def test_a_job_that_overflows_has_the_card_alone_and_the_next_one_as_before(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch, overflows_at=0)
    world.scans(4)
    batch = world.submit()
    told = world.work()
    assert states(world, batch) == ["done"] * 4
    notes = [job["result"]["notes"] for job in world.jobs(batch)]
    assert sum(map(len, notes)) == 1
    there = ["open fp16", "close fp16", "open bf16", "close bf16", "open fp16", "close fp16"]
    assert card.log == there
    tuning = [event for event in told if isinstance(event, TuningBegan | TuningEnded)]
    assert tuning == [TuningBegan(), ANY, TuningBegan(), ANY]
    assert [event.plans for event in tuning if isinstance(event, TuningEnded)] == [2, 2]


def test_a_program_stays_open_from_job_to_job(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between those that do not travel together."""
    card = Card(monkeypatch, overflows_at=-1)
    world.scans(2)
    for overlap in ("0", "0.5"):
        world.submit("--overlap", overlap, "--overwrite")
    world.work()
    assert card.log == ["open fp16", "close fp16"]


def test_jobs_with_other_settings_take_turns(world: QueueWorld) -> None:
    world.scans(2)
    paths = [str(world.inputs), "--model", str(world.model)]
    for name, overlap in (("a", "0"), ("b", "0.5")):
        direct, queued = world.folder / f"direct-{name}", world.folder / f"queued-{name}"
        world.did("translate", *paths, "--output", str(direct), "--overlap", overlap)
        world.did("submit", *paths, "--output", str(queued), "--overlap", overlap)
    world.work()
    for name in "ab":
        for made in ("000.nii", "001.nii"):
            direct = world.folder / f"direct-{name}" / made
            assert (world.folder / f"queued-{name}" / made).read_bytes() == direct.read_bytes()


def test_what_a_killed_worker_left_is_gone_when_no_job_is_left(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while this one, which had opened the folder before, was at work."""

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

    watch_calls(monkeypatch, "infer_study", die_in_the_middle)
    world.scans(2)
    batch = world.submit()
    world.work()
    assert states(world, batch) == ["done", "done"]
    assert not list(world.output.rglob("*.part"))


def test_two_jobs_for_one_result_follow_each_other(world: QueueWorld) -> None:
    world.scans(1)
    old = world.submit()
    scan(world.inputs / "000.nii", seed=7)
    new = world.submit()
    assert old != new
    world.work()
    [first], [second] = world.jobs(old), world.jobs(new)
    assert (first["result"]["status"], second["result"]["status"]) == ("translated", "up to date")


def test_a_job_is_blamed_for_deaths_that_it_had_alone(world: QueueWorld) -> None:
    world.scans(4)
    scan(world.inputs / "001.nii", shape=(40, 18, 16))
    batch = world.submit()

    def status(read_ahead: int) -> int:
        poison = ["support.queue_poison", world.queue, "1", str(read_ahead)]
        command = [sys.executable, "-m", *poison]
        return subprocess.run(command, cwd=Path(__file__).parents[3], check=False).returncode

    died_in_company = died_alone = -signal.SIGKILL
    assert [status(2), status(1), status(1)] == [died_in_company, died_alone, 0]
    poison = world.jobs(batch)[1]
    assert poison["state"] == "given up"
    assert "1 workers died of it" in poison["reason"]
    others = [job for job in world.jobs(batch) if job is not poison and job["study"] != "001.nii"]
    assert [(job["state"], job["tries"]) for job in others] == [("done", 1)] * 3


def test_a_lost_device_fails_the_job_that_had_it_alone(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_read = threading.Event()

    def lose(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(SOON)
        if number < 2:
            raise CudaError("cuStreamSynchronize", "ECC error", "start again", is_sticky=True)

    watch_calls(monkeypatch, "prepare_study", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer_study", lose)
    world.scans(3)
    batch = world.submit()

    def end() -> str:
        told: list[WorkerEvent] = []
        settings = WorkerSettings(until_empty=True)
        return work(queue_place(world.queue), "cpu", settings, told.append)

    assert end() == "restart"
    assert states(world, batch) == ["queued"] * 3
    assert end() == "restart"
    assert states(world, batch) == ["failed", "queued", "queued"]
    assert "ECC error" in world.jobs(batch)[0]["reason"]
    assert end() == "empty"
    assert states(world, batch) == ["failed", "done", "done"]


def test_a_failure_in_the_network_has_the_process_replaced(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        if number == 0:
            raise CudaError("cuLaunchKernel", "invalid value", "report it")

    watch_calls(monkeypatch, "translate_array", fail, where=study_run)
    world.scans(2)
    batch = world.submit()
    told: list[WorkerEvent] = []
    place, settings = queue_place(world.queue), WorkerSettings(until_empty=True)
    assert work(place, "cpu", settings, told.append) == "restart"
    assert states(world, batch)[0] == "failed"
    assert work(place, "cpu", settings, told.append) == "empty"
    assert states(world, batch) == ["failed", "done"]
