"""A device that is lost or does not open, and who does its studies then."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch_world import stored
from support.numerics_models import FunctionGenerator
from support.processes import processes_left
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.waiting import ENOUGH
from support.worker_generators import LOSS, Opener

from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.pipelines.events import (
    DeviceOpened,
    Event,
    StudyDone,
    StudyStarted,
)
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.run.pipeline import StudyPipeline


@pytest.fixture
def world(tmp_path: Path) -> SharedBatchWorld:
    return SharedBatchWorld(tmp_path)


@pytest.mark.process
def test_a_gpu_that_falls_off_leaves_its_studies_to_the_other(world: SharedBatchWorld) -> None:
    rows = world.run(Opener(world.calls, losses=2), Opener(world.calls))
    assert [row.status for row in rows] == ["translated"] * 6
    assert processes_left() == []


@pytest.mark.process
def test_a_lost_gpu_is_opened_again_in_another_process(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, losses=1)
    rows = world.run_here(opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert world.made() == NAMES
    of_loss = [note for row in rows for note in row.notes if "ECC error" in note]
    assert of_loss
    assert all("restarted in another process" in note for note in of_loss)
    assert str(os.getpid()) in opener.processes()
    assert len(opener.processes()) == 2
    done = [event.row.name for event in world.events if isinstance(event, StudyDone)]
    assert sorted(done) == NAMES
    assert sum(isinstance(event, DeviceOpened) for event in world.events) == 1
    assert processes_left() == []


@pytest.mark.process
def test_stop_after_a_loss_ends_the_process_that_took_over(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    successor = Opener(world.calls, holding=0)
    started = Counter[str]()

    def interrupt(event: Event) -> None:
        if isinstance(event, StudyStarted):
            name = str(event.planned.study.name)
            started[name] += 1
            if started[name] == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(world, "handle", interrupt)
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", 0.1)
    rows = world.run_here(Opener(world.calls, losses=1), successor)
    left = processes_left()
    successor.let_go()
    assert left == []
    assert "interrupted" in {row.status for row in rows}
    assert [row.name for row in rows if row.status == "translated"] == world.made()


def test_a_gpu_that_is_lost_after_an_interrupt_is_not_opened_again(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss reported while a result is stored does not end the batch in another way either."""
    is_storing, is_stopped = threading.Event(), threading.Event()
    write, stop, calls = storing.write, StudyPipeline.stop, iter(range(9))

    def write_after_the_loss(*arguments: Any) -> Any:
        is_storing.set()
        assert is_stopped.wait(ENOUGH)
        for thread in threading.enumerate():
            if thread.name.startswith("infer"):
                thread.join(ENOUGH)
        return write(*arguments)

    def stop_and_tell(pipeline: StudyPipeline) -> None:
        stop(pipeline)
        is_stopped.set()

    def interrupted_and_lost(patches: FloatArray) -> FloatArray:
        call = next(calls)
        if call == 0:
            return patches
        assert is_storing.wait(ENOUGH)
        if call == 1:
            os.kill(os.getpid(), signal.SIGINT)
        assert is_stopped.wait(ENOUGH)
        raise LOSS

    @contextmanager
    def opened(*_: object) -> Iterator[FunctionGenerator]:
        yield FunctionGenerator(interrupted_and_lost)

    monkeypatch.setattr(storing, "write", write_after_the_loss)
    monkeypatch.setattr(StudyPipeline, "stop", stop_and_tell)
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.batch.PATIENCE", ENOUGH)
    rows = world.run_here(opened)
    assert sorted(row.status for row in rows)[-1] == "translated"
    assert len(world.made()) == 1
    assert processes_left() == []


@pytest.mark.slow
def test_a_study_that_loses_every_gpu_alone_is_tried_three_times_and_fails_alone(
    world: SharedBatchWorld,
) -> None:
    stored(world.inputs / "a.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    opener = Opener(world.calls, losing=2000)
    rows = world.run_here(opener)
    assert [row.status for row in rows] == ["failed", *["translated"] * 5]
    failure = rows[0].failure
    assert failure is not None
    assert failure.kind == "engine"
    assert "ECC error" in failure.reason
    assert world.made() == NAMES[1:]
    assert len(list(world.calls.glob("lost *"))) in (3, 4)  # the first perhaps not alone


@pytest.mark.slow
def test_a_gpu_that_stays_away_fails_what_is_left(world: SharedBatchWorld) -> None:
    rows = world.run_here(Opener(world.calls, losses=100))
    assert {row.status for row in rows} == {"failed"}
    assert len(list(world.calls.glob("loss *"))) < 12
    assert processes_left() == []


def test_a_gpu_that_does_not_open_again_fails_what_is_left_and_keeps_the_rest(
    world: SharedBatchWorld,
) -> None:
    stored(world.inputs / "d.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    rows = world.run_here(Opener(world.calls, losing=2000, opens=1))
    assert [row.name for row in rows] == NAMES
    made = [row.name for row in rows if row.status == "translated"]
    assert made == world.made() != []
    assert {row.failure and row.failure.reason for row in rows if row.status == "failed"} == {
        "The card fell off the bus."
    }


@pytest.mark.parametrize("suspects", [1, 6])
def test_studies_over_which_a_gpu_was_lost_are_each_worked_on_alone(
    world: SharedBatchWorld, suspects: int
) -> None:
    rows = world.run_suspects(NAMES[:suspects], Opener(world.calls, seconds=0.05))
    assert {row.status for row in rows} == {"translated"}
    reported = [
        type(event) for event in world.events if isinstance(event, StudyStarted | StudyDone)
    ]
    assert reported[: 2 * suspects] == [StudyStarted, StudyDone] * suspects


@pytest.mark.process
def test_a_device_that_does_not_open_leaves_the_work_to_the_other(world: SharedBatchWorld) -> None:
    rows = world.run(Opener(world.calls, refuse=True), Opener(world.calls))
    assert {row.status for row in rows} == {"translated"}


@pytest.mark.slow
def test_without_any_device_the_batch_ends_with_its_error(world: SharedBatchWorld) -> None:
    with pytest.raises(EngineError, match="fell off the bus"):
        world.run(Opener(world.calls, refuse=True), Opener(world.calls, refuse=True))
    assert world.made() == []
    assert processes_left() == []
