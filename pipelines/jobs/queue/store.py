"""The queue's tables: DBOS's durable workflows, in a SQLite file or on PostgreSQL.

DBOS's own runner is not used: a worker must decide at each moment whether it may take a job
(windows of the day, pauses, a busy card, a stop), and the runner claims by itself. Rows are never
decoded by DBOS: one may be marked as a pickle, which would be executed.
"""

import logging
import math
import os
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer
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

PASSED, PUT_OFF = "passages", "put off"
"""The attributes of a job that hold its passages, and why it was put off the last time."""


class Internals:
    """The database behind a client.

    engine: of SQLAlchemy. jobs, inputs, outputs: the tables `workflow_status`, `workflow_input` and
    `workflow_output`, each with a row a job.
    """

    def __init__(self, client: DBOSClient) -> None:
        self._database: Any = client._sys_db  # pyright: ignore[reportPrivateUsage]
        self.engine: Any = self._database.engine
        self.jobs: Any = self._database.tables.workflow_status
        self.inputs: Any = self._database.tables.workflow_input
        self.outputs: Any = self._database.tables.workflow_output

    def now(self) -> Any:
        """The database's clock in milliseconds, as an expression."""
        return self._database._now_ms_sql()

    def versions(self) -> tuple[int, int]:
        """Of the tables: the version they have, 0 if there are none, and the one DBOS knows."""
        schema = self._database.schema
        if schema is None:  # SQLite has none
            return get_sqlite_migration_versions(self.engine)
        return get_migration_versions(self.engine, schema, self._database.use_listen_notify)

    def end(self, job: str, state: str, output: str, token: str) -> bool:
        """Record a running job's end and output; False, and no record, if the token is not its."""
        return self._database.update_workflow_outcome(job, state, output=output, owner_xid=token)


APPLICATION = "cuda-cyclegan"
PAUSED = "paused"
"""While all work is paused, a queue of this name is registered."""

SLACK_SECONDS = 60.0
"""Clocks are set back by up to so much without any job counting as due for that."""

_READ_ONLY = "25006"
"""SQLSTATE of a write to a PostgreSQL server that takes none, as a standby during a failover."""

VERSION = "1"
"""DBOS lets a worker take only jobs of its own version: this stays the same over our releases."""


@contextmanager
def open_tables(place: QueuePlace, *, create: bool) -> Generator["QueueTables"]:
    """A queue's tables, with its connections for the block. Raises QueueError.

    create: make the queue if there is none, and bring an older one's tables up to date.
    """
    if place.file and create:
        make_private(place.file)
    elif place.file:
        check_private(place.file)
        if not place.file.exists():
            raise QueueError(
                f"There is no queue at {place.file} yet; submit some studies, or name another "
                "queue with setting queue."
            )
    logging.getLogger("dbos").setLevel(logging.CRITICAL)  # whatever goes wrong is raised too
    with _translating_errors(place):
        client = DBOSClient(
            system_database_url=place.url,
            serializer=DBOSPortableJSONSerializer(),
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )
    try:
        tables = QueueTables(place, client)
        tables.prepare(create=create)
        yield tables
    finally:
        client.destroy()


