"""Living workers: each holds a lock under its name, which is released when it dies.

The locks are seen on one machine. On a server each worker also increments a counter, and workers of
other machines watch it by clocks of their own that no setting of the time changes.
"""

import hashlib
import os
import platform
import threading
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from ....io.files.locks import lock, start_of_system, wait_for_lock
from ....io.files.own_files import open_own, this_user, user_name
from ...errors import QueueError
from .database import Database
from .location import QueuePlace, own_folder

SLOTS = 64
BEAT_SECONDS = 5.0
"""Pause between two increments of a worker's counter."""
CONTACT_SECONDS = 10.0
"""Longest pause between two looks at the counters after which the earlier ones still count."""
DEAD_SECONDS = 60.0
"""Seconds without a change after which a worker of another machine is dead."""

_BEAT = """
INSERT INTO {workers} (worker, beats, seen) VALUES (:worker, 1, {now})
ON CONFLICT (worker) DO UPDATE SET beats = {workers}.beats + 1, seen = excluded.seen
"""


class Heartbeat:
    """Counter of a worker on a server, and the thread that increments it; a context manager."""

    def __init__(self, database: Database, worker: str) -> None:
        self._database, self._worker = database, worker
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=BEAT_SECONDS)
        with suppress(QueueError):
            forget(self._database, self._worker)

    def beat(self) -> None:
        """Increment the counter. Raises QueueLostError."""
        with self._database.writing() as transaction:
            transaction.change(_BEAT, worker=self._worker)

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(QueueError):  # the next one may reach the server
                self.beat()


def forget(database: Database, worker: str) -> None:
    """Remove the counter of a worker that ended. Raises QueueLostError."""
    with database.writing() as transaction:
        transaction.change("DELETE FROM {workers} WHERE worker = :worker", worker=worker)


class Counters:
    """One process's view of the counters of workers on other machines."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked = -CONTACT_SECONDS
        self._beats: dict[str, int | None] = {}
        self._since: dict[str, float] = {}

    def look(self, workers: Collection[str]) -> set[str]:
        """Read all counters, and return their workers. Raises QueueLostError.

        workers: others to watch, whose counters do not exist, and so do not change.
        """
        with self._database.reading() as transaction:
            query = "SELECT worker, beats FROM {workers}"
            found = dict(transaction.rows(query))
        now = time.monotonic()
        if now - self._looked > CONTACT_SECONDS:
            self._since.clear()
        self._looked = now
        beats = {worker: found.get(worker) for worker in {*found, *workers}}
        self._since = {
            worker: self._since.get(worker, now) if self._beats.get(worker) == count else now
            for worker, count in beats.items()
        }
        self._beats = beats
        return {*found}

    def still(self) -> list[str]:
        """Return the workers whose counters have not changed for DEAD_SECONDS."""
        return [
            worker for worker, since in self._since.items() if self._looked - since >= DEAD_SECONDS
        ]


class Membership:
    """Name that a worker holds, and its view of other workers.

    origin: prefix of the names whose locks are in `folder`. database: that the worker shares with
    other machines, or None.
    """

    def __init__(self, name: str, origin: str, folder: Path, database: Database | None) -> None:
        self.name = name
        self._origin = origin
        self._folder = folder
        self._database = database
        self._counters = Counters(database) if database else None

    def dead(self, workers: Collection[str]) -> list[str]:
        """Return the workers that are certainly dead. Raises QueueLostError.

        workers: those that have jobs; on a server, those with a counter are tested too.
        """
        known, still = {*workers}, set[str]()
        if self._counters is not None:
            known |= self._counters.look(workers)
            still = {*self._counters.still()}
        return [
            worker
            for worker in known - {self.name}
            if (
                _is_free(self._folder, worker)
                if self._counters is None or worker.startswith(f"{self._origin}:")
                else worker in still
            )
        ]

    def forget(self, worker: str) -> None:
        """Remove what is known of a dead worker. Raises QueueLostError."""
        if self._database:
            forget(self._database, worker)


@contextmanager
def membership(database: Database, device: str) -> Generator[Membership]:
    """Hold the first free worker name of a device for the block. Raises QueueError.

    device: its name on the machine. A GPU has one, so that no two workers share it by mistake; the
    CPU has many.
    """
    place = database.place
    folder = _create_lock_folder(place)
    origin = origin_of(folder)
    names = [f"{origin}:{device}"]
    if device == "cpu":
        names += [f"{origin}:{device}-{slot}" for slot in range(2, SLOTS)]
    with ExitStack() as stack:
        for name in names:
            with ExitStack() as trial:
                if not _hold(folder, name, trial):
                    continue
                stack.push(trial.pop_all())
            shared = database if place.file is None else None
            if shared:
                stack.enter_context(Heartbeat(shared, name))
            yield Membership(name, origin, folder, shared)
            return
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


def living_workers(database: Database) -> int:
    """Return the number of living workers of a queue; on a server, of all machines.

    Those of other machines by the server's clock: the count is shown, nothing depends on it.
    """
    place = database.place
    folder = lock_folder(place)
    if place.file:
        return len(locked_names(place))
    origin = origin_of(folder) if folder.is_dir() else None
    query = f"SELECT worker FROM {{workers}} WHERE seen >= {{now}} - {int(DEAD_SECONDS * 1000)}"
    with database.reading() as transaction:
        names = [worker for (worker,) in transaction.rows(query)]
    return sum(
        not (origin and name.startswith(f"{origin}:") and _is_free(folder, name)) for name in names
    )


def locked_names(place: QueuePlace) -> list[str]:
    """Return the names that workers of this machine hold."""
    folder = lock_folder(place)
    names = [lock.name.removesuffix(".lock") for lock in folder.glob("*.lock")]
    return [name for name in names if not _is_free(folder, name)]


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
