"""Checks whether the job queue exists and is usable, without creating one."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...io.files.disk import free_bytes
from ..errors import QueueError
from ..jobs.queue.location import QueuePlace, check_private, queue_place
from .findings import Finding, failure, ok, warning
from .machine import FULL_BYTES, free_space_text

_NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "fuse.sshfs", "9p")
_MOUNTS = Path("/proc/self/mounts")
_LIMIT = "connect_timeout=2"
"""Connection timeout in seconds, as an option of PostgreSQL's addresses; `doctor` must be quick."""

_REMEDY = "give another queue with setting queue or CUDA_CYCLEGAN_QUEUE"


def examine_queue(asked: str | None) -> Iterator[Finding]:
    """Examine the queue that `submit` and `worker` would use; asked: address from the user."""
    try:
        place = queue_place(asked)
        if place.file is None:
            url = re.sub(r"connect_timeout=\d+", _LIMIT, place.url)
            yield _opened(QueuePlace(url, None), None)
        elif place.file.exists():
            yield _opened(place, _disk_trouble(place.file))
        else:
            yield _not_yet(place.file)
    except QueueError as error:
        what, _, remedy = str(error).rstrip(".").partition("; ")
        # A queue that the next submission prepares has no jobs for a worker yet.
        state = warning if remedy.startswith("submit") else failure
        yield state("Queue", what, remedy or _REMEDY)


def _opened(place: QueuePlace, trouble: str | None) -> Finding:
    from ..jobs.queue.queue import open_queue

    with open_queue(place) as jobs:
        counts = [count.jobs for count in jobs.batches()]
        paused = ", paused" if jobs.is_paused() else ""
    waiting = sum(count.get("queued", 0) + count.get("waiting", 0) for count in counts)
    running = sum(count.get("running", 0) for count in counts)
    words = f"{place}: {waiting} waiting, {running} running{paused}"
    if trouble:
        return warning("Queue", f"{words}; {trouble}", f"keep it on a local disk, or {_REMEDY}")
    if place.file and (full := _full_disk(place.file)):
        return failure("Queue", f"{words}, but {full}", f"make room, or {_REMEDY}")
    if place.file and not os.access(place.file, os.W_OK):
        return failure("Queue", f"{words}, but it cannot be written", f"chmod u+w, or {_REMEDY}")
    return ok("Queue", words)


def _not_yet(file: Path) -> Finding:
    check_private(file)
    folder = next(parent for parent in file.parents if parent.exists())
    words = f"none yet at {file}; the first 'submit' creates it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return failure("Queue", f"{words}, but {folder} cannot be written", _REMEDY)
    if full := _full_disk(folder):
        return failure("Queue", f"{words}, but {full}", f"make room, or {_REMEDY}")
    if trouble := _disk_trouble(folder):
        return warning("Queue", f"{words}; {trouble}", f"keep it on a local disk, or {_REMEDY}")
    return ok("Queue", words)


def _full_disk(path: Path) -> str | None:
    room = free_bytes(path)
    return f"its disk has {free_space_text(room)} left" if room < FULL_BYTES else None


def _disk_trouble(path: Path) -> str | None:
    """Return the problem with the disk of a queue's file, on which its locks depend, or None."""
    try:
        mounts = [line.split()[1:3] for line in _MOUNTS.read_text().splitlines()]
    except OSError:
        return None
    place = Path(os.path.realpath(path))
    over = [(root, kind) for root, kind in mounts if place.is_relative_to(root)]
    _, kind = max(over, key=lambda mount: len(mount[0]), default=("", ""))
    return f"it is on a network disk ({kind})" if kind in _NETWORK_DISKS else None
