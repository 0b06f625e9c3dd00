"""Processes of this machine."""

import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def started(
    command: Sequence[str | os.PathLike[str]], **options: Any
) -> "Generator[subprocess.Popen[Any]]":
    """A process in the background, which is ended with the block, however that ends."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def children_of(process: int) -> list[int]:
    """Return the processes that it started itself, also those that have ended and were not waited
    for.
    """
    while True:
        try:
            tasks = list(Path(f"/proc/{process}/task").iterdir())
        except OSError:
            return []
        with suppress(OSError):  # a thread has ended, and what it started is another's now
            return [int(one) for task in tasks for one in (task / "children").read_text().split()]


def descendants(process: int) -> list[int]:
    """Children of a process and theirs."""
    return [one for child in children_of(process) for one in (child, *descendants(child))]


def processes_left() -> list[int]:
    """Children of this process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there is none, which costs less than a look at each thread
        return []
    return children_of(os.getpid())


def command_of(process: int) -> str:
    """Return the process' command line; empty once it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def runs(process: int) -> bool:
    """Whether it has not ended yet, waited for or not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False
