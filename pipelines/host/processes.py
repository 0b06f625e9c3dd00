"""Other processes: those that this one starts and ends, and those that use a GPU's memory."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from ..errors import PipelineError


def collect_seldom() -> None:
    """Make the garbage collector run every 200,000 new objects, not 700.

    A command's imports create 40,000 (help) to 125,000 (a batch) objects, which stay. Each scan of
    50,000 of them takes 10 to 30 ms.
    """
    gc.set_threshold(200_000)


def unnamed_file() -> IO[bytes]:
    """Return an empty unnamed file, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("orders"), "w+b")
    return TemporaryFile()


def is_in_background(terminal: int) -> bool:
    """Return whether the system would stop this process if it read from a terminal (descriptor)."""
    if not hasattr(os, "tcgetpgrp"):
        return False
    with suppress(OSError):  # not the terminal that controls this process
        return os.tcgetpgrp(terminal) != os.getpgrp()
    return False


def start_with(
    descriptor: int,
    command: Sequence[str],
    orders: IO[bytes],
    output: IO[bytes] | None,
    environment: Mapping[str, str] | None,
) -> "subprocess.Popen[bytes]":
    """Start a program that inherits a descriptor, in a session of its own.

    No signal of a terminal reaches that session. orders: its standard input. output: replaces this
    process's standard output and error. environment: replaces this process's. Raises PipelineError
    if a descriptor cannot be inherited, as on Windows.
    """
    if os.name != "posix":
        raise PipelineError(
            "Worker processes cannot be started on this system; 'translate' on one device needs "
            "none (setting device=cpu or setting device=cuda:0)."
        )
    return subprocess.Popen(
        command,
        pass_fds=(descriptor,),
        stdin=orders,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )


def release_output() -> None:
    """Release the output of this process, so that its reader does not wait for its end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), number)


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program that was started in a session of its own, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def program_of(process: int) -> str:
    """Return the name of the program that a process runs, or "a program" if it is not visible."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return "a program"


def owner_of(process: int) -> str | None:
    """Return the user who runs a process; None if unknown."""
    try:
        return Path(f"/proc/{process}").owner()
    except (OSError, KeyError, NotImplementedError):
        return None
