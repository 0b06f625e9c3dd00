"""The folder of a node: private, and of one node at a time."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ...io.files.locks import lock
from ...io.files.own_files import open_own
from ..errors import ConfigError

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
