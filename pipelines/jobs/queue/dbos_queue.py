"""Queues of version 0.2.0, which kept them in the tables of the library DBOS: moved once, by SQL.

Texts are read as JSON only, whatever a row is marked as: a pickle is never opened.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast
from zlib import crc32

from ...errors import QueueError
from .database import Database, Transaction
from .job import OPEN, JobState, json_object
from .liveness import locked_names
from .schedule import WITH_OTHERS, SchedulingClass

APPLICATION = "cuda-cyclegan"
STATES: Mapping[Any, JobState] = {
    "DELAYED": "waiting",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "done",
    "ERROR": "failed",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "given up",
    "CANCELLED": "cancelled",
}
"""States by their names in DBOS; any other one counts as failed, as in 0.2.0."""

NEWEST = (1 << 31) - 1
"""Version of DBOS's tables that 0.2.0 takes for one of a newer program, and refuses."""

_LOCKS = crc32(b"cuda-cyclegan workers") & 0x7FFFFFFF
"""Class of the advisory locks that workers of 0.2.0 hold on a server."""

_MANY = 1_000
"""Jobs that are in memory at once."""

_JOBS = """
SELECT workflow_uuid, status, queue_name, attributes, deduplication_id, priority,
    delay_until_epoch_ms, recovery_attempts, executor_id, owner_xid, created_at,
    started_at_epoch_ms, completed_at, updated_at, inputs.inputs, outputs.output
FROM {prefix}workflow_status AS jobs
LEFT JOIN {prefix}workflow_input AS inputs USING (workflow_uuid)
LEFT JOIN {prefix}workflow_output AS outputs USING (workflow_uuid)
WHERE workflow_uuid > :after ORDER BY workflow_uuid LIMIT :most
"""
_ADD_BATCH = "INSERT INTO {batches} (batch, joins, about) VALUES (:batch, :joins, :about)"
_ADD_JOB = """
INSERT INTO {jobs} (
    batch, number, state, work, priority, hours, turn, due, deferred, tries, worker, token,
    submitted, started, ended, changed, transfers
) VALUES (
    :batch, :number, :state, :work, :priority, :hours, :turn, :due, :deferred, :tries, :worker,
    :token, :submitted, :started, :ended, :changed, :transfers
)
"""
_ADD_PAYLOAD = """
INSERT INTO {payloads} (batch, number, payload, result)
VALUES (:batch, :number, :payload, :result)
"""


def prefix_of(database: Database) -> str:
    """Return what stands before the names of DBOS's tables."""
    return "" if database.place.file else "dbos."


def is_of_dbos(database: Database, transaction: Transaction) -> bool:
    """Return whether there is a queue of version 0.2.0. Raises QueueError if it cannot be moved."""
    prefix = prefix_of(database)
    if not database.has_table(transaction, f"{prefix}workflow_status"):
        return False
    if database.place.file:
        return True
    owners = {
        owner
        for table in ("workflow_status", "queues")
        for (owner,) in transaction.rows(f"SELECT DISTINCT application_name FROM {prefix}{table}")
    }
    if owners > {APPLICATION}:
        raise QueueError(
            f"The queue {database.place} is of version 0.2.0 and shares its tables with another "
            "program that uses DBOS, so it cannot be moved; run its jobs with 0.2.0, and give a "
            "database of its own with setting queue."
        )
    return APPLICATION in owners


def move_jobs(database: Database, transaction: Transaction) -> None:
    """Move all jobs to the present tables, and drop those of DBOS. Raises QueueError."""
    prefix = prefix_of(database)
    if not database.place.file:
        transaction.change(f"LOCK TABLE {prefix}workflow_status IN ACCESS EXCLUSIVE MODE")
    if living := _living(database, transaction):
        raise QueueError(
            f"The queue {database.place} is of version 0.2.0, and workers of that version run on "
            f"it ({living}); stop them, as well as its watch and node, and repeat this command, "
            "which moves the queue to this version."
        )
    moved = _Moved()
    for rows in _portions(transaction, prefix):
        jobs = [moved.job(row) for row in rows]
        transaction.change_each(_ADD_BATCH, moved.new_batches())
        transaction.change_each(_ADD_JOB, jobs)
        transaction.change_each(_ADD_PAYLOAD, jobs)
    if transaction.value(f"SELECT count(*) FROM {prefix}queues WHERE name = 'paused'"):
        transaction.change("INSERT INTO {meta} (name, value) VALUES ('paused', 'yes')")
    if database.place.file:
        for table in _tables(transaction):
            transaction.change(f'DROP TABLE "{table}"')
    else:
        transaction.change("DROP SCHEMA dbos CASCADE")


