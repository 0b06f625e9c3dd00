"""Signals to a batch that several processes share."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import done_at_last, interrupted
from support.processes import children_of, processes_left, runs
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.waiting import ENOUGH, eventually
from support.worker_generators import Opener

from cuda_cyclegan.pipelines.events import Event, StudyDone, TilesDone
from cuda_cyclegan.pipelines.results.manifest import Manifest, load
from cuda_cyclegan.pipelines.run.messages import StopStoring
from cuda_cyclegan.pipelines.run.shared_batch import SharedBatch
from cuda_cyclegan.pipelines.run.source import BatchStudies
from cuda_cyclegan.pipelines.run.supervisor import Supervisor


@pytest.fixture
def world(tmp_path: Path) -> SharedBatchWorld:
    return SharedBatchWorld(tmp_path)


@pytest.mark.process
def test_an_interrupt_stops_all_workers_and_the_next_run_does_the_rest(
    world: SharedBatchWorld,
) -> None:
    done: list[Event] = []

    def interrupt(event: Event) -> None:
        done.extend([event] if isinstance(event, StudyDone) else [])
        if len(done) == 2:
            raise KeyboardInterrupt

    opener = Opener(world.calls, holding=2)
    handle, world.handle = world.handle, interrupt  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", 0.5)
        rows = world.run(opener, opener)
    world.handle = handle  # type: ignore[method-assign]
    made = world.made()
    assert len(made) == 2
    assert [row.name for row in rows if row.status == "translated"] == made
    assert processes_left() == []
    assert world.parts() == []
    opener.let_go()
    again = world.run(opener, opener)
    assert sum(row.status == "up to date" for row in again) == len(made)
    assert world.made() == NAMES


@pytest.mark.slow
def test_results_that_are_in_place_at_a_stop_are_recorded(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = iter([KeyboardInterrupt])

    def interrupt(event: Event) -> None:
        if isinstance(event, TilesDone) and (error := next(interrupts, None)):
            eventually(world.made)
            raise error

    opener = Opener(world.calls, recording_late=True)
    stop = Supervisor.stop

    def stop_and_let_go(supervisor: Any, order: Any) -> None:
        stop(supervisor, order)
        if isinstance(order, StopStoring):
            opener.let_go()

    monkeypatch.setattr(Supervisor, "stop", stop_and_let_go)
    for module in ("batch", "shared_batch"):
        monkeypatch.setattr(f"cuda_cyclegan.pipelines.run.{module}.LAST_MOMENT", ENOUGH)
    monkeypatch.setattr(world, "handle", interrupt)
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", 0.0)
    world.run(opener, opener)
    written = [name for name, e in load(world.output).items() if e.status == "written"]
    assert sorted(written) == world.made() != []
    assert processes_left() == []


@pytest.mark.process
def test_a_stop_answers_a_worker_that_asked_for_one_study_more(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request comes while the last study is in flight, whose end nobody will report."""
    opener = Opener(world.calls, holding=5)
    stop, kill, killed = Supervisor.stop, Supervisor._kill, list[Any]()
    interrupts = iter([KeyboardInterrupt])

    def interrupt(event: Event) -> None:
        done = isinstance(event, StudyDone) and len(world.made()) == 5
        if done and (error := next(interrupts, None)):
            raise error

    def stop_and_let_go(supervisor: Any, order: Any) -> None:
        stop(supervisor, order)
        opener.let_go()

    def kill_and_tell(supervisor: Any) -> None:
        killed.append(supervisor)
        kill(supervisor)

    monkeypatch.setattr(world, "handle", interrupt)
    monkeypatch.setattr(Supervisor, "stop", stop_and_let_go)
    monkeypatch.setattr(Supervisor, "_kill", kill_and_tell)
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", ENOUGH)
    rows = world.run(opener)
    assert [row.status for row in rows].count("translated") >= 5
    assert killed == []
    assert processes_left() == []


@pytest.mark.process
def test_a_study_whose_worker_a_stop_ends_is_not_blamed_for_it(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, TilesDone):
            raise KeyboardInterrupt

    opener = Opener(world.calls, holding=0)
    monkeypatch.setattr(world, "handle", interrupt)
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", 0.1)
    rows = world.run_suspects(NAMES, opener, opener)
    assert {row.status for row in rows} == {"interrupted"}
    assert processes_left() == []


@pytest.mark.process
def test_a_service_managers_signal_leaves_the_workers_to_their_holder(
    world: SharedBatchWorld,
) -> None:
    opener = Opener(world.calls, together=2)

    def terminate(event: Event) -> None:
        if isinstance(event, StudyDone):
            for worker in processes_left():
                os.kill(worker, signal.SIGTERM)

    world.handle = terminate  # type: ignore[method-assign]
    rows = world.run(opener, opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert len(opener.processes()) == 2


def test_workers_end_when_their_holder_is_gone(world: SharedBatchWorld) -> None:
    holder = os.fork()
    if holder == 0:
        try:
            opener = Opener(world.calls, holding=0)
            world.run(opener, opener)
        finally:
            os._exit(1)
    eventually(lambda: len(children_of(holder)) == 2)
    workers = children_of(holder)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    eventually(lambda: not any(map(runs, workers)))


def test_a_stop_that_is_interrupted_can_be_asked_for_again(tmp_path: Path) -> None:
    with Manifest(tmp_path) as manifest:
        for _ in range(500):
            batch = SharedBatch(BatchStudies(()), (), manifest)
            interrupted(batch.stop)
            done_at_last(batch.stop)
            assert list(batch.run()) == []
