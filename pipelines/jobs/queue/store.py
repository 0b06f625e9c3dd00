"""Tables of the queue: their layout and its versions, and what users and workers read of them."""

import re
import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ...errors import QueueError
from ...program import program_version
from . import dbos_queue
from .database import Database, PostgresDatabase, SqliteDatabase, Transaction
from .job import OPEN, JobState
from .location import QueuePlace

OPEN_STATES = f"state IN ({', '.join(map(repr, OPEN))})"
"""Condition for open jobs, in the words of the index, as SQLite requires."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE {meta} (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE TABLE {batches} (
            batch TEXT PRIMARY KEY,
            joins TEXT UNIQUE,
            about TEXT NOT NULL
        )""",
        f"""CREATE TABLE {{jobs}} (
            batch TEXT NOT NULL REFERENCES {{batches}} (batch),
            number INTEGER NOT NULL,
            state TEXT NOT NULL CHECK (
                {OPEN_STATES} OR state IN ('done', 'failed', 'given up', 'cancelled')
            ),
            work TEXT,
            priority TEXT NOT NULL,
            hours TEXT NOT NULL,
            lane TEXT GENERATED ALWAYS AS (rtrim(priority || ' ' || hours)) STORED,
            turn INTEGER NOT NULL,
            due BIGINT,
            deferred TEXT,
            tries INTEGER NOT NULL,
            worker TEXT,
            token TEXT CHECK (token IS NOT NULL OR state <> 'running'),
            submitted BIGINT NOT NULL,
            started BIGINT,
            ended BIGINT CHECK (ended IS NOT NULL OR {OPEN_STATES}),
            changed BIGINT NOT NULL,
            transfers TEXT,
            PRIMARY KEY (batch, number)
        )""",
        """CREATE TABLE {payloads} (
            batch TEXT NOT NULL,
            number INTEGER NOT NULL,
            payload TEXT NOT NULL,
            result TEXT,
            PRIMARY KEY (batch, number)
        )""",
        """CREATE TABLE {workers} (
            worker TEXT PRIMARY KEY,
            beats BIGINT NOT NULL,
            seen BIGINT NOT NULL
        )""",
        f"CREATE UNIQUE INDEX open_work ON {{jobs}} (work) WHERE {OPEN_STATES}",
        """CREATE INDEX next_jobs ON {jobs} (lane, turn, submitted, batch, number)
            WHERE state = 'queued'""",
        "CREATE INDEX waiting_jobs ON {jobs} (due) WHERE state = 'waiting'",
        "CREATE UNIQUE INDEX claims ON {jobs} (token) WHERE state = 'running'",
        "CREATE INDEX states ON {jobs} (batch, state, submitted)",
        "CREATE INDEX ends ON {jobs} (ended)",
    ),
)
"""Statements that bring the tables from each version to the next one. Never change a line: append.

batches: joins: what later submissions to the batch have in common; about: name, route, how the
model's reading was verified and the results of its reference set, as JSON. jobs: work: key of the
work, which is open once; priority, hours: scheduling class; lane: its text; turn: order within the
lane; due: earliest start of a waiting job, none if it is held; deferred: why it was last deferred,
as JSON; token: of the claim; changed: last change, by which a clock that was set back is detected;
transfers: intervals that a node recorded, as JSON. Payloads and results are apart, so that a change
of state does not write them again. workers, on a server only: beats: counter that proves life;
seen: time of the last beat. All times are in milliseconds since 1970, by the database's clock.
Texts from outside are JSON: they may hold what is no Unicode. payloads has no foreign key:
PostgreSQL keeps the plan of such a check from when a table was small, with which 4,000 further jobs
took 11 s instead of 4.
"""

VERSION = len(MIGRATIONS)

_NAME = re.compile(r"[\w-]+(/(\d{5}|[1-9]\d{5,8}))?", re.ASCII)


@contextmanager
def open_tables(place: QueuePlace, *, create: bool) -> Generator[Database]:
    """Open a queue's tables for the block, and bring those of an older version up to date.

    create: make the queue if there is none. Raises QueueError.
    """
    database = SqliteDatabase(place, place.file) if place.file else PostgresDatabase(place)
    try:
        database.prepare(create=create)
        _update(database, create=create)
        yield database
    finally:
        database.close()


def _update(database: Database, *, create: bool) -> None:
    """Make the tables, or bring older ones up to date. Raises QueueError."""
    with database.reading() as transaction:
        stored = _version(database, transaction)
        if stored > VERSION:
            maker = meta(transaction, "program") or "a newer version"
            raise QueueError(
                f"The queue {database.place} was made by cuda-cyclegan {maker}, which is newer "
                f"than this one ({program_version()}); update this one, or give another queue with "
                "setting queue."
            )
        if not (create or stored or dbos_queue.is_of_dbos(database, transaction)):
            raise QueueError(f"The queue {database.place} is empty; submit a study to begin it.")
    if stored < VERSION:
        with database.making() as transaction:
            _migrate(database, transaction)


def _migrate(database: Database, transaction: Transaction) -> None:
    stored = _version(database, transaction)
    for statements in MIGRATIONS[stored:]:
        for statement in statements:
            transaction.change(statement)
    if stored == 0:
        if dbos_queue.is_of_dbos(database, transaction):
            dbos_queue.move_jobs(database, transaction)
        dbos_queue.leave_mark(database, transaction)
    set_meta(transaction, "version", str(VERSION))
    set_meta(transaction, "program", program_version())


def _version(database: Database, transaction: Transaction) -> int:
    """Return the version of the tables; 0 if there are none."""
    if not database.has_table(transaction, database.WORDS["meta"]):
        return 0
    return int(meta(transaction, "version") or 0)


def meta(transaction: Transaction, name: str) -> str | None:
    """Return a fact about the queue as a whole."""
    return transaction.value("SELECT value FROM {meta} WHERE name = :name", name=name)


def set_meta(transaction: Transaction, name: str, value: str) -> None:
    """Record a fact about the queue as a whole."""
    transaction.change(
        "INSERT INTO {meta} (name, value) VALUES (:name, :value) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name=name,
        value=value,
    )


def of_batch(batch: str) -> tuple[str, dict[str, Any]]:
    """Return a condition for the jobs of a batch, or the one `<batch>/<number>`, and its values; ""
    is any batch.
    """
    if not batch:
        return "TRUE", {}
    if not _NAME.fullmatch(batch):
        return "FALSE", {}
    name, _, number = batch.partition("/")
    if number:
        return "batch = :batch AND number = :number", {"batch": name, "number": int(number)}
    return "batch = :batch", {"batch": name}


def in_states(states: Collection[JobState]) -> str:
    """Return a condition for jobs in one of some states; none means any."""
    return f"state IN ({', '.join(map(repr, sorted(states)))})" if states else "TRUE"


def database_time(transaction: Transaction, here: datetime) -> int:
    """Convert a time of this host's clock to milliseconds of the database's clock.

    The difference of the clocks is rounded to seconds, so that a full minute stays one.
    """
    return int((here.timestamp() + _ahead(transaction)) * 1000)


def host_time(transaction: Transaction, milliseconds: int) -> datetime:
    """Convert a time of the database's clock to this host's clock, as `database_time` does."""
    return datetime.fromtimestamp(milliseconds / 1000 - _ahead(transaction)).astimezone()


def _ahead(transaction: Transaction) -> int:
    return round(transaction.now() / 1000 - time.time())
