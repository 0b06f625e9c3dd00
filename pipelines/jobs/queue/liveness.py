"""Which workers live: each holds a lock under its name, which its death gives free."""

import fcntl
import getpass
import os
import platform
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

import psycopg

from ....io.files.own_files import open_own
from ...errors import QueueError, QueueLostError
from .location import QueuePlace, own_folder

CLASS = crc32(b"cuda-cyclegan workers") & 0x7FFFFFFF
_NOTICE_DEATH = b"""
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3
"""
"""Lets the server end the connection of a host that lost its power; its own default is 2 hours."""


class ServerLocks:
    """A connection that holds locks; a context manager that owns it.

    url: of the server. Methods raise QueueLostError while it does not answer.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def hold(self, name: str) -> bool:
        """Take a lock, until the connection ends; False if another one has it."""
        return self._ask("SELECT pg_try_advisory_lock(%s, %s)", CLASS, _number(name))

    def is_held(self, name: str) -> bool:
        """Whether any connection has the lock."""
        return self._ask(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
            "database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND "
            "classid = %s AND objid::bigint = %s AND objsubid = 2)",
            CLASS,
            _number(name),
        )

    def renew(self, name: str) -> bool:
        """Take the lock again if the connection was lost; whether it was."""
        if self.is_held_here():
            return False
        self.hold(name)
        return True

    def is_held_here(self) -> bool:
        """Whether the connection that took the locks still stands."""
        if self._connection is None:
            return False
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error:
            self._connection.close()
            self._connection = None
            return False
        return True

    def _ask(self, query: str, *values: int) -> bool:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, autocommit=True)
                self._connection.execute(_NOTICE_DEATH)
            row = self._connection.execute(query.encode(), values).fetchone()
        except psycopg.Error as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise QueueLostError(
                f"The queue's server does not answer ({' '.join(str(error).split())[:200]})."
            ) from error
        return bool(row and row[0])


def _number(name: str) -> int:
    return crc32(name.encode()) & 0x7FFFFFFF


SLOTS = 64
GRACE_SECONDS = 30.0


class Life:
    """A name that a worker holds, and its view of the others.

    locks: the server's, None for a queue of one machine.
    """

    def __init__(self, name: str, folder: Path, locks: ServerLocks | None) -> None:
        self.name = name
        self._folder = folder
        self._locks = locks
        self._seen_free: dict[str, float] = {}

    def renew(self) -> None:
        """Hold the name again if the server forgot it. Raises QueueLostError."""
        if self._locks is None:
            return
        try:
            renewed = self._locks.renew(self.name)
        except QueueLostError:
            self._seen_free.clear()
            raise
        if renewed:
            self._seen_free.clear()

    def is_dead(self, worker: str) -> bool:
        """Whether the holder of a name is gone for sure. Raises QueueLostError."""
        if worker == self.name:
            return False
        if self._locks is None or worker.startswith(f"{host()}:"):
            return _is_free(self._folder, worker)
        if self._locks.is_held(worker):
            self._seen_free.pop(worker, None)
            return False
        since = self._seen_free.setdefault(worker, time.monotonic())
        return time.monotonic() - since >= GRACE_SECONDS


@contextmanager
def life(place: QueuePlace, device: str) -> Generator[Life]:
    """Hold a worker's name, the first that is free for its device. Raises QueueError.

    A GPU has one name, so that no two workers share it by mistake; the CPU has many.
    """
    names = [f"{host()}:{device}"]
    if device == "cpu":
        names += [f"{host()}:{device}-{slot}" for slot in range(2, SLOTS)]
    folder = Path(f"{place.file}.workers") if place.file else own_folder() / "workers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as stack:
        locks = None if place.file else stack.enter_context(ServerLocks(place.url))
        for name in names:
            if _hold(folder, name, stack) and (locks is None or locks.hold(name)):
                yield Life(name, folder, locks)
                return
    raise QueueError(
        f"A worker for {device} runs on this machine already; stop that one first, or choose "
        "another device."
    )


def host() -> str:
    """This user on this machine: how the names of its workers begin."""
    return f"{platform.node() or 'host'}:{getpass.getuser()}"


def _hold(folder: Path, name: str, stack: ExitStack) -> bool:
    """Lock a name's file until the stack closes; False if another process has it."""
    file = open_own(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)
    stack.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(folder: Path, name: str) -> bool:
    with ExitStack() as stack, suppress(FileNotFoundError):
        return _hold(folder, name, stack)
    return True
