"""Other processes: those that this one starts and ends, and those that hold a card's memory."""

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
    """Have cycles looked for every 50,000 new objects, not 700: what imports make stays, and to
    look through it again and again takes a tenth of a start.
    """
    gc.set_threshold(50_000)


def unnamed_file() -> IO[bytes]:
    """An empty file without a name; in memory, if the system has such, and not in a folder."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("orders"), "w+b")
    return TemporaryFile()


def is_in_background(terminal: int) -> bool:
    """Whether the system would stop this process if it read from a terminal (a descriptor)."""
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

    No signal of a terminal reaches that. orders: what it reads. output: where it prints, instead of
    where this process does. environment: instead of this process's. Raises PipelineError where a
    descriptor cannot be inherited, as on Windows.
    """
    if os.name != "posix":
        raise PipelineError(
            "Worker processes cannot be started on this system; 'translate' needs none for one "
            "device (setting device=cpu or setting device=cuda:0)."
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
    """Let go of the output of this process, so that whoever reads it does not wait for its end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), number)


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """End a program that was started in a session of its own, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def program_of(process: int) -> str:
    """The name of the program that a process runs, as far as this one may see it."""
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return "a program"


def owner_of(process: int) -> str | None:
    """Who runs a process; None where that is not told."""
    try:
        return Path(f"/proc/{process}").owner()
    except (OSError, KeyError, NotImplementedError):
        return None
