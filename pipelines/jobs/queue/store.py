"""The queue's database: DBOS's durable workflows, in a SQLite file or on PostgreSQL.

DBOS's own runner is not used: a worker decides at each moment whether it may take a job (windows of
the day, pauses, a busy GPU, a stop), but the runner claims by itself, has one concurrency for all
hosts, and unpickles rows that are marked as pickles. Nothing here does: inputs and outputs are read
as JSON only.
"""

import logging
import os
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer, WorkflowStatus
from dbos._migration import get_migration_versions, get_sqlite_migration_versions
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from ....io.files.locks import wait_for_lock
from ...errors import QueueError, QueueLostError
from .job import JobState, json_object
from .location import QueuePlace, check_private, make_private
from .schedule import SchedulingClass

STATES: dict[str, JobState] = {
    "DELAYED": "waiting",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "done",
    "ERROR": "failed",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "given up",
    "CANCELLED": "cancelled",
}
NAMES = {state: name for name, state in STATES.items()}

PASSED, DEFERRED, JOINS, WORK = "passages", "put off", "joins", "work"
"""Attributes of a job: the intervals that a node recorded, why the job was last deferred, what
the jobs of a batch have in common that later submissions join, and the key of its work."""

PRIVATE: Mapping[str, Mapping[str, str]] = {
    "workflow_status": {
        "workflow_uuid": "the job's name, by which a claim finds it",
        "status": "a claim, completion or retry sets it in one statement with the rest",
        "owner_xid": "the claim's token: a worker that was replaced must not end a job",
        "executor_id": "the worker, whose jobs go back to the queue if it dies",
        "recovery_attempts": "counts crashes only, so a released claim is subtracted",
        "priority": "jobs that are tried alone go first, deferred ones last",
        "queue_name": "the scheduling class, which run-now and retry change",
        "deduplication_id": "the work's key, which a workflow resumed by the client loses",
        "started_at_epoch_ms": "a claim sets it by the database's clock",
        "completed_at": "a completion sets it by the database's clock",
        "updated_at": "a waiting job's time is void if that clock was set back since",
        "delay_until_epoch_ms": "the client computes it by this host's clock, or job by job",
        "created_at": "the oldest job of a class goes first, also within a second",
        "application_name": "other applications may share the database",
        "application_version": "DBOS's own runner takes only jobs of its version",
        "attributes": "batches are counted with their names, without loading each job",
    },
    "workflow_input": {
        "workflow_uuid": "as above",
        "inputs": "the client unpickles it if the row is marked so, whatever its serializer",
    },
    "workflow_output": {
        "workflow_uuid": "as above",
        "output": "written with the completion; read as JSON only, as inputs are",
    },
}
"""Tables and columns of DBOS that SQL in this package names, each with the reason why the public
client does not do. The only other private names are `get_migration_versions` and
`get_sqlite_migration_versions`, which detect the queue of a newer program."""

SCHEMA = "dbos"
"""Schema of the tables on a server; SQLite has none."""

_MOST_CONNECTIONS = 5
_BUSY_MS, _IDLE_MS = 30_000, 60_000
"""Milliseconds that SQLite waits for another writer, and a server for a frozen transaction."""

APPLICATION = "cuda-cyclegan"
PAUSED = "paused"
"""Name of the DBOS queue that is registered while all work is paused."""

_JULIAN_DAY_OF_1970 = 2440587.5

_READ_ONLY = "25006"
"""SQLSTATE of a write to a read-only PostgreSQL server, such as a standby during a failover."""

VERSION = "1"
"""Application version in DBOS, which must stay the same over our releases: a DBOS worker takes only
jobs of its own version."""


@contextmanager
def open_tables(place: QueuePlace, *, create: bool) -> Generator["QueueTables"]:
    """Open a queue's tables for the block. Raises QueueError.

    create: make the queue if there is none, and migrate an older one.
    """
    if place.file and create:
        make_private(place.file)
    elif place.file:
        check_private(place.file)
        if not place.file.exists():
            raise QueueError(
                f"There is no queue at {place.file} yet; submit studies first, or give another "
                "queue with setting queue, or its config file with setting config."
            )
    logging.getLogger("dbos").setLevel(logging.CRITICAL)  # all errors are raised too
    engine = _engine(place)
    client = DBOSClient(
        system_database_engine=engine,
        dbos_system_schema=SCHEMA,
        serializer=DBOSPortableJSONSerializer(),
        application_name=APPLICATION,
        lazy=True,
        retry_connection_errors=False,
        observability_query_timeout_sec=0,  # none: a listing may take its time
    )
    try:
        tables = QueueTables(place, engine, client)
        tables.prepare(create=create)
        yield tables
    finally:
        client.destroy()
        engine.dispose()


