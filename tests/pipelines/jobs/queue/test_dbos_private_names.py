"""What the queue takes of DBOS beyond its public client, by name: a new release that changes one
fails here first."""

import importlib
import inspect
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import sqlalchemy as sa
from dbos import WorkflowStatusString

from cuda_cyclegan.pipelines.jobs.queue import claims, store
from cuda_cyclegan.pipelines.jobs.queue.store import PRIVATE, STATES, QueueTables

ROOT = Path(__file__).parents[4]
PACKAGE = Path(store.__file__).parent.resolve()

COLUMNS = {
    "workflow_status": {
        *("workflow_uuid", "status", "attributes", "recovery_attempts", "executor_id"),
        *("created_at", "updated_at", "started_at_epoch_ms", "delay_until_epoch_ms"),
        *("completed_at", "queue_name", "deduplication_id", "priority", "owner_xid"),
        *("application_name", "application_version"),
    },
    "workflow_input": {"workflow_uuid", "inputs"},
    "workflow_output": {"workflow_uuid", "output"},
}


@pytest.mark.parametrize("table", COLUMNS)
def test_a_table_that_dbos_makes_has_the_columns(tables: QueueTables, table: str) -> None:
    schema = None if tables.place.file else store.SCHEMA
    with tables.begin() as connection:
        made = sa.inspect(connection).get_columns(table, schema=schema)
    assert COLUMNS[table] <= {column["name"] for column in made}


def test_a_row_of_an_output_needs_nothing_else(tables: QueueTables) -> None:
    schema = None if tables.place.file else store.SCHEMA
    with tables.begin() as connection:
        made = sa.inspect(connection).get_columns("workflow_output", schema=schema)
    needed = {one["name"] for one in made if not one["nullable"] and one["default"] is None}
    assert needed <= COLUMNS["workflow_output"]


def test_each_private_name_has_a_reason() -> None:
    assert {table: set(columns) for table, columns in PRIVATE.items()} == COLUMNS
    assert all(reason for columns in PRIVATE.values() for reason in columns.values())


@pytest.mark.parametrize("column", sorted(set().union(*COLUMNS.values())))
def test_a_private_name_is_used(column: str) -> None:
    used = re.compile(rf"\.{column}\b|\b{column}=|\"{column}\": (?!\")")
    assert any(used.search(path.read_text()) for path in PACKAGE.glob("*.py"))


def test_all_states_are_dbos_s() -> None:
    assert set(STATES) == {state.value for state in WorkflowStatusString}


def test_a_claim_has_an_index_in_its_very_words(tables: QueueTables) -> None:
    schema = None if tables.place.file else store.SCHEMA
    words = str(claims.IN_FLIGHT)
    query = "SELECT sql FROM sqlite_master WHERE type = 'index'"
    if schema:
        pytest.skip("PostgreSQL compares what the words mean")
    made = [sql for (sql,) in tables.read(sa.text(query)) if sql]
    found = [sql for sql in (sql.replace('"', "") for sql in made) if words in sql]
    assert any("(queue_name, status, priority, created_at" in sql for sql in found)


@pytest.mark.parametrize(
    ("name", "parameters"),
    {
        "get_sqlite_migration_versions": ["engine"],
        "get_migration_versions": ["engine", "schema", "use_listen_notify"],
    }.items(),
)
def test_the_migrations_have_the_function(name: str, parameters: list[str]) -> None:
    function = getattr(importlib.import_module("dbos._migration"), name)
    assert list(inspect.signature(function).parameters) == parameters


def test_nothing_else_of_dbos_is_private() -> None:
    """In one module, one line; neither its other modules nor the client's database are named."""
    private = re.compile(r"dbos\._\w+|import dbos\b|_sys_db\b|client\._\w+")
    sources = [
        path
        for folder in ("cli", "engine", "io", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 100
    found = [(path.name, name) for path in sources for name in private.findall(path.read_text())]
    assert found == [("store.py", "dbos._migration")]


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
