"""Workers that are started before their job is known."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.batch_world import tiny_model
from support.processes import processes_left, runs
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.waiting import eventually
from support.worker_generators import Opener

from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.pipelines.run.process import Channel, WorkerProcess
from cuda_cyclegan.pipelines.run.spare_workers import JobAssigned, spare_workers


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SharedBatchWorld]:
    yield SharedBatchWorld(tmp_path)
    eventually(lambda: processes_left() == [])  # which nobody waits for


@pytest.mark.process
def test_a_batch_takes_the_workers_that_wait_for_it(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, together=2)
    with spare_workers(["cpu:0", "cpu:1"], world.model) as spares:
        started = set(map(str, processes_left()))
        rows = world.run_with(spares, opener, opener)
    assert [row.status for row in rows] == ["translated"] * len(NAMES)
    assert set(opener.processes()) == started
    eventually(lambda: processes_left() == [])


@pytest.mark.slow
def test_a_batch_does_not_wait_until_their_processes_have_ended(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = list[int]()

    def reap(worker: WorkerProcess[object, object]) -> int:
        awaited.append(worker.process.pid)
        return worker.process.wait()

    monkeypatch.setattr(WorkerProcess, "reap", reap)
    opener = Opener(world.calls)
    with spare_workers(["cpu:0", "cpu:1"], world.model) as spares:
        world.run_with(spares, opener, opener)
    assert awaited == []
    world.output.rename(world.output.with_name("earlier"))
    world.run(opener, opener)
    assert len(awaited) == 2


@pytest.mark.process
def test_a_spare_that_died_is_replaced(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls)
    with spare_workers(["cpu:0"], world.model) as spares:
        [spare] = processes_left()
        os.kill(spare, signal.SIGKILL)
        eventually(lambda: not runs(spare))
        rows = world.run_with(spares, opener)
    assert [row.status for row in rows] == ["translated"] * len(NAMES)


def test_those_that_no_batch_takes_are_ended(world: SharedBatchWorld) -> None:
    with spare_workers(["cpu:0", "cpu:1"], world.model):
        assert len(processes_left()) == 2
    assert processes_left() == []


def test_one_ends_by_itself_when_who_started_it_is_gone(world: SharedBatchWorld) -> None:
    starting = (
        "import os, sys\nfrom pathlib import Path\n"
        "from cuda_cyclegan.pipelines.run.spare_workers import spare_workers\n"
        "with spare_workers(['cpu:0'], Path(sys.argv[1])):\n"
        "    print(Path(f'/proc/self/task/{os.getpid()}/children').read_text(), flush=True)\n"
        "    os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", starting, world.model], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    eventually(lambda: not runs(int(done.stdout)))


@pytest.mark.process
def test_they_have_read_the_model_so_its_weights_are_not_sent(
    world: SharedBatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, send = list[object](), Channel[object, object].send

    def listen(channel: Channel[object, object], message: object) -> None:
        sent.append(message)
        send(channel, message)

    monkeypatch.setattr(Channel, "send", listen)
    with spare_workers(["cpu:0"], world.model) as spares:
        rows = world.run_with(spares, Opener(world.calls))
    assert [row.status for row in rows] == ["translated"] * len(NAMES)
    model = load_model(world.model)
    [assigned] = [message for message in sent if isinstance(message, JobAssigned)]
    assert assigned.sha256 == model.sha256
    assert all(weight.tobytes() not in assigned.worker for weight in model.network.weights.values())


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [False, True])
def test_a_model_that_changed_meanwhile_is_sent_to_a_successor(
    world: SharedBatchWorld, tmp_path: Path, *, is_there: bool
) -> None:
    opener, other = Opener(world.calls), tmp_path / "other.safetensors"
    if is_there:
        tiny_model(other, seed=1)
    with spare_workers(["cpu:0"], other) as spares:
        [first] = processes_left()
        rows = world.run_with(spares, opener)
    assert [row.status for row in rows] == ["translated"] * len(NAMES)
    assert first not in map(int, opener.processes())


def test_no_gpu_is_known_where_a_worker_sees_none(
    world: SharedBatchWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    with spare_workers(["cuda:0", "cuda:1"], world.model) as spares:
        assert spares.gpus() == ()
    assert capfd.readouterr() == ("", "")
