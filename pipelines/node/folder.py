"""The folder of a node: private, of one node at a time, and what it tells of the node's work."""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...io.files.locks import lock
from ...io.files.own_files import open_own
from ..errors import ConfigError
from .gaps import RELEASED
from .inbox import INBOX, studies_in
from .ledger import NAME, Kept, StudyRecord, read
from .study_name import StudyName

LOCK = "node.lock"


def make_folder(folder: Path) -> None:
    """Make it for this user alone. Raises ConfigError."""
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
    """Keep other nodes from the folder. Raises ConfigError if there is one."""
    descriptor = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"Another node is running with {folder}; stop it, or choose another folder with "
            "setting folder."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def is_running(folder: Path) -> bool:
    """Whether a node has the folder."""
    try:
        with sole_owner(folder):
            return False
    except ConfigError:
        return True


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's folder at one moment.

    folder: its place. running: whether a node has it. studies: those on record. arriving: those in
    the inbox that were not looked at. bytes: of all objects in the inbox. confirmed: how many
    objects of a result its destination has, of results that are not sent as a whole.
    """

    folder: Path
    running: bool
    studies: tuple[StudyRecord, ...]
    arriving: tuple[StudyName, ...]
    bytes: int
    confirmed: Mapping[str, int]


def status_of(folder: Path) -> NodeStatus:
    """Raises ConfigError if no node ever had the folder, or OSError."""
    kept = _kept(folder)
    inside = studies_in(folder)
    known = {name for name, record in kept.studies.items() if not record.emptied}
    return NodeStatus(
        folder,
        is_running(folder),
        tuple(kept.studies.values()),
        tuple(study for study in inside if str(study) not in known),
        sum(inside.values()),
        {series: len(instances) for series, instances in kept.confirmed.items()},
    )


def release(folder: Path, name: str) -> list[str]:
    """Have held studies translated as they are; their names.

    name: of one of them, or of a route for all of its own. The node that has the folder, or the
    next one, finds the marks. Raises ConfigError or OSError.
    """
    studies = {
        record.study: StudyName.parse(record.study)
        for record in _kept(folder).studies.values()
        if record.held
    }
    found = [each for each, study in studies.items() if name in (each, study.route)]
    for each in found:
        (folder / INBOX / each / RELEASED).touch(mode=0o600)
    return found


def _kept(folder: Path) -> Kept:
    """What the ledger says. Raises ConfigError or OSError."""
    if not (folder / NAME).exists():
        raise ConfigError(
            f"No node has worked with {folder} yet; name its folder with setting folder."
        )
    return read(folder / NAME, time.time())
