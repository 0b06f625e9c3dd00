"""Which workers live: each holds a lock under its name, which its death gives free.

On one machine that is a lock on a file. Between machines it is an advisory lock of the PostgreSQL
server as well. A restart of the server frees those of living workers too, so a worker of another
machine counts as dead only after its lock was seen free for a while.
"""

import fcntl
import getpass
import platform
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .errors import QueueError, QueueLostError
from .queue_locks import ServerLocks
from .queue_place import QueuePlace, own_folder

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
    file = stack.enter_context((folder / f"{name}.lock").open("a"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(folder: Path, name: str) -> bool:
    with ExitStack() as stack, suppress(FileNotFoundError):
        return _hold(folder, name, stack)
    return True
