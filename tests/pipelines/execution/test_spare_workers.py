"""Workers that are started before their job is known."""

import os
import signal
from pathlib import Path

import pytest
from support.processes import processes_left
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.worker_generators import Opener

from cuda_cyclegan.pipelines.execution.spare_workers import spare_workers


@pytest.fixture
def world(tmp_path: Path) -> SharedBatchWorld:
    return SharedBatchWorld(tmp_path)


def test_a_batch_takes_the_workers_that_wait_for_it(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, together=2)
    with spare_workers(["cpu:0", "cpu:1"]) as spares:
        started = {str(worker.process.pid) for worker in spares.values()}
        rows = world.run_with(spares, opener, opener)
        assert spares == {}
    assert [row.status for row in rows] == ["translated"] * len(NAMES)
    assert set(opener.processes()) == started
    assert processes_left() == []


def test_a_spare_that_died_is_replaced(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls)
    with spare_workers(["cpu:0"]) as spares:
        os.kill(spares["cpu:0"].process.pid, signal.SIGKILL)
        spares["cpu:0"].process.wait()
        rows = world.run_with(spares, opener)
    assert [row.status for row in rows] == ["translated"] * len(NAMES)


def test_those_that_no_batch_takes_are_ended() -> None:
    with spare_workers(["cpu:0", "cpu:1"]) as spares:
        workers = [worker.process for worker in spares.values()]
        assert processes_left() != []
    assert [worker.returncode for worker in workers] == [-signal.SIGKILL] * 2
    assert processes_left() == []


def test_one_ends_by_itself_when_who_started_it_is_gone() -> None:
    with spare_workers(["cpu:0"]) as spares:
        worker = spares.pop("cpu:0")
        assert worker.reap() == 0
