"""A worker process: what it inherits, what it hears, and how it ends."""

import os
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import worker_targets
from support.processes import runs
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.engine.probe.gpus import VARIABLE
from cuda_cyclegan.pipelines.run.process import WorkerProcess, ending, launch


def ended(process: WorkerProcess[Any, Any]) -> str:
    with suppress(EOFError):
        while True:
            process.channel.receive(ENOUGH)
    return ending(process.reap())


@pytest.mark.parametrize(
    ("status", "reported"),
    [(0, "exit status 0"), (3, "exit status 3"), (-signal.SIGKILL, "killed by SIGKILL")],
)
def test_output_of_a_process_is_handled_before_its_end(status: int, reported: str) -> None:
    process: Any = launch(partial(worker_targets.end, status))
    assert process.channel.receive(ENOUGH) == process.process.pid
    assert ended(process) == reported


def test_a_fault_of_the_program_is_a_status(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as output:
        process: Any = launch(partial(worker_targets.tell_variable, 1), output=output)
        assert ended(process) == "exit status 1"
        output.seek(0)
        assert b"TypeError" in output.read()


def test_the_signals_of_a_service_manager_are_skipped() -> None:
    process: Any = launch(worker_targets.be_signalled)
    assert process.channel.receive(ENOUGH) == "alive"
    assert ended(process) == "exit status 0"


def test_it_has_a_session_and_an_environment_of_its_own() -> None:
    process: Any = launch(partial(worker_targets.tell_variable, "PLACE"), {"PLACE": "elsewhere"})
    assert os.getsid(process.process.pid) == process.process.pid != os.getsid(0)
    assert process.channel.receive(ENOUGH) == "elsewhere"
    assert ended(process) == "exit status 0"


@pytest.mark.parametrize(
    ("visible", "seen"), [(None, "1"), ("3, 2", "2"), ("MIG-a,MIG-b", "MIG-b"), ("3", "-1")]
)
def test_one_for_a_gpu_sees_no_other(
    visible: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, visible)
    tell = partial(worker_targets.tell_variable, VARIABLE)
    process: Any = launch(tell, device="cuda:1")
    assert process.channel.receive(ENOUGH) == seen
    assert ended(process) == "exit status 0"


def test_it_ends_with_all_that_it_started() -> None:
    process: Any = launch(worker_targets.hang)
    child = process.channel.receive(ENOUGH)
    with pytest.raises(TimeoutError):
        process.channel.receive(0)
    process.kill()
    assert ended(process) == "killed by SIGKILL"
    eventually(lambda: not runs(child))
    process.kill()  # again, when nobody is left


def test_it_hears_that_its_supervisor_is_gone() -> None:
    process: Any = launch(worker_targets.echo)
    process.channel.send("one")
    assert process.channel.receive(ENOUGH) == "one"
    process.channel.close()
    assert process.process.wait(ENOUGH) == 1
    process.channel.send("lost")
