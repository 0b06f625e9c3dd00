"""Living workers: each holds a lock under its name, which is released when it dies.

The locks are seen on one machine. On a server each worker also increments a counter, and workers of
other machines watch it by clocks of their own that no setting of the time changes.
"""

import errno
import hashlib
import os
import platform
import threading
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

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


class Counters:
    """Counters of the workers of a server, by which those of other machines see that they live."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked = -CONTACT_SECONDS
        self._seen: dict[str, tuple[int | None, float]] = {}

    def beat(self, worker: str) -> None:
        """Increment a counter. Raises QueueLostError."""
        with self._database.writing() as transaction:
            transaction.change(_BEAT, worker=worker)

    def forget(self, worker: str) -> None:
        """Remove the counter of a worker that ended. Raises QueueLostError."""
        with self._database.writing() as transaction:
            transaction.change("DELETE FROM {workers} WHERE worker = :worker", worker=worker)

    @contextmanager
    def beating(self, worker: str) -> Generator[None]:
        """Increment a counter for the block, in a thread of its own that no locked job delays."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(BEAT_SECONDS):
                with suppress(QueueError):  # the next one may reach the server
                    self.beat(worker)

        self.beat(worker)
        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=BEAT_SECONDS)
            with suppress(QueueError):
                self.forget(worker)

    def unchanged(self, workers: Collection[str]) -> dict[str, float]:
        """Read all counters; return for how many seconds each was seen not to change.

        workers: others to watch, whose counters do not exist, and so do not change. Raises
        QueueLostError.
        """
        with self._database.reading() as transaction:
            found = dict(transaction.rows("SELECT worker, beats FROM {workers}"))
        now = time.monotonic()
        before = self._seen if now - self._looked <= CONTACT_SECONDS else {}
        self._looked, self._seen = now, {}
        for worker in {*found, *workers}:
            count = found.get(worker)
            seen, since = before.get(worker, (None, now))
            self._seen[worker] = count, since if seen == count else now
        return {worker: now - since for worker, (_, since) in self._seen.items()}


class Membership:
    """Name that a worker holds, and its view of other workers.

    origin: prefix of the names whose locks are in `folder`. counters: of all workers of a server,
    None for a file, which only workers of this machine share.
    """

    def __init__(self, name: str, origin: str, folder: Path, counters: Counters | None) -> None:
        self.name = name
        self._origin = origin
        self._folder = folder
        self._counters = counters

    def dead(self, workers: Collection[str]) -> set[str]:
        """Return the workers that are certainly dead. Raises QueueLostError.

        workers: those that have jobs; on a server, those with a counter are tested too.
        """
        if self._counters is None:
            return {*workers} - _held(self._folder, workers) - {self.name}
        unchanged = self._counters.unchanged(workers)
        here = _of_origin(self._origin, unchanged)
        still = {worker for worker, seconds in unchanged.items() if seconds >= DEAD_SECONDS}
        return (here - _held(self._folder, here) - {self.name}) | (still - here)

    def forget(self, worker: str) -> None:
        """Remove what is known of a dead worker. Raises QueueLostError."""
        if self._counters:
            self._counters.forget(worker)


@contextmanager
def membership(database: Database, device: str) -> Generator[Membership]:
    """Hold the first free worker name of a device for the block. Raises QueueError.

    device: its name on the machine. A GPU has one, so that no two workers share it by mistake; the
    CPU has many.
    """
    place = database.place
    folder = lock_folder(place)
    slots = ["", *(f"-{slot}" for slot in range(2, SLOTS))] if device == "cpu" else [""]
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            origin = origin_of(folder)
            names = (f"{origin}:{device}{slot}" for slot in slots)
            with _guarded(folder):
                name = next((name for name in names if _hold(folder, name, stack)), None)
        except OSError as error:
            where = "put the queue" if place.file else "have XDG_STATE_HOME name a folder"
            raise QueueError(
                f"The names of workers cannot be locked in {folder} ({error.strerror}); {where} on "
                "a local disk."
            ) from error
        if name is None:
            raise QueueError(
                f"A worker for {device} is already running on this machine; stop it first, or "
                "choose another device."
            )
        counters = None if place.file else Counters(database)
        if counters:
            stack.enter_context(counters.beating(name))
        yield Membership(name, origin, folder, counters)


def living_workers(database: Database) -> int:
    """Return the number of living workers of a queue; on a server, of all machines.

    Those of other machines by the server's clock: the count is shown, nothing depends on it.
    """
    if database.place.file:
        return len(locked_names(database.place))
    folder = lock_folder(database.place)
    query = f"SELECT worker FROM {{workers}} WHERE seen >= {{now}} - {int(DEAD_SECONDS * 1000)}"
    with database.reading() as transaction:
        names = {worker for (worker,) in transaction.rows(query)}
    here = _of_origin(origin_of(folder), names) if folder.is_dir() else set[str]()
    return len(names - here) + len(_held(folder, here))


def locked_names(place: QueuePlace) -> set[str]:
    """Return the names that workers of this machine hold."""
    folder = lock_folder(place)
    return _held(folder, [file.name.removesuffix(".lock") for file in folder.glob("*.lock")])


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


def _of_origin(origin: str, workers: Collection[str]) -> set[str]:
    return {worker for worker in workers if worker.startswith(f"{origin}:")}


def _hold(folder: Path, name: str, stack: ExitStack) -> bool:
    """Lock a name's file until the stack closes, or return False if another process has it."""
    with ExitStack() as trial:
        file = open_own(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)
        trial.callback(os.close, file)
        try:
            lock(file)
        except BlockingIOError:
            return False
        stack.push(trial.pop_all())
    return True


def _held(folder: Path, names: Collection[str]) -> set[str]:
    """Return the names whose locks are held, or cannot be tested."""
    if not names:
        return set()
    try:
        with _guarded(folder):
            return {name for name in names if not _is_free(folder / f"{name}.lock")}
    except FileNotFoundError:  # no worker ran here
        return set()
    except OSError:
        return {*names}


def _is_free(file: Path) -> bool:
    try:
        opened = open_own(file, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    try:
        lock(opened)
    except OSError:
        return False
    finally:
        os.close(opened)
    return True


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
