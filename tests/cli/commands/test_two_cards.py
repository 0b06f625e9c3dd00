"""A batch on two cards: a driver in host memory shows them, and the CPU computes for them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import scan, tiny_model
from support.driver_in_memory import compile_driver, needs_compiler
from support.processes import children_of, runs, started
from support.waiting import eventually
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables

pytestmark = [needs_compiler, pytest.mark.process]

STAND_IN = Path(__file__).parents[2] / "support" / "cards_in_memory"
NAMES = [f"{letter}.nii" for letter in "abcdef"]


class Machine:
    """Machine with two GPUs and a folder of studies."""

    def __init__(self, root: Path) -> None:
        self._root, self.results = root, root / "results"
        self._variables = {
            **os.environ,
            **compile_driver(root),
            "CARDS": "2",
            "DRIVER_STARTS": str(root / "starts"),
            "PYTHONPATH": str(STAND_IN),
            "XDG_CACHE_HOME": str(root / "cache"),
        }
        self._variables.pop("CUDA_VISIBLE_DEVICES", None)
        tiny_model(root / "model.safetensors")
        for seed, name in enumerate(NAMES):
            scan(root / "scans" / name, seed)

    def translate(
        self, device: str, *options: str, visible: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        command, variables = self.command(device, *options, visible=visible)
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

    def command(
        self, device: str, *options: str, visible: str | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command with its variables. visible: what CUDA_VISIBLE_DEVICES is set to."""
        command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(self._root / "scans")]
        command += ["--model", str(self._root / "model.safetensors"), "--device", device]
        command += ["--output", str(self.results), "--precision", "fp32"]
        command += ["--report", str(self._root / "report.json"), *options]
        more = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return command, {**self._variables, **more}

    @property
    def queue(self) -> str:
        return str(self._root / "private" / "queue.db")

    def submit(self) -> None:
        paths = str(self._root / "scans"), "--model", str(self._root / "model.safetensors")
        where = "--output", str(self.results), "--queue", self.queue
        done = CliRunner().invoke(app, ["submit", *paths, *where, "--precision", "fp32"])
        assert done.exit_code == 0, done.output

    def work(self, device: str, shown: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Work until no job is left; return the exit status and the worker's output.

        shown: variables that say which cards it sees.
        """
        options = "--until-empty", "--device", device, "--queue", self.queue
        command = [sys.executable, "-m", "cuda_cyclegan", "worker", *options]
        variables = {**self._variables, **(shown or {})}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self._root / "report.json").read_text())

    @property
    def cards_of_processes(self) -> list[str]:
        """The first card that each process saw that started the driver; their numbers."""
        return sorted(line.split()[1] for line in (self._root / "starts").read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("device", "visible", "seen"),
    [
        ("cuda:1,0", "1,0", ["0", "1"]),
        pytest.param("cuda:0,1", None, ["0", "1"], marks=pytest.mark.slow),
        pytest.param("cuda", "0,1", ["0", "1"], marks=pytest.mark.slow),
    ],
)
def test_each_process_sees_one_gpu_and_none_starts_the_driver_of_all(
    machine: Machine, device: str, visible: str | None, seen: list[str]
) -> None:
    done = machine.translate(device, visible=visible)
    assert done.returncode == 0, done.stderr
    assert machine.cards_of_processes == seen
    assert machine.report["totals"]["translated"] == len(NAMES)


def test_a_gpu_that_is_named_twice_has_two_processes(machine: Machine) -> None:
    done = machine.translate("cuda:1,1")
    assert done.returncode == 0, done.stderr
    assert machine.cards_of_processes == ["1", "1"]
    report = machine.report
    assert report["totals"]["translated"] == len(NAMES)
    assert report["use"]["devices"] == 1


def test_a_worker_of_the_queue_takes_each_gpu_once(machine: Machine) -> None:
    status, said = machine.work("cuda:0,0")
    assert status == 2
    assert "cuda:0,0 names a GPU twice; a worker has one process on each." in said


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_reported_with_those_that_are(machine: Machine) -> None:
    done = machine.translate("cuda:1,2")
    assert done.returncode == 4
    there = "use cuda:0 (Card in memory), cuda:1 (Card in memory) or cpu."
    assert f"Device cuda:2 does not exist; {there}" in done.stderr


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_study(machine: Machine) -> None:
    command, variables = machine.command("cuda:1,0")
    with started(command, env=variables) as process:
        eventually(lambda: any(machine.results.glob("*.nii")) or process.poll() is not None)
        for worker in children_of(process.pid)[:1]:
            os.kill(worker, signal.SIGKILL)
        assert process.wait() == 0
    assert machine.report["totals"]["translated"] == len(NAMES)


def test_ctrl_c_leaves_no_process(machine: Machine) -> None:
    command, variables = machine.command("cuda:0,1")
    with started(command, env=variables) as process:
        eventually(lambda: len(children_of(process.pid)) == 2 or process.poll() is not None)
        workers = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait() in (0, 128 + signal.SIGINT)
    eventually(lambda: not any(map(runs, workers)))


@pytest.mark.slow
def test_workers_that_begin_late_see_one_gpu_too(machine: Machine) -> None:
    machine.results.mkdir()  # where nothing may be left to do
    done = machine.translate("cuda:1,0")
    assert done.returncode == 0, done.stderr
    assert machine.cards_of_processes == ["0", "0", "1"]  # of the command itself, which sees both
    assert machine.report["totals"]["translated"] == len(NAMES)


@pytest.mark.slow
def test_each_worker_of_the_queue_sees_one_gpu(machine: Machine) -> None:
    machine.submit()
    assert machine.work("cuda:1,0")[0] == 0
    assert {path.name for path in machine.results.glob("*.nii")} == {*NAMES}
    assert machine.cards_of_processes == ["0", "0", "1"]  # of the command itself, which sees both


FIRST = "cuda:00000000"
"""The name of the first card's worker, by the card's place on the bus."""


@pytest.mark.slow
def test_a_worker_that_is_shown_a_gpu_that_has_one_is_refused(machine: Machine) -> None:
    machine.submit()
    with open_tables(queue_place(machine.queue), create=True) as tables, membership(tables, FIRST):
        status, said = machine.work("cuda:0", {"CUDA_VISIBLE_DEVICES": "0"})
    assert f"A worker for {FIRST} is already running on this machine" in said
    assert status == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "shown",
    [{"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "0", "FIRST_CARD": "1"}],
    ids=["by its number", "by a control group"],
)
def test_workers_that_are_shown_one_gpu_each_may_run_beside_each_other(
    machine: Machine, shown: dict[str, str]
) -> None:
    """Each calls its own card cuda:0; a batch system hands them out so."""
    machine.submit()
    with open_tables(queue_place(machine.queue), create=True) as tables, membership(tables, FIRST):
        assert machine.work("cuda:0", shown)[0] == 0
    assert {path.name for path in machine.results.glob("*.nii")} == {*NAMES}
