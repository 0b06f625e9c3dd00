"""Limits of an ordinary user, also if the tests run as root."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def open_folder() -> Generator[Path]:
    """A folder that every user reaches, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def ordinary_user() -> Generator[None]:
    """Give up root's rights for a while; nothing to do for anybody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
