"""Passwords of a queue's server: in no output, however the address is written."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from psycopg import sql
from support import queue_postgres
from support.batch_world import scan, tiny_model
from support.processes import started
from support.queue_world import COMMAND
from support.tiers import examples
from support.waiting import eventually
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.doctor import machine, self_test
from cuda_cyclegan.pipelines.doctor import queue as doctor_queue
from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue.liveness import living_workers, membership
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables

MARK = "Zq7x"
"""Mark in each piece of a password, so that a test finds any piece that is shown."""

CLOSED = "127.0.0.1:1"
pieces = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6).map(
    lambda text: f"{MARK}{text}"
)
passwords = st.lists(pieces, min_size=1, max_size=4).flatmap(
    lambda texts: st.sampled_from([":", "/", "@", "?", "#", "%", " ", "&", "=", "%zz"]).map(
        lambda between: between.join(texts)
    )
)
addresses = st.sampled_from(
    [
        f"postgresql://me:PASSWORD@{CLOSED}/jobs",
        f"postgres://me:PASSWORD@{CLOSED}/jobs?sslmode=disable",
        f"postgresql+psycopg://me:PASSWORD@{CLOSED}/jobs",
        f"postgresql+psycopg2://me:PASSWORD@{CLOSED}/jobs",
        f"Postgresql://me:PASSWORD@{CLOSED}/jobs",
        f" postgresql://me:PASSWORD@{CLOSED}/jobs",
        f"postgresql://:PASSWORD@{CLOSED}/jobs",
        f"postgresql://me:PASSWORD@{CLOSED}",
        "postgresql://me:PASSWORD@127.0.0.1:port/jobs",
        "postgresql://me:PASSWORD@[::1]:1/jobs",
        "postgresql://me:PASSWORD@[::1/jobs",
        "postgresql://me:PASSWORD",
        f"postgresql://{CLOSED}/jobs?user=me&password=PASSWORD",
        f"postgresql://{CLOSED}/jobs?user=me&pasword=PASSWORD",
        f"postgresql:/me:PASSWORD@{CLOSED}/jobs",
        f"postgresql:me:PASSWORD@{CLOSED}/jobs",
        f"//me:PASSWORD@{CLOSED}/jobs",
        "mysql://me:PASSWORD@host/db",
        "host=127.0.0.1 port=1 user=me password=PASSWORD",
        "password = 'PASSWORD' dbname=jobs",
    ]
)
"""URLs as people write and miswrite them, none with a server behind it."""


def run(*arguments: str, queue: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env={VARIABLE: queue, "COLUMNS": "9999"})


def by_option(_: Path, address: str) -> Result:
    return run("jobs", f"--queue={address}")


def by_variable(_: Path, address: str) -> Result:
    return run("jobs", "cancel", "20200101-nobody", queue=address)


def by_file(folder: Path, address: str) -> Result:
    file = folder / "named.toml"
    file.write_text(f"queue = {json.dumps(address)}\n")
    file.chmod(0o600)
    return run("--config", str(file), "jobs", "pause")


def by_mistake_as_a_batch(folder: Path, address: str) -> Result:
    with open_queue(queue_place(f"{folder}/private/queue.db"), create=True):
        return run("jobs", "show", "--", address, queue=f"{folder}/private/queue.db")


def work(folder: Path) -> list[str]:
    return [str(folder / "in"), f"--model={folder}/model.safetensors", f"--output={folder}/out"]


def by_submit(folder: Path, address: str) -> Result:
    return run("submit", *work(folder), f"--queue={address}")


def by_watch(folder: Path, address: str) -> Result:
    assume(described(address).startswith("refused"))  # else it would go on until stopped
    return run("watch", *work(folder), f"--queue={address}")


def by_worker(_: Path, address: str) -> Result:
    assume(described(address).startswith("refused"))  # as above
    return run("worker", "--device", "cpu", f"--queue={address}")


def described(address: str) -> str:
    """The place as a message or a traceback would name it, or why there is none."""
    try:
        place = queue_place(address)
    except QueueError as error:
        return f"refused: {error}"
    return f"{place} {place!r}"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    made = tmp_path_factory.mktemp("world")
    scan(made / "in" / "a.nii")
    tiny_model(made / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)  # an address that is taken for a file's name is one there
        yield made


@settings(max_examples=examples(400), deadline=None)
@given(password=passwords, address=addresses, written=st.sampled_from([quote, str]))
def test_a_place_and_its_refusal_show_no_piece_of_a_password(
    password: str, address: str, written: "Callable[[str], str]"
) -> None:
    assert MARK not in described(address.replace("PASSWORD", written(password)))


@settings(max_examples=examples(40), deadline=None)
@given(
    command=st.sampled_from(
        [by_option, by_variable, by_file, by_submit, by_watch, by_worker, by_mistake_as_a_batch]
    ),
    password=passwords,
    address=addresses,
    written=st.sampled_from([quote, str]),
)
def test_no_output_holds_a_piece_of_a_password(
    folder: Path,
    command: "Callable[[Path, str], Result]",
    password: str,
    address: str,
    written: "Callable[[str], str]",
) -> None:
    done = command(folder, address.replace("PASSWORD", written(password)))
    assert MARK not in done.output
    assert done.exit_code == 2, done.output
    reported = [line for line in done.stderr.splitlines() if not line.startswith("Warning: ")]
    assert len(reported) == 1, reported


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(password=passwords, address=addresses, written=st.sampled_from([quote, str]))
def test_doctor_shows_none_either(
    password: str, address: str, written: "Callable[[str], str]"
) -> None:
    done = run("doctor", "--json", queue=address.replace("PASSWORD", written(password)))
    assert MARK not in done.output
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["subject"] == "Queue"]
    assert found["state"] == "failure"


PASSWORD = f"{MARK}:a/b@c%d"
BY_ADDRESS = f":{quote(PASSWORD, safe='')}"


@pytest.fixture(scope="module")
def locked_server() -> Generator[queue_postgres.Server]:
    """Server that lets `keeper` in only with a password."""
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        with psycopg.connect(server.url.replace("/jobs", "/postgres"), autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE ROLE keeper LOGIN PASSWORD {}").format(PASSWORD))
            admin.execute("CREATE DATABASE jobs OWNER keeper")
            rights = server.folder / "data" / "pg_hba.conf"
            known = rights.read_text()
            rights.write_text(f"host jobs keeper {server.address}/32 scram-sha-256\n{known}")
            admin.execute("SELECT pg_reload_conf()")
        eventually(lambda: not lets_in_without_a_password(server))
        yield server


def address_of(server: queue_postgres.Server, password: str = "") -> str:
    return f"postgresql://keeper{password}@{server.address}:{server.port}/jobs?connect_timeout=300"


def lets_in_without_a_password(server: queue_postgres.Server) -> bool:
    """Return whether the server lets users in without a password, as until it has read its rules
    again.
    """
    try:
        psycopg.connect(address_of(server)).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.process
@pytest.mark.parametrize("kept", ["in the address", "in a file"])
def test_a_password_in_the_address_or_in_libpqs_own_file_opens_the_queue(
    locked_server: queue_postgres.Server, tmp_path: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgpass"
    if kept == "in a file":
        escaped = PASSWORD.replace(":", "\\:")
        file.write_text(f"{locked_server.address}:*:*:keeper:{escaped}\n")
        file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    place = queue_place(address_of(locked_server, BY_ADDRESS if kept == "in the address" else ""))
    with open_tables(place, create=True) as tables, membership(tables, "cpu"):
        assert living_workers(tables) == 1
    monkeypatch.setattr(doctor_queue, "_LIMIT", "connect_timeout=300")  # as `address_of`
    monkeypatch.setattr(self_test, "_USUAL_ON_CPU", (24, 24, 24))
    monkeypatch.setattr(machine, "_MOST_BLOCKS", 1)
    shown = run("doctor", "--json", queue=address_of(locked_server, BY_ADDRESS))
    [found] = [one for one in json.loads(shown.stdout)["findings"] if one["subject"] == "Queue"]
    # The other tests of this server may have run before.
    assert re.search(r": [01] waiting, 0 running$", found["words"]), found
    assert MARK not in shown.output


def test_a_wrong_password_is_reported_without_it(locked_server: queue_postgres.Server) -> None:
    reported = run("jobs", f"--queue={address_of(locked_server, f':{MARK}')}")
    assert reported.exit_code == 2
    assert "password authentication failed" in reported.stderr
    assert MARK not in reported.output


def test_the_next_step_names_the_queue_without_its_password(
    locked_server: queue_postgres.Server, folder: Path
) -> None:
    reported = by_submit(folder, address_of(locked_server, BY_ADDRESS))
    assert reported.exit_code == 0, reported.output
    shown = f"postgresql://keeper:***@{locked_server.address}:{locked_server.port}/jobs"
    begin, look = reported.stderr.splitlines()[-2:]
    assert begin == f"To begin:     cuda-cyclegan worker --queue '{shown}'"
    assert look.endswith(f" --queue '{shown}'")
    assert MARK not in reported.output


@pytest.mark.parametrize("command", [by_option, by_variable, by_file, by_submit])
def test_without_psycopg_an_address_gets_a_sentence_that_names_the_extra(
    folder: Path, command: "Callable[[Path, str], Result]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    done = command(folder, f"postgresql://me:{MARK}@{CLOSED}/jobs")
    assert done.exit_code == 2, done.output
    *_, reported = done.stderr.splitlines()
    assert (
        "needs psycopg, which is not installed; run pip install 'cuda-cyclegan[postgres]'"
        in reported
    )
    assert MARK not in done.output


def test_without_psycopg_doctor_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    [found] = doctor_queue.examine_queue(f"postgresql://me:{MARK}@{CLOSED}/jobs")
    assert found.state == "failure"
    assert "needs psycopg" in found.words
    assert MARK not in f"{found}"


@pytest.mark.slow
def test_a_worker_that_finds_no_server_logs_no_password() -> None:
    address = f"postgresql://me:{MARK}@{CLOSED}/jobs"
    command = [*COMMAND, "worker", "--device", "cpu"]
    with started(
        command, env={**os.environ, VARIABLE: address}, stderr=subprocess.PIPE, text=True
    ) as worker:
        log = [worker.stderr.readline()]
        worker.terminate()
        log += worker.stderr.readlines()
    assert f"The queue postgresql://me:***@{CLOSED}/jobs does not answer" in log[0]
    assert MARK not in "".join(log)


def test_only_a_password_that_is_typed_is_warned_of(tmp_path: Path) -> None:
    address = f"postgresql://me:{MARK}@{CLOSED}/jobs"
    for typed in (address, f"postgresql://{CLOSED}/jobs?user=me&password={MARK}"):
        warned = run("jobs", "--queue", typed).stderr
        assert "Warning: other users of this machine can read the password" in warned
        assert "~/.pgpass" in warned
        assert VARIABLE in warned
    assert "Warning" not in run("jobs", queue=address).stderr
    assert "Warning" not in by_file(tmp_path, address).stderr
    assert "Warning" not in run("jobs", "--queue", f"postgresql://me@{CLOSED}/jobs").stderr
