"""Access to a queue's database by plain DB-API: a SQLite file, or a PostgreSQL server.

Statements are written once for both: values as `:name`, and in braces the names of tables and what
the databases spell differently (`WORDS` of each). A transaction that writes waits for its turn in
SQLite; on PostgreSQL it sees what others have committed before each statement.
"""

import os
import re
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

from ....io.files.locks import wait_for_lock
from ...errors import QueueError, QueueLostError
from .location import QueuePlace, check_private, make_private, postgres_driver

TABLES = ("batches", "jobs", "meta", "payloads", "workers")
BUSY_SECONDS = 30.0
"""Seconds that SQLite waits for another writer."""
IDLE_SECONDS = 60.0
"""Seconds after which a server ends the transaction of a frozen process."""
OLDEST_SQLITE = (3, 35)
"""The first with RETURNING, by which one statement claims a job."""

_VALUE = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")
_READ_ONLY = "25006"
"""SQLSTATE of a write to a read-only PostgreSQL server, such as a standby during a failover."""
_DEADLOCK = "40P01"
"""SQLSTATE of a transaction that PostgreSQL ended to resolve a deadlock."""


class ConflictError(Exception):
    """A change would break a constraint, such as that equal work is open once."""


class DeadlockError(QueueLostError, ConflictError):
    """Two transactions on a server waited for each other, and it ended this one.

    A conflict for those who try again, and a lost transaction for all others.
    """


