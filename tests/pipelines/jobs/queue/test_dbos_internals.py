"""What the queue takes of DBOS beyond its public client, by name: an update says what broke."""

import importlib
import inspect
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import dbos
import pytest

from cuda_cyclegan.pipelines.jobs.queue.store import Internals

ROOT = Path(__file__).parents[4]

COLUMNS = {
    "workflow_status": {
        *("workflow_uuid", "status", "attributes", "recovery_attempts", "executor_id"),
        *("created_at", "updated_at", "started_at_epoch_ms", "delay_until_epoch_ms"),
        *("completed_at", "queue_name", "deduplication_id", "priority", "owner_xid"),
        *("application_name", "application_version", "serialization"),
    },
    "workflow_input": {"workflow_uuid", "inputs"},
    "workflow_output": {"workflow_uuid", "output"},
}


@pytest.fixture
def database(tmp_path: Path) -> Any:
    client = dbos.DBOSClient(system_database_url=f"sqlite:///{tmp_path}/queue.db", lazy=True)
    assert hasattr(client, "_sys_db")
    return client._sys_db  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("table", "columns"), COLUMNS.items(), ids=COLUMNS)
def test_a_table_has_the_columns(database: Any, table: str, columns: set[str]) -> None:
    assert columns <= {column.name for column in getattr(database.tables, table).c}


@pytest.mark.parametrize("name", ["engine", "schema", "use_listen_notify", "tables"])
def test_a_database_has_the_attribute(database: Any, name: str) -> None:
    assert hasattr(database, name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    {
        "_now_ms_sql": [],
        "update_workflow_outcome": ["workflow_id", "status", "output", "owner_xid"],
    }.items(),
)
def test_a_database_has_the_method(name: str, parameters: list[str]) -> None:
    found = inspect.signature(
        getattr(importlib.import_module("dbos._sys_db").SystemDatabase, name)
    ).parameters
    assert set(parameters) <= found.keys()


@pytest.mark.parametrize(
    ("name", "parameters"),
    {
        "get_sqlite_migration_versions": ["engine"],
        "get_migration_versions": ["engine", "schema", "use_listen_notify"],
    }.items(),
)
def test_the_migrations_have_the_function(name: str, parameters: list[str]) -> None:
    assert (
        list(
            inspect.signature(getattr(importlib.import_module("dbos._migration"), name)).parameters
        )
        == parameters
    )


def test_nothing_else_of_dbos_is_private() -> None:
    """Everywhere else, neither its private modules nor the client's database are named."""
    private = re.compile(r"dbos\._|import dbos\b|_sys_db\b|_now_ms_sql|_migration\b")
    own = Path(inspect.getfile(Internals)).resolve()
    sources = [
        path
        for folder in ("cli", "engine", "io", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        if path.resolve() != own
    ]
    assert len(sources) > 100
    assert [path.name for path in sources if private.search(path.read_text())] == []


def test_what_is_imported_along_with_dbos_is_declared_with_its_floors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ours = {_name(wanted): wanted for wanted in project["dependencies"]}
    its = {_name(wanted): wanted for wanted in requires("dbos") or () if ";" not in wanted}
    for name in ("sqlalchemy", "psycopg"):
        assert _floor(ours[name]) == _floor(its[name])


def _name(wanted: str) -> str:
    return re.split(r"[\[<>=;! ]", wanted)[0].lower()


def _floor(wanted: str) -> str:
    return wanted.partition(">=")[2].partition(",")[0]
