"""Folder of a node: private, owned by one node at a time; its status, and releases of studies."""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...io.files.locks import lock
from ...io.files.own_files import open_own
from ..errors import ConfigError
from . import store
from .inbox import studies_in
from .records import StudyName, StudyRecord

LOCK = "node.lock"
_LOOK_SECONDS = 0.01
"""Pause of a node that starts while others check whether one is running."""


def make_folder(folder: Path) -> None:
    """Create the folder for this user alone. Raises ConfigError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # which only its owner may
    except OSError as error:
        raise ConfigError(
            f"The node's folder {folder} cannot be used ({error.strerror}); choose another with "
            "setting folder."
        ) from error


@contextmanager
def sole_owner(folder: Path) -> Generator[None]:
    """Keep other nodes from the folder for the block. Raises ConfigError if there is one."""
    descriptor = _lock_file(folder)
    try:
        while not _locked(descriptor):
            if is_running(folder):
                raise ConfigError(
                    f"Another node uses folder {folder}; stop it, or choose another folder with "
                    "setting folder."
                )
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Whether a node is running with the folder.

    Processes that check this share the lock, and a node that starts waits for them.
    """
    descriptor = _lock_file(folder)
    try:
        return not _locked(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _lock_file(folder: Path) -> int:
    return open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)


def _locked(descriptor: int, *, shared: bool = False) -> bool:
    """Lock the open file, unless it is locked by others or cannot be locked."""
    try:
        lock(descriptor, shared=shared)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of a node's folder.

    folder: its path. running: whether a node is running with it. studies: all on record. arriving:
    those in the inbox that were not examined yet. bytes: size of all objects in the inbox.
    confirmed: number of confirmed objects of each result that is not sent as a whole.
    """

    folder: Path
    running: bool
    studies: tuple[StudyRecord, ...]
    arriving: tuple[StudyName, ...]
    bytes: int
    confirmed: Mapping[str, int]


def status_of(folder: Path) -> NodeStatus:
    """Return the state of a folder. Raises ConfigError if no node ever had it, or OSError."""
    with store.read_store(folder) as records:
        studies, confirmed = records.studies(), records.confirmations()
    inside = studies_in(folder)
    known = {record.study for record in studies if not record.emptied}
    return NodeStatus(
        folder,
        is_running(folder),
        tuple(studies),
        tuple(study for study in inside if str(study) not in known),
        sum(inside.values()),
        confirmed,
    )


def release(folder: Path, name: str) -> list[str]:
    """Release held studies, to be translated as they are; return their names.

    name: of one of them, or of a route for all of its own. The running node, or the next one, reads
    this. Raises ConfigError or OSError.
    """
    with store.read_store(folder) as records:
        held = [record.study for record in records.studies() if record.held]
    found = [study for study in held if name in (study, StudyName.parse(study).route)]
    if found:
        if not (folder / store.NAME).exists():
            with sole_owner(folder), store.open_store(folder, time.time()):
                pass  # imports the records of an earlier version
        store.release(folder, found)
    return found
