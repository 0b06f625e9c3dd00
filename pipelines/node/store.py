"""Store of the node's records: one SQLite file, which the node owns and other processes may read.

It is in WAL mode: readers do not delay the node, and a commit takes one flush of the disk. A commit
is on disk before the call returns, unless the method says otherwise; a power failure then loses at
most the last records, whose work is repeated. A node's folder is on a local disk.
"""

import errno
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeAlias

from ...io.dicom_network.storage_commitment import Commitment, Referenced
from ...io.files.atomic import whole_file
from ...io.files.own_files import open_own
from ..errors import ConfigError
from .records import Attempt, Gaps, PendingReport, ReportKey, SeriesRecord, StudyRecord

NAME = "node.db"
DAMAGED = "node-damaged.db"
REMEMBERED_SECONDS = 365 * 86400.0
"""Time for which a removed study is remembered."""
_RESERVED = 1 << 20
"""Bytes kept free in the file, and in its WAL, so that records fit on a full disk."""
_CHECKPOINT_PAGES = 200
"""Pages in the WAL that start a checkpoint; they take less than `_RESERVED`."""
_BUSY_SECONDS = 10.0
"""Time to wait for another process, such as `node --release`."""

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE study (
            study TEXT PRIMARY KEY, objects TEXT NOT NULL, images INTEGER NOT NULL,
            arrived REAL NOT NULL, looked REAL NOT NULL, rounds INTEGER NOT NULL,
            left_out TEXT NOT NULL, emptied REAL NOT NULL, refused INTEGER NOT NULL,
            broke_off INTEGER NOT NULL, held REAL NOT NULL, until REAL NOT NULL,
            released INTEGER NOT NULL DEFAULT 0)""",
        """CREATE TABLE series (
            study TEXT NOT NULL REFERENCES study, label TEXT NOT NULL, round INTEGER NOT NULL,
            files TEXT NOT NULL, images INTEGER NOT NULL, job TEXT NOT NULL, key TEXT NOT NULL,
            state TEXT NOT NULL, reason TEXT NOT NULL, queued REAL NOT NULL, done REAL NOT NULL,
            sent REAL NOT NULL, received TEXT NOT NULL, begun REAL NOT NULL, others TEXT NOT NULL,
            remark TEXT NOT NULL)""",
        "CREATE INDEX series_of_study ON series (study)",
        """CREATE TABLE confirmed (
            series TEXT NOT NULL, instance TEXT NOT NULL, PRIMARY KEY (series, instance))
            WITHOUT ROWID""",
        """CREATE TABLE report (
            route TEXT NOT NULL, title TEXT NOT NULL, transaction_uid TEXT NOT NULL,
            moment REAL NOT NULL, referenced TEXT NOT NULL,
            PRIMARY KEY (route, title, transaction_uid))""",
        """CREATE TABLE refused (
            study TEXT NOT NULL, image TEXT NOT NULL, PRIMARY KEY (study, image))
            WITHOUT ROWID""",
        "CREATE TABLE open_transfer (study TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
    ),
    (
        """CREATE TABLE fetched (
            study TEXT NOT NULL PRIMARY KEY, objects TEXT NOT NULL, moment REAL NOT NULL)
            WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE attempt (
            series TEXT NOT NULL, instance TEXT NOT NULL, tries INTEGER NOT NULL,
            is_open INTEGER NOT NULL, PRIMARY KEY (series, instance))
            WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE commitment (
            transaction_uid TEXT NOT NULL PRIMARY KEY, study TEXT NOT NULL, place TEXT NOT NULL,
            moment REAL NOT NULL) WITHOUT ROWID""",
    ),
    (
        "ALTER TABLE series ADD COLUMN model TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE series ADD COLUMN destination TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE series ADD COLUMN rejects TEXT NOT NULL DEFAULT ''",
    ),
)
"""Statements that lead from each version of the file to the next, the first from an empty one."""
VERSION = len(_MIGRATIONS)
_TABLES = (
    *("study", "series", "confirmed", "attempt", "report", "refused", "open_transfer", "fetched"),
    "commitment",
)

_STUDY = tuple(field.name for field in fields(StudyRecord) if field.name != "series")
_SERIES = tuple(field.name for field in fields(SeriesRecord))
_OF_OBJECT = "series = ? AND instance = ?"
_OF_KEY = "route = ? AND title = ? AND transaction_uid = ?"
_LISTS = {"left_out", "received", "others"}
"""Columns that are JSON lists."""


@contextmanager
def open_store(folder: Path, now: float) -> Generator["NodeStore"]:
    """Open the store of a folder that this process owns, for the block.

    now: seconds since 1970. Raises OSError, WriteError or ConfigError.
    """
    path = folder / NAME
    problems: list[str] = []
    if not path.exists():
        _create(path, {})
    os.close(open_own(path, os.O_RDWR))
    with _os_errors(path):
        if _is_damaged(path):
            _rescue(path)
            problems.append(
                f"{path} is damaged. Records are lost, and studies may be translated and sent "
                "again, with the same identifiers; check the disk. The file as it was is kept as "
                f"{DAMAGED}."
            )
        connection = _connection(path)
    with closing(NodeStore(path, connection, problems)) as store:
        store.prepare(now)
        yield store


@contextmanager
def read_store(folder: Path) -> Generator["NodeStore"]:
    """Open the store of a folder for reading, whoever owns it.

    Raises ConfigError if no node ever had the folder, or OSError.
    """
    path = folder / NAME
    if path.exists():
        with _os_errors(path):
            connection = _connection(path, "?mode=ro")
            _check_version(path, connection)
    else:
        raise ConfigError(
            f"No node has used folder {folder} yet; start one, or give the folder of a node with "
            "setting folder."
        )
    with closing(NodeStore(path, connection, ())) as store:
        yield store


class NodeStore:
    """Open store; all methods are thread-safe.

    A failed write raises OSError and changes nothing. problems: found when it was opened.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, problems: Sequence[str]) -> None:
        self.problems = problems
        self._path, self._connection = path, connection
        self._lock = threading.RLock()
        self._present: dict[str, StudyRecord] = {}

    def prepare(self, now: float) -> None:
        """Make the file ready for work. Raises ConfigError or OSError."""
        if self._rows("PRAGMA journal_mode = WAL") != [("wal",)]:
            raise ConfigError(
                f"The disk of the node's folder {self._path.parent} has no shared memory, as many "
                "network disks; choose a folder on a local disk with setting folder."
            )
        with self._lock, _os_errors(self._path):
            _migrate(self._connection)
        with self._writing() as connection:
            old = now - REMEMBERED_SECONDS
            connection.execute("DELETE FROM study WHERE emptied > 0 AND emptied < ?", (old,))
            connection.execute("DELETE FROM series WHERE study NOT IN (SELECT study FROM study)")
            connection.execute("DELETE FROM fetched WHERE moment < ?", (old,))
        self._present = {record.study: record for record in self._studies("WHERE NOT emptied")}
        self._reserve()

    def _reserve(self) -> None:
        """Let the file and its WAL grow, and free the pages, unless the disk is full already."""
        try:
            with self._writing() as connection:
                connection.execute("CREATE TABLE reserve (bytes BLOB)")
                connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (_RESERVED,))
                connection.execute("DROP TABLE reserve")
            self._rows("PRAGMA wal_checkpoint(PASSIVE)")
        except OSError:
            with suppress(OSError):
                self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file; later calls raise OSError."""
        with self._lock:
            self._connection.close()

    # Studies and their series

    def names(self) -> list[str]:
        """Return the names of all studies."""
        return [name for (name,) in self._rows("SELECT study FROM study ORDER BY rowid")]

    def studies(self) -> list[StudyRecord]:
        """Return all studies, removed ones too, in the order of their arrival."""
        return self._studies()

    def present(self) -> list[StudyRecord]:
        """Return the studies that were not removed, from memory."""
        with self._lock:
            return list(self._present.values())

    def study(self, name: str) -> StudyRecord | None:
        """Return one study, removed or not."""
        with self._lock:
            found = self._present.get(name)
            return found or next(iter(self._studies("WHERE study = ?", name)), None)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other threads from changing records between reading and writing them."""
        with self._lock:
            yield

    def put(self, *records: StudyRecord) -> None:
        """Store studies. If they follow from earlier reads, call this within `alone`."""
        with self._lock:
            with self._writing() as connection:
                _put(connection, records)
                removed = [(record.study,) for record in records if record.emptied]
                connection.executemany("DELETE FROM commitment WHERE study = ?", removed)
            for record in records:
                if record.emptied:
                    self._present.pop(record.study, None)
                else:
                    self._present[record.study] = record

    def change(self, name: str, changed: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        """Store what `changed` makes of a study."""
        with self._lock:
            before = self.study(name)
            assert before is not None
            record = changed(before)
            self.put(record)
            return record

    def _studies(self, where: str = "", *values: object) -> list[StudyRecord]:
        with self._lock:
            studies = self._rows(
                f"SELECT {_names(_STUDY)} FROM study {where} ORDER BY rowid", *values
            )
            known = {name for _, name, *_ in self._rows("PRAGMA table_info(series)")}
            columns = [name for name in _SERIES if name in known]  # an older file has fewer
            series = self._rows(
                f"SELECT study, {_names(columns)} FROM series "
                f"WHERE study IN (SELECT study FROM study {where}) ORDER BY rowid",
                *values,
            )
        of_study: dict[str, list[SeriesRecord]] = {}
        with _os_errors(self._path):
            for name, *row in series:
                of_study.setdefault(name, []).append(SeriesRecord(**_fields(columns, row)))
            return [
                StudyRecord(**_fields(_STUDY, row), series=tuple(of_study.get(row[0], ())))
                for row in studies
            ]

    # Objects that destinations have confirmed

    def confirmed(self, series: str) -> Collection[str]:
        """Return the UIDs of the confirmed objects of a result."""
        found = self._rows("SELECT instance FROM confirmed WHERE series = ?", series)
        return {instance for (instance,) in found}

    def confirmations(self) -> dict[str, int]:
        """Return the number of confirmed objects of each result that is not sent as a whole."""
        return dict(self._rows("SELECT series, count(*) FROM confirmed GROUP BY series"))

    def confirm(self, series: str, instance: str) -> None:
        """Note that a destination has an object; on disk with the next other record."""
        with self._writing(is_durable=False) as connection:
            connection.execute("INSERT OR IGNORE INTO confirmed VALUES (?, ?)", (series, instance))
            connection.execute(f"DELETE FROM attempt WHERE {_OF_OBJECT}", (series, instance))

    def attempts(self, series: str) -> dict[str, Attempt]:
        """Return the attempts to send objects of a result that are not confirmed, by UID."""
        query = "SELECT instance, tries, is_open FROM attempt WHERE series = ?"
        return {
            instance: Attempt(tries, bool(is_open))
            for instance, tries, is_open in self._rows(query, series)
        }

    def put_attempts(
        self, series: str, attempts: Mapping[str, Attempt], *, is_durable: bool = True
    ) -> None:
        """Store attempts to send objects of a result, by UID."""
        with self._writing(is_durable=is_durable) as connection:
            _put_attempts(connection, series, attempts)

    def forget_confirmations(self, series: str) -> None:
        """Forget the objects of a result that was sent as a whole; as durable as `confirm`."""
        with self._writing(is_durable=False) as connection:
            for table in ("confirmed", "attempt"):
                connection.execute(f"DELETE FROM {table} WHERE series = ?", (series,))

    # Requests for storage commitment, of all objects of a result

    def put_request(self, transaction: str, study: str, place: str) -> None:
        """Note a request that is about to be sent, so that a report finds it."""
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO commitment VALUES (?, ?, ?, 0.0)", (transaction, study, place)
            )

    def accept_request(self, transaction: str, moment: float) -> None:
        """Note when the destination accepted a request, unless its report has come already."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE commitment SET moment = ? WHERE transaction_uid = ?", (moment, transaction)
            )

    def requested(self, transaction: str) -> tuple[str, str] | None:
        """Return study and place of the result of a request."""
        query = "SELECT study, place FROM commitment WHERE transaction_uid = ?"
        return next((tuple(row) for row in self._rows(query, transaction)), None)

    def request_moments(self) -> dict[str, list[float]]:
        """Return the times at which requests were accepted, 0 for others, by name of a result."""
        found: dict[str, list[float]] = {}
        for study, place, moment in self._rows("SELECT study, place, moment FROM commitment"):
            found.setdefault(f"{study}/{place}", []).append(moment)
        return found

    def forget_request(self, transaction: str) -> None:
        """Forget one request, which was refused."""
        with self._writing(is_durable=False) as connection:
            connection.execute("DELETE FROM commitment WHERE transaction_uid = ?", (transaction,))

    def forget_requests(self, study: str, place: str) -> None:
        """Forget the requests for a result; a report on them no longer counts."""
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM commitment WHERE study = ? AND place = ?", (study, place)
            )

    def send_again(self, series: str, attempts: Mapping[str, Attempt]) -> None:
        """Note that objects are to be sent again. attempts: earlier ones, by UID."""
        with self._writing() as connection:
            for instance in attempts:
                connection.execute(f"DELETE FROM confirmed WHERE {_OF_OBJECT}", (series, instance))
            _put_attempts(connection, series, attempts)

    # Studies fetched from DICOMweb servers

    def fetched(self, study: str) -> str:
        """Return the hash of the objects that were listed when a study was fetched, or ""."""
        rows = self._rows("SELECT objects FROM fetched WHERE study = ?", study)
        return str(rows[0][0]) if rows else ""

    def put_fetched(self, study: str, objects: str, moment: float) -> None:
        """Note that a study was fetched. objects: hash of those that were listed."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO fetched VALUES (?, ?, ?)", (study, objects, moment)
            )

    # Pending reports of storage commitment

    def put_report(self, report: PendingReport) -> None:
        """Store a report."""
        with self._writing() as connection:
            _put_reports(connection, [report])

    def report_moments(self) -> dict[ReportKey, float]:
        """Return the times of the requests for all reports, the first first."""
        rows = self._rows(
            "SELECT route, title, transaction_uid, moment FROM report ORDER BY moment, rowid"
        )
        return {ReportKey(*key): moment for *key, moment in rows}

    def report(self, key: ReportKey) -> PendingReport | None:
        """Return one report."""
        query = f"SELECT moment, referenced FROM report WHERE {_OF_KEY}"
        for moment, referenced in self._rows(query, *astuple(key)):
            objects = tuple(Referenced(*pair) for pair in json.loads(referenced))
            commitment = Commitment(key.transaction, objects)
            return PendingReport(key.route, key.title, moment, commitment)
        return None

    def remove_report(self, key: ReportKey) -> None:
        """Remove a report; after a power failure it may be there once more."""
        with self._writing(is_durable=False) as connection:
            connection.execute(f"DELETE FROM report WHERE {_OF_KEY}", astuple(key))

    # Gaps and releases

    def gaps(self) -> Gaps:
        """Return the gaps of all studies."""
        refused: dict[str, set[str]] = {}
        for study, image in self._rows("SELECT study, image FROM refused"):
            refused.setdefault(study, set()).add(image)
        return Gaps(refused, {study for (study,) in self._rows("SELECT study FROM open_transfer")})

    def open_transfer(self, study: str) -> None:
        """Note that a transfer has begun."""
        with self._writing() as connection:
            connection.execute("INSERT OR IGNORE INTO open_transfer VALUES (?)", (study,))

    # The following are on disk, in this order, with the next record that is.

    def close_transfer(self, study: str) -> None:
        """Note that all transfers of a study have ended in order."""
        with self._writing(is_durable=False) as connection:
            connection.execute("DELETE FROM open_transfer WHERE study = ?", (study,))

    def refuse(self, study: str, image: str) -> None:
        """Note that an image was refused."""
        with self._writing(is_durable=False) as connection:
            connection.execute("INSERT OR IGNORE INTO refused VALUES (?, ?)", (study, image))

    def accept(self, study: str, image: str) -> None:
        """Note that an image that was refused before has arrived."""
        with self._writing(is_durable=False) as connection:
            connection.execute("DELETE FROM refused WHERE study = ? AND image = ?", (study, image))

    def forget_gaps(self, study: str) -> None:
        """Forget the gap of a study."""
        with self._writing(is_durable=False) as connection:
            for table in ("open_transfer", "refused"):
                connection.execute(f"DELETE FROM {table} WHERE study = ?", (study,))
            connection.execute("UPDATE study SET released = 0 WHERE study = ?", (study,))

    def hold_again(self, study: str) -> None:
        """Forget that a study was released."""
        if self.is_released(study):
            with self._writing(is_durable=False) as connection:
                connection.execute("UPDATE study SET released = 0 WHERE study = ?", (study,))

    def is_released(self, study: str) -> bool:
        """Whether a user has released a study."""
        return bool(self._rows("SELECT 1 FROM study WHERE study = ? AND released", study))

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._lock, _os_errors(self._path):
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self, *, is_durable: bool = True) -> Generator[sqlite3.Connection]:
        """Commit what the block writes, all or nothing. Raises OSError."""
        with self._lock, _os_errors(self._path), _committed(self._connection, is_durable):
            yield self._connection


