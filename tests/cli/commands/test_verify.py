"""`--verify N`: patches are computed a second time, and what differs is not written."""

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch_world import scan, tiny_model
from support.queue_world import QueueWorld
from support.worker_generators import WrongOpener
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.pipelines import decisions
from cuda_cyclegan.pipelines.run import networks
from cuda_cyclegan.pipelines.run.pipe_worker import PipeWorker
from cuda_cyclegan.pipelines.study import verify


class World:
    """Two scans, and a device that computes what the test sets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.inputs, self.output = root / "scans", root / "results"
        self.model = tiny_model(root / "model.safetensors")
        scan(self.inputs / "a.nii.gz", shape=(40, 24, 20))
        scan(self.inputs / "b.nii.gz", seed=1, shape=(24, 40, 16))

    def run(self, command: str, *options: str) -> Result:
        words = [command, self.inputs, "--model", self.model, "--output", self.output]
        asked = ["--device", "cpu", "--patch", "16,16,16", *options]
        return CliRunner().invoke(app, [*map(str, words), *asked])

    def rows(self, *options: str) -> list[dict[str, Any]]:
        report = self.root / "report.json"
        self.run("translate", *options, "--report", str(report))
        return json.loads(report.read_text())["studies"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return World(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List with a word for each time that the CPU's model was opened or closed for verification."""
    reported: list[str] = []
    opening = verify.open_cpu_generator

    @contextmanager
    def counted(*asked: Any) -> Generator[Any]:
        with opening(*asked) as generator:
            reported.append("opened")
            yield generator
        reported.append("closed")

    monkeypatch.setattr(verify, "open_cpu_generator", counted)
    return reported


def wrong(monkeypatch: pytest.MonkeyPatch, factor: float, every: int = 1) -> None:
    """Have the device be wrong in every so-manieth patch."""
    right = networks.open_generator

    @contextmanager
    def off(*asked: Any) -> Generator[Any]:
        with right(*asked) as generator:

            class Off:
                device, graph, patches = "broken", generator.graph, 0

                def __call__(self, patches: FloatArray) -> FloatArray:
                    self.patches += 1
                    made = generator(patches)
                    return made if self.patches % every else made * np.float32(factor)

            yield Off()

    monkeypatch.setattr(networks, "open_generator", off)


@pytest.mark.parametrize(
    "overlap",
    ["0", "0.5", *(pytest.param(each, marks=pytest.mark.slow) for each in ("0.25", "0.8"))],
)
@pytest.mark.parametrize("blend", ["gaussian", "linear", "constant"])
def test_a_right_result_is_what_the_cpu_computes_again(
    world: World, overlap: str, blend: str
) -> None:
    for row in world.rows("--verify", "3", "--overlap", overlap, "--blend", blend):
        assert row["status"] == "translated"
        assert row["verified"]["places"] == 3
        assert row["verified"]["tiles"] >= 3
        assert row["verified"]["error"] <= row["verified"]["allowed"] < 1e-2
    assert (world.output / "a.nii.gz").exists()


def test_a_scan_smaller_than_the_patch_is_verified_too(world: World) -> None:
    scan(world.inputs / "small.nii", shape=(12, 14, 9))
    rows = world.rows("--verify", "2")
    assert [row["status"] for row in rows] == ["translated"] * 3
    assert [row["verified"]["places"] for row in rows] == [2, 2, 1]


def test_a_wrong_result_fails_and_nothing_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch, 1.02)
    for row in world.rows("--verify", "1"):
        assert (row["status"], row["class"], row["failed_in"]) == ("failed", "engine", "finish")
        assert "nothing was written" in row["reason"]
        assert row["verified"]["error"] > 2 * row["verified"]["allowed"]
    assert not list(world.output.glob("*.nii.gz"))
    assert {row["status"] for row in world.rows()} == {"translated"}


def test_results_that_are_kept_are_not_taken_for_verified(world: World) -> None:
    note = "--verify had no effect on 2 results that are up to date"
    assert note not in world.run("translate", "--verify", "1").stdout
    assert note in world.run("translate", "--verify", "1").stdout
    assert note not in world.run("translate").stdout


