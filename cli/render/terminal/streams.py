"""Standard output and error that neither a strange name nor a vanished reader can break."""

import codecs
import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import datetime
from typing import TextIO

from .text import printable

_PLAIN = {"─": "-", "█": "#", "·": ".", "…": "."} | dict.fromkeys("▏▎▍▌▋▊▉", "#")
"""What stands for the characters that tables and bars are drawn with."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """For a stream in a narrow encoding: plain drawings, and escapes for the rest of a name."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or ascii(one)[1:-1] for one in lost), error.end


def settle() -> None:
    """Give the program both streams, able to take any name."""
    codecs.register_error(__name__, _replaced)
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # closed by the caller, as with >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        else:
            stream.reconfigure(errors=__name__)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def say(line: str, stream: TextIO) -> None:
    """Print a line at once; if nobody can take it any more, it and all later ones are lost.

    A batch goes on when the reader of its log is gone: the studies matter more. What a full disk
    does not take is lost alone, for a service may run for months after it.
    """
    with lost_with_its_reader(stream):
        stream.write(f"{line}\n")  # in one go, for others may write to the same log
        stream.flush()


def log(text: str) -> None:
    """A line for whoever reads later what a command did that runs for days."""
    say(f"{datetime.now():%Y-%m-%d %H:%M:%S} {printable(text)}", sys.stderr)


@contextmanager
def lost_with_its_reader(stream: TextIO) -> Generator[None]:
    """If writing to the stream fails in the block, it leads nowhere from then on.

    That of a full disk does so for what it did not take.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        with _leading_nowhere(stream.fileno(), for_good=not is_full):
            stream.flush()


@contextmanager
def _leading_nowhere(descriptor: int, *, for_good: bool) -> Generator[None]:
    """Whatever is written there is lost, during the block or for good."""
    before, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        if not for_good:
            os.dup2(before, descriptor)
        os.close(before)
        os.close(nowhere)


class LastingStream:
    """A terminal as a file for rich; when the terminal is gone, writing does nothing."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str, /) -> int:
        with lost_with_its_reader(self._terminal):
            self._terminal.write(text)
        return len(text)

    def flush(self) -> None:
        with lost_with_its_reader(self._terminal):
            self._terminal.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    def fileno(self) -> int:
        return self._terminal.fileno()

    @property
    def encoding(self) -> str:
        return self._terminal.encoding


def tell(sentences: Iterable[str], stream: TextIO) -> None:
    """Say sentences, on a terminal broken between words with their further lines indented."""
    columns = columns_of(stream)
    for sentence in sentences:
        lines = [sentence] if columns is None else broken(sentence, columns)
        for line in lines:
            say(line, stream)


def columns_of(stream: TextIO) -> int | None:
    """Width of the terminal that a stream goes to, or None."""
    if not stream.isatty():
        return None
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # it is none that the system knows
        return shutil.get_terminal_size().columns
    return shutil.get_terminal_size(size).columns if "COLUMNS" in os.environ else size.columns


def broken(sentence: str, columns: int) -> list[str]:
    """A sentence as lines; a word that is longer than a line stays whole."""
    return textwrap.wrap(
        sentence,
        max(columns, 20),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
