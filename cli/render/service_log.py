"""Log of commands that run for days: lines on stderr, for journald with levels, and in a file."""

import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Literal, TypeAlias

from .terminal import print_line
from .text import printable

Level: TypeAlias = Literal["error", "warning", "info"]
LogFormat: TypeAlias = Literal["text", "json"]
Write: TypeAlias = Callable[[str, Level, Mapping[str, object]], None]

_PRIORITIES: dict[Level, int] = {"error": 3, "warning": 4, "info": 6}
"""Levels of syslog, which journald reads before each line."""

_files: list[Write] = []
"""Log file of this process, if it has one."""


def log(text: str, level: Level = "info", **facts: object) -> None:
    """Log a line with its time. facts: further fields of the line in a file of JSON lines."""
    line = printable(text)
    if mark := journal_mark(level):
        print_line(f"{mark}{line}", sys.stderr)  # journald has the time
    else:
        print_line(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}", sys.stderr)
    to_file(line, level, facts)


def to_file(line: str, level: Level, facts: Mapping[str, object]) -> None:
    """Write a line to the log file, if there is one."""
    for write in _files:
        write(line, level, facts)


def journal_mark(level: Level) -> str:
    """Return the mark of a level if journald reads stderr, or ""."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    if not stream:
        return ""
    try:
        state = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # not a stream of the system
        return ""
    is_journal = stream == f"{state.st_dev}:{state.st_ino}"
    return f"<{_PRIORITIES[level]}>" if is_journal else ""


@contextmanager
def written_also_by(write: Write) -> Generator[None]:
    """Write all lines of the block to a file, too."""
    _files.append(write)
    try:
        yield
    finally:
        _files.remove(write)