def _engine(place: QueuePlace) -> sa.Engine:
    """Create the engine, which connects on first use.

    Damaged text or JSON is decoded as far as possible, so that one damaged job stops no other.
    """
    url = sa.make_url(place.url)
    engine = sa.create_engine(
        url if place.file else url.set(drivername="postgresql+psycopg"),
        json_deserializer=json_object,
        pool_size=_MOST_CONNECTIONS,
        max_overflow=0,
        pool_pre_ping=True,
    )
    event.listen(engine, "connect", _begin_file if place.file else _begin_session)
    return engine


def _begin_file(connection: Any, _record: Any) -> None:
    connection.isolation_level = "IMMEDIATE"  # writers wait for each other
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")


def _begin_session(connection: Any, _record: Any) -> None:
    connection.execute(f"SET idle_in_transaction_session_timeout = {_IDLE_MS}")
    connection.commit()


class QueueTables:
    """Open tables of a queue, made by `open_tables`.

    client: public client of DBOS, for everything that it can do. jobs, inputs, outputs: tables for
    SQL, with one row per job.
    """

    def __init__(self, place: QueuePlace, engine: sa.Engine, client: DBOSClient) -> None:
        self.place = place
        self.client = client
        self._engine = engine
        self.jobs, self.inputs, self.outputs = (
            sa.table(name, *map(sa.column, columns), schema=None if place.file else SCHEMA)
            for name, columns in PRIVATE.items()
        )

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """Open a connection in a transaction."""
        return self._engine.begin()

    @contextmanager
    def translating_errors(self) -> Generator[None]:
        """Raise database errors of the block as QueueLostError or QueueError.

        After QueueLostError, connections to a server are made anew: a standby may have taken over.
        """
        try:
            yield
        except (SQLAlchemyError, OSError) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            said = (error.strerror if isinstance(error, OSError) else None) or str(cause)
            why = " ".join(said.split())[:200]
            is_read_only = getattr(cause, "sqlstate", None) == _READ_ONLY
            is_cut_off = getattr(error, "connection_invalidated", False)
            if isinstance(error, OperationalError) or is_read_only or is_cut_off:
                if self.place.file is None:
                    self._engine.dispose()
                raise QueueLostError(
                    f"The queue {self.place} does not answer ({why}); check that its disk or "
                    "server is available, has free space and locks, and is writable for this user."
                ) from error
            raise QueueError(
                f"The queue {self.place} cannot be used ({why}); repair it, or give another file "
                "on a local disk with setting queue."
            ) from error

    def read(self, query: Any) -> Sequence[Any]:
        """Return all rows of a query."""
        with self.begin() as connection:
            return connection.execute(query).fetchall()

    def change(
        self,
        where: Sequence[Any],
        values: Mapping[str, Any],
        within: sa.Connection | None = None,
    ) -> int:
        """Update the jobs that meet all conditions, and return their number.

        within: connection whose transaction the update joins.
        """
        values = {**values, "updated_at": self.now()}
        update = sa.update(self.jobs).where(*where).values(values)
        with nullcontext(within) if within else self.begin() as connection:
            return connection.execute(update).rowcount

    def annotate(self, row: WorkflowStatus, **attributes: Any) -> None:
        """Add attributes to a job that `list_jobs` returned, or replace them.

        The client can merge attributes itself, but raises for a damaged row of SQLite.
        """
        self.client.update_workflow_attributes(
            row.workflow_id, {**(row.attributes or {}), **attributes}
        )

    def list_jobs(
        self,
        batch: str,
        states: Collection[JobState] = (),
        *,
        among: Sequence[str] = (),
        ended_after: datetime | None = None,
    ) -> list[WorkflowStatus]:
        """Return the jobs of a batch, or the one `<batch>/<number>`, in order; "" is any batch.

        states, among: only jobs in one of these states, or with one of these names, if given.
        ended_after: by the database's clock.
        """
        found = self.client.list_workflows(
            workflow_ids=[batch] if "/" in batch else [*among] or None,
            workflow_id_prefix=f"{batch}/" if batch and "/" not in batch else None,
            status=[NAMES[state] for state in states] or None,
            completed_after=ended_after.isoformat() if ended_after else None,
            application_name=APPLICATION,
            load_input=False,
            load_output=False,
        )
        return sorted(found, key=lambda row: row.workflow_id)

    def now(self) -> Any:
        """Return an expression for the database's clock, in milliseconds since 1970."""
        if self.place.file:
            days_since_1970 = sa.func.julianday("now") - _JULIAN_DAY_OF_1970
            return sa.cast(days_since_1970 * 86_400_000, sa.BigInteger)
        return sa.cast(sa.func.extract("epoch", sa.func.now()) * 1000, sa.BigInteger)

    def database_time(self, here: datetime) -> int:
        """Convert a time of this host's clock to milliseconds of the database's clock.

        The difference of the clocks is rounded to seconds, so that a full minute stays one.
        """
        [(now,)] = self.read(sa.select(self.now()))
        ahead = round(now / 1000 - time.time())
        return int((here.timestamp() + ahead) * 1000)

    def of_batch(self, batch: str, states: Collection[JobState] = ()) -> list[Any]:
        """Return conditions for jobs of a batch, or the one `<batch>/<number>`; "" is any batch.

        states: only jobs in one of these states, if given.
        """
        jobs = self.jobs.c
        where = [jobs.application_name == APPLICATION]
        if "/" in batch:
            where.append(jobs.workflow_uuid == batch)
        elif batch:
            where.append(jobs.workflow_uuid.startswith(f"{batch}/", autoescape=True))
        if states:
            where.append(jobs.status.in_([NAMES[state] for state in states]))
        return where

    def queue_names(self) -> set[str]:
        """Return the names of the registered scheduling classes, and PAUSED if work is paused."""
        with self.translating_errors():
            return {queue.name for queue in self.client.list_queues()}

    def is_paused(self) -> bool:
        """Return whether no job may start."""
        with self.translating_errors():
            return self.client.retrieve_queue(PAUSED) is not None

    def register(self, scheduling: SchedulingClass) -> None:
        """Register a scheduling class, so that workers look for its jobs."""
        self.client.register_queue(
            str(scheduling), worker_concurrency=1, on_conflict="never_update"
        )

    def _make(self) -> None:
        file = self.place.file
        if not file:
            DBOS.migrate(self.place.url)
            return
        with _alone(file):
            if self._is_made():
                return
            with self.begin() as connection:
                connection.execute(sa.text("PRAGMA journal_mode=WAL"))
            DBOS.migrate(self.place.url)

    def prepare(self, *, create: bool) -> None:
        """Check that the tables exist in this version. Raises QueueError."""
        with self.translating_errors():
            if create and not self._is_made():
                self._make()
            stored, current = self._versions()
        if stored > current:
            raise QueueError(
                f"The queue {self.place} was created by a newer version of cuda-cyclegan; update "
                "this one, or give another queue with setting queue."
            )
        if stored < current:
            raise QueueError(
                f"The queue {self.place} is empty or of an older version; submit a study to bring "
                "it up to date."
            )

    def _versions(self) -> tuple[int, int]:
        """Return the version of the tables, 0 if there are none, and the version DBOS expects."""
        if self.place.file:
            return get_sqlite_migration_versions(self._engine)
        return get_migration_versions(self._engine, SCHEMA, use_listen_notify=True)

    def _is_made(self) -> bool:
        try:
            stored, current = self._versions()
        except SQLAlchemyError:
            return False  # the server may lack the database itself
        return stored >= current


@contextmanager
def _alone(file: Path) -> Generator[None]:
    """Hold the lock for making the tables: SQLite changes its journal mode for one process only."""
    turn = os.open(file.with_name(f"{file.name}.making"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        wait_for_lock(turn)
        yield
    finally:
        os.close(turn)


def state_of(status: Any) -> JobState:
    """Return a job's state; an unknown status of DBOS counts as failed."""
    return STATES.get(status, "failed")


def payload_of(inputs: Any) -> str:
    """Return the job's text as submitted, or "" if it cannot be read."""
    match json_object(inputs):
        case {"positionalArgs": [str(payload), *_]}:
            return payload
        case _:
            return ""


def seconds_of(milliseconds: Any) -> float | None:
    """Return a time in seconds since 1970, or None if there is none."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None


def whole(number: Any) -> int:
    """Return a count, or 0 if there is none."""
    return number if isinstance(number, int) else 0
