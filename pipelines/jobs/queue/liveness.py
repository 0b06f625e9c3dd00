"""Living workers: each holds a lock under its name, which is released when it dies."""

import hashlib
import os
import platform
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self
from zlib import crc32

import psycopg

from ....io.files.locks import lock, start_of_system, wait_for_lock
from ....io.files.own_files import open_own, this_user, user_name
from ...errors import QueueError, QueueLostError
from .location import QueuePlace, own_folder

CLASS = crc32(b"cuda-cyclegan workers") & 0x7FFFFFFF
_NOTICE_DEATH = b"""
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3
"""
"""Settings by which the server drops the connection of a host that lost its power within 25 s; the
default is 2 hours."""

_COUNT = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = %s AND "
    "objsubid = 2"
)


class ServerLocks:
    """Advisory locks of a server, and the connection that holds them; a context manager.

    url: URL of the server. Methods raise QueueLostError while it does not answer, and when the
    manager exits while another thread calls them.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None
        self._held: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):  # the server may take its time to notice the end
                self._connection.execute("SELECT pg_advisory_unlock_all()")
        self._drop()

    def hold(self, name: str) -> bool:
        """Take a lock until the connection ends, or return False if another connection has it."""
        taken = bool(self._ask("SELECT pg_try_advisory_lock(%s, %s)", CLASS, _number(name)))
        if taken:
            self._held.add(name)
        return taken

    def is_held(self, name: str) -> bool:
        """Return whether any connection has the lock."""
        return bool(self._ask(f"{_COUNT} AND objid::bigint = %s", CLASS, _number(name)))

    def held(self) -> int:
        """Return the number of workers that hold locks, over all connections."""
        return self._ask(_COUNT, CLASS)

    def holds(self, name: str) -> bool:
        """Return whether this connection is alive and still has the lock."""
        return self._is_connected() and name in self._held

    def _is_connected(self) -> bool:
        connection = self._connection
        if connection is None:
            return False
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            self._drop()
            return False
        return True

    def _drop(self) -> None:
        self._held.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, query: str, *values: int) -> int:
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = psycopg.connect(self._url, autocommit=True)
                connection.execute(_NOTICE_DEATH)
            row = connection.execute(query.encode(), values).fetchone()
        except psycopg.Error as error:
            self._drop()
            raise QueueLostError(
                f"The queue's server does not answer ({' '.join(str(error).split())[:200]})."
            ) from error
        return int(row[0]) if row else 0


def _number(name: str) -> int:
    return crc32(name.encode()) & 0x7FFFFFFF


SLOTS = 64
GRACE_SECONDS = 30.0
"""Longer than a server takes to detect a lost connection, and a worker to reconnect."""


class Membership:
    """Name that a worker holds, and its view of other workers.

    origin: prefix of the names whose locks are in `folder`. locks: locks on the server, or None for
    a queue of one machine.
    """

    def __init__(self, name: str, origin: str, folder: Path, locks: ServerLocks | None) -> None:
        self.name = name
        self._origin = origin
        self._folder = folder
        self._locks = locks
        self._seen_free: dict[str, float] = {}
        self._lost_since: float | None = None

    def renew(self) -> bool:
        """Take the name again if the server lost it, and return whether it is held.

        It may not be for a moment, until the server drops the lost connection. Raises
        QueueLostError.
        """
        if self._locks is None:
            return True
        try:
            lasted = self._locks.holds(self.name)
            held = lasted or self._locks.hold(self.name)
        except QueueLostError:
            self._seen_free.clear()
            raise
        if not lasted:
            self._seen_free.clear()
        self._lost_since = None if held else self._lost_since or time.monotonic()
        return held

    def is_lost(self) -> bool:
        """Return whether another worker has had the name for GRACE_SECONDS."""
        lost = self._lost_since
        return lost is not None and time.monotonic() - lost >= GRACE_SECONDS

    def is_dead(self, worker: str) -> bool:
        """Return whether a name's holder is certainly dead. Raises QueueLostError."""
        if worker == self.name:
            return False
        if self._locks is None:
            return _is_free(self._folder, worker)
        if self._locks.is_held(worker):
            self._seen_free.pop(worker, None)
            return False
        if worker.startswith(f"{self._origin}:"):
            return _is_free(self._folder, worker)
        since = self._seen_free.setdefault(worker, time.monotonic())
        return time.monotonic() - since >= GRACE_SECONDS