def test_one_wrong_patch_is_found_where_all_are_computed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch, 1.02, every=5)
    assert {row["status"] for row in world.rows("--verify", "99")} == {"failed"}


def test_the_same_patches_are_taken_each_time(world: World) -> None:
    first, again = (world.rows("--verify", "2", "--overwrite") for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one["verified"]["error"] == other["verified"]["error"]


def test_the_table_has_the_error_and_the_plan_the_cost(world: World) -> None:
    planned = world.run("plan", "--verify", "2").output
    assert re.search(r"Verification: \d+ patches computed again on the CPU, time unknown", planned)
    done = world.run("translate", "--verify", "2")
    assert "CPU diff" in done.stdout
    planned = world.run("plan", "--verify", "2", "--overwrite").output
    assert re.search(
        r"Verification: \d+ patches computed again on the CPU, \d\.\d+ s of CPU time", planned
    )
    assert "CPU diff" not in world.run("translate", "--overwrite").stdout
    assert "Verification" not in world.run("plan", "--overwrite").output


def test_the_model_is_opened_once_a_batch_and_only_if_asked_for(
    world: World, opened: list[str]
) -> None:
    assert {row["status"] for row in world.rows("--verify", "1")} == {"translated"}
    assert opened == ["opened", "closed"]
    world.rows("--overwrite")
    assert opened == ["opened", "closed"]


@pytest.mark.process
@pytest.mark.parametrize(("factor", "status"), [(1.0, "translated"), (1.02, "failed")])
def test_several_devices_verify_each_what_it_computed(
    world: World, monkeypatch: pytest.MonkeyPatch, factor: float, status: str
) -> None:
    devices = tuple(Device("cpu", "fp32", ("fp32",), None, index) for index in range(2))
    monkeypatch.setattr(decisions, "choose_devices", lambda *_: devices)
    wrong_worker = partial(PipeWorker, open_network=WrongOpener(factor))
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.shared_batch.PipeWorker", wrong_worker)
    rows = world.rows("--verify", "1")
    assert [row["status"] for row in rows] == [status] * 2
    assert all(row["verified"]["places"] == 1 for row in rows)
    assert len(list(world.output.glob("*.nii.gz"))) == (2 if status == "translated" else 0)


class TestInTheQueue:
    @pytest.fixture
    def queue(self, tmp_path: Path) -> QueueWorld:
        world = QueueWorld(tmp_path)
        world.scans(2)
        return world

    def test_a_worker_verifies_with_one_model_for_all_jobs(
        self, queue: QueueWorld, opened: list[str]
    ) -> None:
        batches = [queue.submit("--verify", "1"), queue.submit("--verify", "1", "--overlap", "0")]
        queue.work()
        rows = [job["result"] for batch in batches for job in queue.jobs(batch)]
        assert [row["verified"]["places"] for row in rows] == [1] * 4
        assert opened == ["opened", "closed"]

    def test_a_worker_writes_nothing_that_is_wrong(
        self, queue: QueueWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong(monkeypatch, 1.02)
        batch = queue.submit("--verify", "1")
        queue.work()
        assert {job["state"] for job in queue.jobs(batch)} == {"failed"}
        assert all("nothing was written" in job["reason"] for job in queue.jobs(batch))
        assert queue.made() == set()

    @pytest.mark.slow
    def test_scan_arriving_in_a_watched_folder_is_verified(self, queue: QueueWorld) -> None:
        paths = [str(queue.inputs), "--model", str(queue.model), "--output", str(queue.output)]
        watch = queue.start("watch", *paths, "--verify", "1", "--settle", "0")
        assert watch.stderr is not None
        assert any("2 studies queued" in line for line in watch.stderr)
        watch.terminate()
        watch.communicate()
        queue.work()
        [batch] = json.loads(queue.did("jobs", "--json"))["batches"]
        jobs = queue.jobs(batch["batch"])
        assert [job["result"]["verified"]["places"] for job in jobs] == [1, 1]
