"""Batches on a Dask cluster: real schedulers and workers, and what they must refuse."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from support.batch_world import scan, tiny_model
from support.dask_workers import DEADLY, dask_workers
from support.processes import descendants, runs, started
from support.translate_world import COMMAND, World, one_sentence, without_privileges
from support.waiting import eventually, wait_for

from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.io.files.locks import wait_for_lock
from cuda_cyclegan.pipelines import dask_cluster, dask_worker
from cuda_cyclegan.pipelines.errors import PipelineError
from cuda_cyclegan.pipelines.program import program_version
from cuda_cyclegan.pipelines.request import Request
from cuda_cyclegan.pipelines.results.manifest import Manifest, load
from cuda_cyclegan.pipelines.results.record_folder import found_record
from cuda_cyclegan.pipelines.results.sharers import Sharers

STUDIES = [f"{number:02}.nii" for number in range(12)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for seed, name in enumerate(STUDIES):
        scan(made.inputs / name, seed=seed)
    return made


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with dask_workers(tmp_path_factory.mktemp("cluster"), 2) as address:
        yield address


def order(world: World, **changes: Any) -> dask_worker.Order:
    """Return what the client sends for this world, with some of it changed."""
    request = Request((world.inputs,), world.model, world.output, device="cpu")
    stated = {
        "request": request,
        "run": "0",
        "program": program_version(),
        "model": load_model(world.model).sha256,
    }
    return dask_worker.Order(**{**stated, **changes})


def test_a_word_that_is_no_address_is_refused(world: World) -> None:
    result = world.translate("--scheduler", "host")
    assert result.exit_code == 2
    assert "'host' is not an address such as tcp://HOST:8786" in result.stderr
    assert not world.output.exists()


def test_a_share_or_a_trace_of_a_cluster_is_refused(world: World) -> None:
    for option, value in (("--shard", "1/2"), ("--trace", str(world.report))):
        result = world.translate("--scheduler", "local", option, value)
        assert result.exit_code == 2
        assert "cannot be combined with --scheduler" in result.stderr


def test_a_scheduler_that_is_not_there_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "_CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = world.translate("--scheduler", f"tcp://127.0.0.1:{port}")
    assert result.exit_code == 2
    assert f"No Dask scheduler answers at tcp://127.0.0.1:{port}" in one_sentence(result)
    assert not world.output.exists()


def test_a_worker_with_another_version_is_refused(world: World) -> None:
    with pytest.raises(PipelineError, match="install the same version on client, sch") as caught:
        dask_worker._RunHere(order(world, program="0.0.1"))
    assert str(caught.value).startswith(f"On {socket.gethostname()}: cuda-cyclegan ")


def test_a_worker_with_another_model_is_refused(world: World) -> None:
    stated = order(world)
    tiny_model(world.model, seed=1)
    with pytest.raises(PipelineError, match="another file than the client's model"):
        dask_worker._RunHere(stated)


def test_a_worker_that_does_not_see_the_scans_is_refused(world: World) -> None:
    stated = order(world)
    world.inputs.rename(world.inputs.with_name("elsewhere"))
    with pytest.raises(PipelineError, match="scans does not exist; client and workers"):
        dask_worker._RunHere(stated)


def test_an_output_folder_local_to_a_host_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_worker, "_SEEN_SECONDS", 0.0)
    stated = order(world)
    for _ in range(2):
        with pytest.raises(PipelineError, match="is not the client's folder of that path"):
            dask_worker._check_folder(stated)
        with (
            Manifest(world.output) as manifest,
            dask_worker.marked(manifest.record, "0"),
        ):
            dask_worker._check_folder(stated)


def test_no_argument_of_work_is_shown_in_logs(world: World) -> None:
    assert str(world.inputs) not in repr(order(world))


@pytest.mark.slow
def test_a_cluster_makes_what_one_command_makes(world: World, scheduler: str) -> None:
    assert world.translate().exit_code == 0
    whole = world.files()
    world.output = world.output.with_name("on-dask")
    options = ("--scheduler", scheduler, "--report", str(world.report), "--device", "cpu")
    done = world.run(*options)
    assert done.returncode == 0, done.stderr
    assert world.files() == whole
    assert {row["status"] for row in world.rows().values()} == {"translated"}
    assert world.kept_statuses() == dict.fromkeys(STUDIES, "translated")
    assert "[12/12] translated" in done.stderr
    scan(world.inputs / "new.nii", seed=77)
    again = world.run(*options)
    assert again.returncode == 0, again.stderr
    assert "1 to translate, 12 up to date" in again.stderr
    assert {*world.rows()} == {*STUDIES, "new.nii"}
    assert world.kept_statuses() == dict.fromkeys([*STUDIES, "new.nii"], "translated")


@pytest.mark.slow
def test_a_cluster_without_gpus_computes_on_none(world: World, scheduler: str) -> None:
    result = world.run("--scheduler", scheduler, "--device", "cuda")
    assert result.returncode == 4
    [error] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "has the resource GPU; start workers with '--resources GPU=1'" in error
    assert not world.output.exists()


@pytest.mark.slow
def test_a_folder_in_use_is_refused(world: World, scheduler: str) -> None:
    with Manifest(world.output, shared=Sharers("shards", {"their number": "3"})):
        result = world.run("--scheduler", scheduler, "--device", "cpu")
        assert result.returncode == 2
        assert "Shards that differ in" in result.stderr
    with Manifest(world.output):
        result = world.run("--scheduler", scheduler, "--device", "cpu")
        assert "Another run is writing" in result.stderr
    assert not world.files()
    assert world.run("--scheduler", scheduler, "--device", "cpu").returncode == 0


@pytest.mark.slow
def test_a_deadly_study_fails_alone(world: World, scheduler: str) -> None:
    scan(world.inputs / "deadly.nii", seed=99)
    done = world.run("--scheduler", scheduler, "--device", "cpu", "--report", str(world.report))
    assert done.returncode == 1, done.stderr
    failed = {name: row for name, row in world.rows().items() if row["status"] == "failed"}
    assert {*failed} == {"deadly.nii"}
    assert "killed by SIGKILL" in failed["deadly.nii"]["reason"]
    assert len(world.rows()) == len(STUDIES) + 1


@pytest.mark.slow
def test_ctrl_c_ends_the_shards_and_the_same_command_continues(
    world: World, scheduler: str
) -> None:
    for seed in range(60):
        scan(world.inputs / "more" / f"{seed}.nii", seed=seed, shape=(40, 40, 40))
    arguments = world.arguments("--scheduler", scheduler, "--device", "cpu")
    with started([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True) as running:
        wait_for(running, "translated")
        os.kill(running.pid, signal.SIGINT)
        _, error = running.communicate()
    assert running.returncode == 130
    assert "Stopped with" in error
    on_record = len(load(world.output))
    assert 0 < on_record < len(STUDIES) + 60
    again = world.run(*arguments[5:])
    assert again.returncode == 0, again.stderr
    assert len(load(world.output)) == len(STUDIES) + 60
    assert [*world.output.rglob("*.part*")] == []


@pytest.mark.slow
def test_a_killed_worker_costs_no_study(tmp_path: Path, world: World) -> None:
    import distributed

    for seed in range(30):
        scan(world.inputs / "more" / f"{seed}.nii", seed=seed, shape=(40, 40, 40))
    with dask_workers(tmp_path, 2) as address, distributed.Client(address) as client:
        workers: dict[str, int] = client.run(os.getpid)
        options = ["--scheduler", address, "--device", "cpu", "--report", str(world.report)]
        command = [*COMMAND, *world.arguments(*options)]
        with started(command, stderr=subprocess.PIPE, text=True) as running:
            wait_for(running, "translated")
            for process in workers.values():
                os.kill(process, signal.SIGKILL)
            _, error = running.communicate()
        assert running.returncode == 0, error
        eventually(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)
    assert_all_are_done(world, len(STUDIES) + 30)


@pytest.mark.slow
def test_a_worker_that_hangs_costs_no_study(tmp_path: Path, world: World) -> None:
    import distributed

    for seed in range(30):
        scan(world.inputs / "more" / f"{seed}.nii", seed=seed, shape=(40, 40, 40))
    soon = ("env", "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=30s")
    with dask_workers(tmp_path, 2, soon) as address, distributed.Client(address) as client:
        workers: dict[str, int] = client.run(os.getpid)
        options = ["--scheduler", address, "--device", "cpu", "--report", str(world.report)]
        command = [*COMMAND, *world.arguments(*options)]
        with started(command, stderr=subprocess.PIPE, text=True) as running:
            wait_for(running, "translated")
            with nothing_recorded(world.output):
                for process in workers.values():
                    os.kill(process, signal.SIGSTOP)
            _, error = running.communicate()
        assert running.returncode == 0, error
        eventually(lambda: not any(map(runs, workers.values())))
    assert_all_are_done(world, len(STUDIES) + 30)


@pytest.mark.slow
def test_a_local_cluster_translates_and_takes_no_work_from_outside(world: World) -> None:
    scan(world.inputs / "deadly.nii", seed=99)
    deadly = {**os.environ, "PYTHONPATH": str(DEADLY)}
    arguments = world.arguments(*("--scheduler", "local", "--report", str(world.report)))
    with started([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True, env=deadly) as running:
        wait_for(running, "translated")
        with nothing_recorded(world.output):
            for address, port in listening(running.pid):
                assert address == "0100007F", "not 127.0.0.1"
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"http://127.0.0.1:{port}/json/counts.json")
        _, error = running.communicate()
    assert running.returncode == 1, error
    failed = {name: row for name, row in world.rows().items() if row["status"] == "failed"}
    assert {*failed} == {"deadly.nii"}
    assert "killed by SIGKILL" in failed["deadly.nii"]["reason"]
    assert len(world.rows()) == len(STUDIES) + 1


@pytest.mark.slow
def test_ctrl_c_ends_a_local_cluster_and_its_processes(world: World) -> None:
    for seed in range(60):
        scan(world.inputs / "more" / f"{seed}.nii", seed=seed, shape=(40, 40, 40))
    command = [*COMMAND, *world.arguments("--scheduler", "local", "--device", "cpu")]
    with started(command, stderr=subprocess.PIPE, text=True) as running:
        wait_for(running, "translated")
        of_run = descendants(running.pid)
        assert of_run
        os.kill(running.pid, signal.SIGINT)
        _, error = running.communicate()
    assert running.returncode == 130
    assert "Stopped with" in error
    eventually(lambda: not any(map(runs, of_run)))
    assert 0 < len(load(world.output)) < len(STUDIES) + 60
    assert [*world.output.rglob("*.part*")] == []


@pytest.mark.slow
def test_a_second_client_with_the_same_folder_is_refused(world: World) -> None:
    options = ("--scheduler", "local", "--device", "cpu")
    assert world.translate(*options).exit_code == 0
    group = json.loads((world.kept_report().parent / "sharers.json").read_text())
    sharers = Sharers(group["who"], group["alike"])
    with (
        Manifest(world.output, shared=sharers) as manifest,
        manifest.sole("dask.lock", "it"),
    ):
        assert "A batch on Dask is running already" in one_sentence(world.translate(*options))
    assert world.translate(*options).exit_code == 0
    assert len(load(world.output)) == len(STUDIES)


@pytest.mark.slow
def test_a_lost_scheduler_costs_no_result(tmp_path: Path, world: World) -> None:
    import distributed

    for seed in range(60):
        scan(world.inputs / "more" / f"{seed}.nii", seed=seed, shape=(40, 40, 40))
    with dask_workers(tmp_path, 2) as address:
        with distributed.Client(address, set_as_default=False) as client:
            of_cluster: dict[str, int] = client.run(os.getpid)
            lost: Any = client.run_on_scheduler(os.getpid)
        command = [*COMMAND, *world.arguments("--scheduler", address, "--device", "cpu")]
        with started(command, stderr=subprocess.PIPE, text=True) as running:
            wait_for(running, "translated")
            at_work = [*of_cluster.values(), *chain(*map(descendants, of_cluster.values()))]
            os.kill(lost, signal.SIGKILL)
            _, error = running.communicate()
        assert running.returncode == 2, error
        [sentence] = [line for line in error.splitlines() if line.startswith("Error: ")]
        assert f"The scheduler {address} was lost; results so far are kept" in sentence
        eventually(lambda: not any(map(runs, at_work)))
    # A study is on record before its file appears, as one being written: the kill may have come
    # before the file or after it.
    kept = [name for name, entry in load(world.output).items() if entry.status == "written"]
    assert 0 < len(kept) < len(STUDIES) + 60
    again = world.run("--device", "cpu")
    assert again.returncode == 0, again.stderr
    assert f"{len(kept)} up to date" in again.stderr
    assert len(load(world.output)) == len(STUDIES) + 60


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_worker_of_another_user_is_refused(tmp_path: Path, world: World) -> None:
    with dask_workers(tmp_path, 1, without_privileges()) as address:
        options = ("--scheduler", address, "--device", "cpu")
        for path, why in (
            (world.model, "model.safetensors"),
            (world.inputs.parent, "the worker's user needs to read inputs"),
        ):
            with of_another_user(path):
                assert why in one_error(world.run(*options))
        world.output.mkdir()
        with of_another_user(world.output, 0o755):
            assert str(world.output) in one_error(world.run(*options))
        assert not world.files()
        assert world.run(*options).returncode == 0
    assert len(load(world.output)) == len(STUDIES)


def assert_all_are_done(world: World, count: int) -> None:
    """Check that all studies of a batch that lost workers have results.

    A worker may be lost between a result and its report; the study is then found up to date.
    """
    rows = world.rows().values()
    assert len(rows) == count
    assert {"translated"} <= {row["status"] for row in rows} <= {"translated", "up to date"}
    entries = load(world.output).values()
    assert [entry.status for entry in entries] == ["written"] * count


@contextmanager
def nothing_recorded(output: Path) -> Generator[None]:
    """Keep the shards of a batch from recording results, so that it does not end in the block."""
    record = found_record(output)
    assert record is not None
    with (record / "append.lock").open("r+b") as turn:
        wait_for_lock(turn.fileno())
        yield


@contextmanager
def of_another_user(path: Path, mode: int = 0o700) -> Generator[None]:
    """Give a path to another user during the block."""
    before = path.stat()
    os.chown(path, 65534, 65534)
    path.chmod(mode)
    yield
    os.chown(path, before.st_uid, before.st_gid)
    path.chmod(before.st_mode)


def one_error(done: "subprocess.CompletedProcess[str]") -> str:
    """Return the error of a command that was refused, one line without a traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    return error


def listening(process: int) -> list[tuple[str, int]]:
    """Return the addresses and ports of the IPv4 and IPv6 sockets on which a process listens."""
    files: list[str] = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            files.append(file.readlink().name)
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
    ]
    own = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files]
    return [(address, int(port, 16)) for address, port in own]