def leave_mark(database: Database, transaction: Transaction) -> None:
    """Have 0.2.0 refuse the queue as one of a newer program, instead of making its own tables."""
    table = f"{prefix_of(database)}dbos_migrations"
    if not database.place.file:
        transaction.change("CREATE SCHEMA IF NOT EXISTS dbos")
    if not database.has_table(transaction, table):
        transaction.change(f"CREATE TABLE {table} (version INTEGER NOT NULL PRIMARY KEY)")
        transaction.change(f"INSERT INTO {table} (version) VALUES ({NEWEST})")


def _living(database: Database, transaction: Transaction) -> int:
    """Return the number of living workers of 0.2.0."""
    if database.place.file:
        return len(locked_names(database.place))
    return transaction.value(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = :number "
        "AND objsubid = 2",
        number=_LOCKS,
    )


def _portions(transaction: Transaction, prefix: str) -> Iterator[list[tuple[Any, ...]]]:
    query, after = _JOBS.replace("{prefix}", prefix), ""
    while rows := transaction.rows(query, after=after, most=_MANY):
        yield rows
        after = rows[-1][0]


def _tables(transaction: Transaction) -> list[str]:
    """Return the tables of DBOS in a file; the last one is that to which others refer."""
    query = (
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE "
        "'!' AND name NOT IN ('batches', 'jobs', 'meta', 'payloads', 'workers')"
    )
    found = [name for (name,) in transaction.rows(query)]
    return sorted(found, key=lambda name: name == "workflow_status")


class _Moved:
    """Batches and keys of open work that were moved so far; both are unique from now on."""

    def __init__(self) -> None:
        self._batches = set[str]()
        self._new = list[dict[str, Any]]()
        self._joins, self._open = set[str](), set[str]()

    def new_batches(self) -> list[dict[str, Any]]:
        """Return the batches since the last call."""
        new, self._new = self._new, []
        return new

    def job(self, row: tuple[Any, ...]) -> dict[str, Any]:
        """Return the columns of a job."""
        name, status, queue, attributes, key, turn, due, tries, worker, token = row[:10]
        submitted, started, ended, changed, inputs, output = row[10:]
        is_read = isinstance(attributes, dict)  # by the server's driver
        known = cast("dict[str, Any]", attributes) if is_read else json_object(attributes)
        batch, _, number = str(name).partition("/")
        if not number.isdecimal():
            batch, number = str(name), "0"
        state = STATES.get(status, "failed")
        scheduling = SchedulingClass.parse(str(queue or known.get("lane")))
        self._add_batch(batch, known)
        work = key if isinstance(key, str) else known.get("work")
        deferred, passed = known.get("put off"), known.get("passages")
        return {
            "batch": batch,
            "number": int(number),
            "state": state,
            "work": self._once(work, state) if isinstance(work, str) else None,
            "priority": scheduling.priority,
            "hours": scheduling.window,
            "turn": turn if isinstance(turn, int) and turn else WITH_OTHERS,
            "due": due,
            "deferred": json.dumps(deferred) if isinstance(deferred, str) else None,
            "tries": tries if isinstance(tries, int) else 0,
            "worker": worker,
            "token": (token or name) if state == "running" else None,
            "submitted": submitted,
            "started": started,
            "ended": ended if state in OPEN else ended or changed,
            "changed": changed,
            "transfers": json.dumps(passed) if isinstance(passed, dict) else None,
            "payload": _payload(inputs),
            "result": output,
        }

    def _once(self, work: str, state: JobState) -> str | None:
        """Return the key of a job's work; None if an equal one is open already."""
        if state in OPEN:
            if work in self._open:
                return None
            self._open.add(work)
        return work

    def _add_batch(self, batch: str, known: Mapping[str, Any]) -> None:
        if batch in self._batches:
            return
        self._batches.add(batch)
        joins = known.get("joins")
        if not isinstance(joins, str) or joins in self._joins:
            joins = None
        else:
            self._joins.add(joins)
        about = {name: known[name] for name in ("name", "route", "established") if name in known}
        self._new.append({"batch": batch, "joins": joins, "about": json.dumps(about)})


def _payload(inputs: Any) -> str:
    """Return the job's text as submitted, or "" if it cannot be read."""
    match json_object(inputs):
        case {"positionalArgs": [str(payload), *_]}:
            return payload
        case _:
            return ""