class Transaction:
    """Statements of one transaction, all or none of which are kept."""

    def __init__(self, cursor: Any, database: "Database") -> None:
        self._cursor, self._database = cursor, database

    def rows(self, statement: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        self._cursor.execute(self._database.spelled(statement), values)
        return self._cursor.fetchall()

    def row(self, statement: str, /, **values: Any) -> tuple[Any, ...] | None:
        """Return the only row of a statement, or None."""
        found = self.rows(statement, **values)
        return found[0] if found else None

    def value(self, statement: str, /, **values: Any) -> Any:
        """Return the only value of a statement; None if it has no row."""
        found = self.row(statement, **values)
        return found[0] if found else None

    def change(self, statement: str, /, **values: Any) -> int:
        """Return the number of rows that a statement changed."""
        self._cursor.execute(self._database.spelled(statement), values)
        return self._cursor.rowcount

    def change_each(self, statement: str, values: Sequence[Mapping[str, Any]]) -> int:
        """Return the number of rows that a statement changed, over all sets of values."""
        if not values:
            return 0
        self._cursor.executemany(self._database.spelled(statement), values)
        return self._cursor.rowcount

    def now(self) -> int:
        """Return the database's time, in milliseconds since 1970."""
        return self.value("SELECT {now}")


class Database(ABC):
    """Open database of a queue; its transactions may run in several threads at once."""

    WORDS: ClassVar[Mapping[str, str]]

    def __init__(self, place: QueuePlace, driver: Any) -> None:
        self.place = place
        self._driver = driver
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections that no transaction uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(self._driver.Error):
                connection.close()

    @contextmanager
    def reading(self) -> Generator[Transaction]:
        """Run the block as a transaction that only reads. Raises as `writing`."""
        with self._transaction("BEGIN") as transaction:
            yield transaction

    @contextmanager
    def writing(self) -> Generator[Transaction]:
        """Run the block as a transaction. Raises QueueLostError, QueueError or ConflictError."""
        with self._transaction(self.WORDS["begin"]) as transaction:
            yield transaction

    @contextmanager
    def _transaction(self, begin: str) -> Generator[Transaction]:
        connection = None
        try:
            connection = self._taken()
            yield Transaction(connection.execute(begin), self)
            connection.commit()
        except BaseException as error:
            is_ours = isinstance(error, self._driver.Error)
            said = self._translated(error, connection) if is_ours else error
            if connection is not None:
                with suppress(self._driver.Error):
                    connection.rollback()
                with suppress(self._driver.Error):
                    connection.close()
            if said is error:
                raise
            raise said from error
        with self._lock:
            self._idle.append(connection)

    def _taken(self) -> Any:
        """Return an idle connection that answers, or a new one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connected()
            if self._answers(connection):
                return connection

    def _translated(self, error: BaseException, connection: Any) -> Exception:
        if isinstance(error, self._driver.IntegrityError):
            return ConflictError(str(error))
        why = " ".join(str(error).split())[:200]
        if getattr(error, "sqlstate", None) == _DEADLOCK:
            return DeadlockError(f"A change of queue {self.place} was undone ({why}); try again.")
        if not self._is_lost(error, connection):
            return self.unusable(why)
        self.close()  # another server may have taken over
        return QueueLostError(
            f"The queue {self.place} does not answer ({why}); check that its disk or server is "
            "available, has free space and locks, and is writable for this user."
        )

    def unusable(self, why: str) -> QueueError:
        """Return the error of a database that a user must repair."""
        return QueueError(
            f"The queue {self.place} cannot be used ({why}); repair it, or give another file on a "
            "local disk with setting queue."
        )

    def spelled(self, statement: str) -> str:
        """Return a statement as this database spells it."""
        return statement.format_map(self.WORDS)

    @abstractmethod
    def _connected(self) -> Any: ...

    def _answers(self, connection: Any) -> bool:  # noqa: ARG002
        """Return whether an idle connection can still be used."""
        return True

    def _is_lost(self, error: BaseException, connection: Any) -> bool:  # noqa: ARG002
        """Return whether trying again later may help. connection: None if there was none."""
        return isinstance(error, self._driver.OperationalError)

    @abstractmethod
    def prepare(self, *, create: bool) -> None:
        """Check that there is a database. create: make it if there is none. Raises QueueError."""

    @abstractmethod
    def making(self) -> AbstractContextManager[Transaction]:
        """Run the block as a transaction that makes tables, one process at a time."""

    @abstractmethod
    def has_table(self, transaction: Transaction, name: str) -> bool:
        """Return whether a table exists. name: with its schema on a server."""


class SqliteDatabase(Database):
    """Queue in a file. Raises QueueError if the installed SQLite is too old.

    Damaged text is decoded as far as possible, so that one damaged job stops no other.
    """

    WORDS: ClassVar[Mapping[str, str]] = {
        **{name: name for name in TABLES},
        "begin": "BEGIN IMMEDIATE",
        "now": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
        "locked": "",
        "skip_locked": "",
    }

    def __init__(self, place: QueuePlace, file: Path) -> None:
        super().__init__(place, sqlite3)
        self._file = file
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise QueueError(
                f"This Python has SQLite {sqlite3.sqlite_version}, but a queue needs 3.35 or "
                "later; use a newer Python, or a queue on a PostgreSQL server with setting queue."
            )

    def _connected(self) -> Any:
        connection = sqlite3.connect(
            self._file,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # not so in all builds
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        return connection

    def prepare(self, *, create: bool) -> None:
        file = self._file
        if create:
            make_private(file)
            return
        check_private(file)
        if not file.exists():
            raise QueueError(
                f"There is no queue at {file} yet; submit studies first, or give another queue "
                "with setting queue, or its config file with setting config."
            )

    @contextmanager
    def making(self) -> Generator[Transaction]:
        """Run the block as a transaction; from then on readers need not wait for writers.

        It holds a lock of its own, as SQLite changes its journal mode for one process only.
        """
        with ExitStack() as stack:
            try:
                turn = os.open(f"{self._file}.making", os.O_CREAT | os.O_RDWR, 0o600)
                stack.callback(os.close, turn)
                wait_for_lock(turn)
            except OSError as error:
                raise self.unusable(error.strerror or str(error)) from error
            try:
                with closing(self._connected()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.Error as error:
                raise self._translated(error, None) from error
            yield stack.enter_context(self.writing())

    def has_table(self, transaction: Transaction, name: str) -> bool:
        query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name"
        return transaction.value(query, name=name) is not None


SCHEMA = "cuda_cyclegan"
"""Schema of the tables on a server."""
MAKING = crc32(b"cuda-cyclegan tables")
"""Advisory lock on a server under which the tables are made."""


class PostgresDatabase(Database):
    """Queue on a PostgreSQL server. Raises QueueError without psycopg."""

    WORDS: ClassVar[Mapping[str, str]] = {
        **{name: f"{SCHEMA}.{name}" for name in TABLES},
        "begin": "BEGIN",
        "now": "CAST(extract(epoch FROM now()) * 1000 AS BIGINT)",
        "locked": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    }

    def __init__(self, place: QueuePlace) -> None:
        super().__init__(place, postgres_driver())

    def _connected(self) -> Any:
        connection = self._driver.connect(self.place.url, autocommit=True)
        seconds = int(IDLE_SECONDS)
        connection.execute(f"SET idle_in_transaction_session_timeout = '{seconds}s'")
        return connection

    def _answers(self, connection: Any) -> bool:
        try:
            connection.execute("SELECT 1")
        except self._driver.Error:
            connection.close()
            return False
        return True

    def _is_lost(self, error: BaseException, connection: Any) -> bool:
        is_closed = connection is not None and connection.closed
        is_read_only = getattr(error, "sqlstate", None) == _READ_ONLY
        return is_closed or is_read_only or super()._is_lost(error, connection)

    def spelled(self, statement: str) -> str:
        return _VALUE.sub(r"%(\1)s", super().spelled(statement))

    def has_table(self, transaction: Transaction, name: str) -> bool:
        return transaction.value("SELECT to_regclass(:name)", name=name) is not None

    @contextmanager
    def making(self) -> Generator[Transaction]:
        with self.writing() as transaction:
            transaction.rows("SELECT pg_advisory_xact_lock(:number)", number=MAKING)
            transaction.change(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            yield transaction

    def prepare(self, *, create: bool) -> None:
        """Create the database if the server has none of its name, and lets this user."""
        if not create:
            return
        driver = self._driver
        try:
            driver.connect(self.place.url).close()
        except driver.OperationalError:
            with suppress(driver.Error):  # the next connection reports what is wrong
                self._create_database()

    def _create_database(self) -> None:
        """Create the database by a connection to the server's own one, unless it exists by now."""
        conninfo, sql = self._driver.conninfo, self._driver.sql
        name = str(conninfo.conninfo_to_dict(self.place.url)["dbname"])
        url = conninfo.make_conninfo(self.place.url, dbname="postgres")
        with closing(self._driver.connect(url, autocommit=True)) as server:
            server.execute("SELECT pg_advisory_lock(%s)", [MAKING])
            known = "SELECT count(*) FROM pg_database WHERE datname = %s"
            if server.execute(known, [name]).fetchone() == (0,):
                server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
