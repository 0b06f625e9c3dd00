"""Successors of workers that ended, and the stop of a supervisor."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from support import worker_targets
from support.processes import children_of, runs
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.pipelines.run.process import WorkerProcess, launch
from cuda_cyclegan.pipelines.run.supervisor import Restart, Supervisor

TWO: dict[str, Any] = {"most": 2}

STOPPED = """
import signal, subprocess, sys
from functools import partial
from support import worker_targets
from cuda_cyclegan.pipelines.jobs.supervision import QueueWorkers
wait = subprocess.Popen.wait
def and_then_a_signal(process):
    status = wait(process)
    signal.raise_signal(signal.SIGTERM)
    return status
subprocess.Popen.wait = and_then_a_signal
workers = QueueWorkers(partial(worker_targets.end, 1), ["cpu"], (0,), *[lambda *_: 0] * 2, print)
signal.signal(signal.SIGTERM, lambda number, _: workers.stop(number))
sys.exit(workers.run())
"""
"""A worker fails; the signal comes between its end and its replacement."""


class Diary:
    """Diary that keeps what happens, and decides who follows."""

    def __init__(self, *restarts: Restart) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.deaths: list[tuple[str, int]] = []
        self.when_heard: Callable[[], object] = lambda: None
        self.when_buried: Callable[[], object] = lambda: None
        self._successions = list(restarts)

    def handle(self, device: str, news: Any) -> None:
        self.heard.append((device, news))
        self.when_heard()

    def on_end(self, device: str, status: int, _seconds: float) -> Restart:
        self.deaths.append((device, status))
        self.when_buried()
        return self._successions.pop(0) if self._successions else "none"


def supervisor(
    diary: Diary, targets: Mapping[str, Any], policy: Mapping[str, Any] = TWO
) -> Supervisor[Any, Any]:
    launches = {device: partial(launch, target) for device, target in targets.items()}
    return Supervisor(launches, diary.handle, diary.on_end, **policy)


def test_each_device_has_a_worker_and_all_that_it_says_is_handled() -> None:
    diary = Diary()
    targets = {f"cpu:{number}": partial(worker_targets.end, number) for number in range(2)}
    supervisor(diary, targets).run()
    assert sorted(diary.deaths) == [("cpu:0", 0), ("cpu:1", 1)]
    assert len({process for _, process in diary.heard}) == 2


def test_nobody_waits_for_the_end_of_one_that_has_said_its_last() -> None:
    diary, workers = Diary(), list[WorkerProcess[Any, Any]]()

    def begin() -> WorkerProcess[Any, Any]:
        workers.append(launch(worker_targets.hang))
        return workers[0]

    watched = Supervisor[Any, Any]({"cpu": begin}, diary.handle, diary.on_end, most=2)
    diary.when_heard = lambda: watched.let_go("cpu")
    watched.run()
    assert diary.deaths == [("cpu", 0)]
    [worker] = workers
    assert runs(worker.process.pid)
    worker.kill()
    eventually(lambda: not children_of(os.getpid()))


@pytest.mark.process
def test_a_device_is_abandoned_after_workers_that_came_to_nothing() -> None:
    diary = Diary(*["in vain"] * 9)
    supervisor(diary, {"cpu": partial(worker_targets.end, 3)}).run()
    assert diary.deaths == [("cpu", 3)] * 2


@pytest.mark.process
def test_a_worker_that_was_of_use_lets_the_count_begin_anew() -> None:
    diary = Diary("in vain", "at once", "in vain", "in vain", "in vain")
    supervisor(diary, {"cpu": partial(worker_targets.end, 3)}).run()
    assert len(diary.deaths) == 4


@pytest.mark.process
def test_a_stop_reaches_every_worker_and_none_is_started_any_more() -> None:
    diary = Diary(*["at once"] * 9)
    made = supervisor(diary, dict.fromkeys(("a", "b"), worker_targets.wait_for_end))

    def stop() -> None:
        if len(diary.heard) == 2:
            made.stop("the end")

    diary.when_heard = stop
    made.run()
    assert sorted(diary.deaths) == [("a", 0), ("b", 0)]


def test_another_thread_may_have_those_killed_that_do_not_end() -> None:
    diary, said = Diary("at once"), threading.Event()
    diary.when_heard = said.set
    made = supervisor(diary, {"cpu": worker_targets.hang})
    thread = threading.Thread(target=made.run)
    thread.start()
    assert said.wait(ENOUGH)
    made.post(lambda: made.stop("the end"))
    made.post(lambda: made.kill_in(0))
    thread.join(ENOUGH)
    assert diary.deaths == [("cpu", -signal.SIGKILL)]


def test_one_that_waits_for_its_successor_is_stopped_at_once() -> None:
    diary = Diary(*["in vain"] * 9)
    made = supervisor(
        diary, {"cpu": partial(worker_targets.end, 1)}, {"first": 600.0, "longest": 600.0}
    )

    diary.when_buried = lambda: len(diary.deaths) == 2 and made.post(lambda: made.stop("the end"))
    made.run()
    assert len(diary.deaths) == 2


def test_a_signal_while_a_worker_is_replaced_stops_them_all() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED],
        capture_output=True,
        text=True,
        timeout=ENOUGH,
        check=False,
        cwd=worker_targets.__file__.rsplit("/", 2)[0],
    )
    assert (done.returncode, done.stdout) == (0, "15\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("device", ["cpu", "another"])
def test_only_the_worker_that_is_meant_is_reported(device: str) -> None:
    diary = Diary()
    made = supervisor(diary, dict.fromkeys(("cpu", "another"), worker_targets.wait_for_end))

    diary.when_heard = lambda: len(diary.heard) == 2 and made.send(device, "go on")
    diary.when_buried = lambda: made.stop("the end")
    made.run()
    assert diary.deaths[0] == (device, 0)