@contextmanager
def membership(place: QueuePlace, device: str) -> Generator[Membership]:
    """Hold the first free worker name of a device for the block. Raises QueueError.

    device: its name on the machine. A GPU has one, so that no two workers share it by mistake; the
    CPU has many.
    """
    folder = _create_lock_folder(place)
    origin = origin_of(folder)
    names = [f"{origin}:{device}"]
    if device == "cpu":
        names += [f"{origin}:{device}-{slot}" for slot in range(2, SLOTS)]
    with ExitStack() as stack:
        locks = None if place.file else stack.enter_context(ServerLocks(place.url))
        is_ours_here = False
        for name in names:
            with ExitStack() as trial:
                if not _hold(folder, name, trial):
                    continue
                is_ours_here = True
                if locks is None or locks.hold(name):
                    stack.push(trial.pop_all())
                    yield Membership(name, origin, folder, locks)
                    return
    if is_ours_here:
        raise QueueLostError(
            f"The queue {place} has not yet detected that the last worker for {device} of this "
            "machine is gone; wait a moment."
        )
    raise QueueError(
        f"A worker for {device} is already running on this machine; stop it first, or choose "
        "another device."
    )


def _create_lock_folder(place: QueuePlace) -> Path:
    """Create the folder of the locks, and check that it allows locks. Raises QueueError."""
    folder = lock_folder(place)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _guarded(folder):
            return folder
    except OSError as error:
        where = "put the queue" if place.file else "have XDG_STATE_HOME name a folder"
        raise QueueError(
            f"The names of workers cannot be locked in {folder} ({error.strerror}); {where} on a "
            "local disk."
        ) from error


def living_workers(place: QueuePlace) -> int:
    """Return the number of living workers of a queue; on a server, of all machines."""
    if place.file is None:
        with ServerLocks(place.url) as locks:
            return locks.held()
    folder = lock_folder(place)
    names = [lock.name.removesuffix(".lock") for lock in folder.glob("*.lock")]
    return sum(not _is_free(folder, name) for name in names)


def lock_folder(place: QueuePlace) -> Path:
    """Return the folder with the locks of this machine's workers."""
    return Path(f"{place.file}.workers") if place.file else own_folder() / "workers"


def origin_of(folder: Path) -> str:
    """Return the prefix of worker names whose locks are in a folder.

    Host and user are there for readers. The rest is the same for another worker only if it sees the
    same folder since the same boot of the machine, so that its locks are the same files.
    """
    place = folder.stat()
    mark = f"{start_of_system()}{this_user()}:{place.st_dev}:{place.st_ino}"
    short = hashlib.sha256(mark.encode()).hexdigest()[:8]
    return f"{platform.node() or 'host'}:{user_name()}:{short}"


def _hold(folder: Path, name: str, stack: ExitStack) -> bool:
    """Lock a name's file until the stack closes, or return False if another process has it."""
    file = open_own(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)
    stack.callback(os.close, file)
    with _guarded(folder):
        return _lock(file)


@contextmanager
def _guarded(folder: Path) -> Generator[None]:
    """Hold the guard that serialises taking a name and testing whether it is taken.

    A test acquires the lock itself, which would reject a worker that starts in that moment.
    """
    guard = open_own(folder / "names", os.O_RDWR | os.O_CREAT)
    try:
        wait_for_lock(guard)
        yield
    finally:
        os.close(guard)


def _lock(file: int) -> bool:
    try:
        lock(file)
    except BlockingIOError:
        return False
    return True


def _is_free(folder: Path, name: str) -> bool:
    with ExitStack() as stack:
        try:
            stack.enter_context(_guarded(folder))
            file = open_own(folder / f"{name}.lock", os.O_RDWR)
        except PermissionError:
            return False
        except (OSError, ValueError):  # no such file, or none can have such a name
            return True
        stack.callback(os.close, file)
        return _lock(file)