def release(folder: Path, names: Iterable[str]) -> None:
    """Note that a user has released held studies, whoever owns the folder. Raises OSError."""
    path = folder / NAME
    with (
        _os_errors(path),
        closing(_connection(path)) as connection,
        _committed(connection, is_durable=True),
    ):
        for name in names:
            connection.execute("UPDATE study SET released = 1 WHERE study = ?", (name,))


def _connection(path: Path, parameters: str = "") -> sqlite3.Connection:
    """Open a connection, to be used by one thread at a time."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}{parameters or '?mode=rw'}",
        uri=True,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    return connection


@contextmanager
def _committed(connection: sqlite3.Connection, is_durable: bool) -> Generator[None]:
    connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _os_errors(path: Path) -> Generator[None]:
    """Raise OSError for errors of SQLite, and for values that no record has."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        number = errno.ENOSPC if is_full else errno.EIO
        raise OSError(number, os.strerror(number) if is_full else str(error), str(path)) from error


def _create(path: Path, rows: "Mapping[str, Sequence[_Row]]") -> None:
    """Write a new file, whole or not at all. rows: its first ones, by table. Raises WriteError."""
    with whole_file(path) as part:
        part.chmod(0o600)
        with _os_errors(part), closing(_connection(part)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")  # the file is flushed as a whole
            connection.execute("PRAGMA synchronous = OFF")
            _migrate(connection)
            _fill(connection, rows)


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the current version."""
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in (*statements, f"PRAGMA user_version = {number}"):
            connection.execute(statement)
        connection.execute("COMMIT")


def _put(connection: sqlite3.Connection, records: Iterable[StudyRecord]) -> None:
    changes = ", ".join(f"{name} = excluded.{name}" for name in _STUDY)
    for record in records:
        connection.execute(
            f"INSERT INTO study ({_names(_STUDY)}) VALUES ({_marks(_STUDY)}) "
            f"ON CONFLICT (study) DO UPDATE SET {changes}",
            _values(record, _STUDY),
        )
        connection.execute("DELETE FROM series WHERE study = ?", (record.study,))
        connection.executemany(
            f"INSERT INTO series (study, {_names(_SERIES)}) VALUES (?, {_marks(_SERIES)})",
            [(record.study, *_values(one, _SERIES)) for one in record.series],
        )


def _put_attempts(
    connection: sqlite3.Connection, series: str, attempts: Mapping[str, Attempt]
) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO attempt VALUES (?, ?, ?, ?)",
        [(series, instance, *astuple(one)) for instance, one in attempts.items()],
    )


def _put_reports(connection: sqlite3.Connection, reports: Iterable[PendingReport]) -> None:
    for report in reports:
        objects = [(one.sop_class, one.instance) for one in report.commitment.referenced]
        connection.execute(
            "INSERT OR REPLACE INTO report VALUES (?, ?, ?, ?, ?)",
            (
                report.route,
                report.title,
                report.commitment.transaction,
                report.moment,
                json.dumps(objects),
            ),
        )


def _names(columns: Sequence[str]) -> str:
    return ", ".join(columns)


def _marks(columns: Collection[object]) -> str:
    return ", ".join("?" * len(columns))


def _values(record: StudyRecord | SeriesRecord, columns: Sequence[str]) -> list[Any]:
    values = {name: getattr(record, name) for name in columns}
    return [json.dumps(value) if name in _LISTS else value for name, value in values.items()]


def _fields(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    found = dict(zip(columns, row, strict=True))
    lists = {name: tuple(json.loads(found[name])) for name in _LISTS & found.keys()}
    flags = {name: bool(found[name]) for name in {"broke_off"} & found.keys()}
    return found | lists | flags


def _is_damaged(path: Path) -> bool:
    """Check a file. Raises ConfigError or sqlite3.Error."""
    try:
        with closing(_connection(path)) as connection:
            version = _check_version(path, connection)
            return not version or connection.execute("PRAGMA quick_check(1)").fetchall() != [
                ("ok",)
            ]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return True
        raise


def _check_version(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of a file. Raises ConfigError for a newer one."""
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    if version > VERSION:
        raise ConfigError(
            f"{path} was written by a newer version of cuda-cyclegan; update this one."
        )
    return version


def _rescue(path: Path) -> None:
    """Replace a damaged file by one with the rows that can still be read, and keep a copy."""
    with closing(_connection(path)) as connection:
        rows = {table: list(_readable_rows(connection, table)) for table in _TABLES}
    log = path.with_name(f"{NAME}-wal")
    for file, name in ((path, DAMAGED), (log, f"{DAMAGED}-wal")):
        if file.exists():
            copy = shutil.copyfile(file, path.with_name(name))
            copy.chmod(0o600)
    for file in (log, path.with_name(f"{NAME}-shm")):
        file.unlink(missing_ok=True)
    _create(path, rows)


_Row: TypeAlias = dict[str, Any]
"""Values by column; older versions of a table have fewer."""


def _readable_rows(connection: sqlite3.Connection, table: str) -> Iterator[_Row]:
    with suppress(sqlite3.Error):
        found = connection.execute(f"SELECT * FROM {table}")
        columns = [str(each[0]) for each in found.description]
        yield from (dict(zip(columns, row, strict=True)) for row in found)


def _fill(connection: sqlite3.Connection, rows: Mapping[str, Sequence[_Row]]) -> None:
    connection.execute("BEGIN")
    for table, found in rows.items():
        for row in found:
            with suppress(sqlite3.Error):  # a damaged row
                into = f"{table} ({_names(tuple(row))})"
                connection.execute(f"INSERT INTO {into} VALUES ({_marks(row)})", [*row.values()])
    connection.execute("COMMIT")