@contextmanager
def _translating_errors(place: QueuePlace) -> Generator[None]:
    """Turn what the database raises in the block into QueueLostError or QueueError."""
    try:
        yield
    except (DBAPIError, SQLAlchemyError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        said = (error.strerror if isinstance(error, OSError) else None) or str(cause)
        why = " ".join(said.split())[:200]
        is_read_only = getattr(cause, "sqlstate", None) == _READ_ONLY
        is_cut_off = getattr(error, "connection_invalidated", False)
        if isinstance(error, OperationalError) or is_read_only or is_cut_off:
            raise QueueLostError(
                f"The queue {place} does not answer ({why}); see that its disk or server is there, "
                "has room and locks, and lets this user write."
            ) from error
        raise QueueError(
            f"The queue {place} cannot be used ({why}); put it right, or name another, a file on a "
            "local disk, with setting queue."
        ) from error


class QueueTables:
    """Open tables, made by `open_tables`. jobs, inputs, outputs: with a row a job each."""

    def __init__(self, place: QueuePlace, client: DBOSClient) -> None:
        self.place = place
        self.client = client
        self.dbos = Internals(client)
        self.jobs, self.inputs, self.outputs = self.dbos.jobs, self.dbos.inputs, self.dbos.outputs
        if place.file:
            event.listen(self.dbos.engine, "connect", _read_damaged_text)

    def begin(self) -> AbstractContextManager[Any]:
        """A connection in a transaction."""
        return self.dbos.engine.begin()

    @contextmanager
    def translating_errors(self) -> Generator[None]:
        """Turn what the database raises in the block into QueueLostError or QueueError.

        After the former, connections to a server are made anew: another may have taken over.
        """
        try:
            with _translating_errors(self.place):
                yield
        except QueueLostError:
            if self.place.file is None:
                self.dbos.engine.dispose()
            raise

    def read(self, query: Any) -> Sequence[Any]:
        """All rows of a query."""
        with self.begin() as connection:
            return connection.execute(query).fetchall()

    def change(
        self,
        where: Sequence[Any],
        values: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Update the jobs for which all of `where` holds; how many that were.

        each: do so for each of these sets of bound parameters, all in one transaction.
        """
        with self.begin() as connection:
            return self.change_within(connection, where, values, each)

    def change_within(
        self,
        connection: Any,
        where: Sequence[Any],
        values: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """As `change`, in a transaction that has begun."""
        values = {**values, "updated_at": self.now()}
        update = sa.update(self.jobs).where(*where).values(values)
        if each is not None and not each:
            return 0
        return connection.execute(update, each).rowcount

    def attributes(self, job: str) -> dict[str, Any]:
        """What is noted about a job, as it was submitted and since; empty if there is none."""
        about = sa.select(sa.cast(self.jobs.c.attributes, sa.Text))
        rows = self.read(about.where(self.jobs.c.workflow_uuid == job))
        return json_object(rows[0][0]) if rows else {}

    def now(self) -> Any:
        """The database's clock in milliseconds, for all hosts alike."""
        return self.dbos.now()

    def moment(self, here: datetime) -> int:
        """Convert a moment by this host's clock to milliseconds by the database's clock.

        Rounded up to whole seconds of difference, as SQLite's clock is truncated to them.
        """
        [(now,)] = self.read(sa.select(self.now()))
        ahead = math.ceil(now / 1000 - time.time())
        return int((here.timestamp() + ahead) * 1000)

    def is_due(self) -> Any:
        """Condition that a waiting job's time has come.

        Also if more than the whole delay is left, as the clock was set back since the job began to
        wait, which is when it was updated last.
        """
        was_set_back = self.jobs.c.updated_at > self.now() + int(SLACK_SECONDS * 1000)
        return sa.or_(self.jobs.c.delay_until_epoch_ms <= self.now(), was_set_back)

    def are(self, states: Collection[JobState]) -> Any:
        """The condition that a job is in one of these states."""
        return self.jobs.c.status.in_([NAMES[state] for state in states])

    def of_batch(self, batch: str, states: Collection[JobState] = ()) -> list[Any]:
        """The conditions that a job is of a batch, or the one `<batch>/<number>`; "" is any.

        states: only those in one of them, if any is named.
        """
        jobs = self.jobs.c
        where = [jobs.application_name == APPLICATION]
        if "/" in batch:
            where.append(jobs.workflow_uuid == batch)
        elif batch:
            where.append(jobs.workflow_uuid.startswith(f"{batch}/", autoescape=True))
        return [*where, self.are(states)] if states else where

    def names(self) -> set[str]:
        """Of the scheduling classes that are registered, and of the pause."""
        with self.translating_errors():
            return {queue.name for queue in self.client.list_queues()}

    def is_paused(self) -> bool:
        """Whether no job may start."""
        return PAUSED in self.names()

    def register(self, scheduling: SchedulingClass) -> None:
        """Let workers know of a scheduling class."""
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
        """See that the tables are there, and of this version. Raises QueueError."""
        with self.translating_errors():
            if create and not self._is_made():
                self._make()
            made, known = self.dbos.versions()
        if made > known:
            raise QueueError(
                f"The queue {self.place} was made by a newer version of cuda-cyclegan; update this "
                "one, or name another queue with setting queue."
            )
        if made < known:
            raise QueueError(
                f"The queue {self.place} is empty or of an older version; submit a study to bring "
                "it up to date."
            )

    def _is_made(self) -> bool:
        try:
            made, known = self.dbos.versions()
        except SQLAlchemyError:
            return False  # the server may lack the database itself
        return made >= known


@contextmanager
def _alone(file: Path) -> Generator[None]:
    """One at a time makes the tables: SQLite does not change its journal beside others."""
    turn = os.open(file.with_name(f"{file.name}.making"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        wait_for_lock(turn)
        yield
    finally:
        os.close(turn)


def _read_damaged_text(connection: Any, _record: Any) -> None:
    """Have SQLite give text that is no UTF-8 in place of an error, which would stop all work."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")


def state_of(status: Any) -> JobState:
    """A job's state; one that is none of DBOS's is past any help."""
    return STATES.get(status, "failed")


def payload_of(inputs: Any) -> str:
    """The job's text, as it was submitted; "" if it cannot be read."""
    match json_object(inputs):
        case {"positionalArgs": [str(payload), *_]}:
            return payload
        case _:
            return ""


def seconds_of(milliseconds: Any) -> float | None:
    """A moment in seconds since 1970; None if there is none."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None


def whole(number: Any) -> int:
    """A count; 0 if there is none."""
    return number if isinstance(number, int) else 0
