"""Streams of a terminal: safe output, log lines, and a spinner for long tasks."""

import codecs
import errno
import io
import os
import re
import shutil
import stat
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from .text import from_here

if TYPE_CHECKING:
    from rich.progress import Progress


_PLAIN = {"─": "-", "█": "#", "·": ".", "…": "."} | dict.fromkeys("▏▎▍▌▋▊▉", "#")
"""ASCII replacements for the characters that tables and bars are drawn with."""


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """Replace characters missing in the encoding: drawings by ASCII, all others by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or ascii(one)[1:-1] for one in lost), error.end


class LastingStream(io.TextIOWrapper):
    """Standard output or error, to which writing never fails.

    A batch goes on when the reader of its log has closed it: the studies matter more. From then on
    output is discarded. After a full disk only the affected output is lost, as a service may run
    for months after it. lost: why output is missing although its reader is still there, or None.
    """

    lost: OSError | None = None

    def write(self, text: str, /) -> int:
        with self._lasting():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._lasting():
            super().flush()

    @contextmanager
    def _lasting(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            has_reader = not self._is_left(error)
            if has_reader:
                self.lost = self.lost or error
            with _leading_nowhere(self.fileno(), for_good=not has_reader):
                super().flush()

    def _is_left(self, error: OSError) -> bool:
        """Return whether a pipe lost its reader, or a terminal is closed."""
        is_device = stat.S_ISCHR(os.fstat(self.fileno()).st_mode)
        return error.errno == errno.EPIPE or (error.errno == errno.EIO and is_device)


@contextmanager
def _leading_nowhere(descriptor: int, *, for_good: bool) -> Generator[None]:
    """Discard what is written there, during the block or for good."""
    before, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        if not for_good:
            os.dup2(before, descriptor)
        os.close(before)
        os.close(nowhere)


def replace_streams() -> LastingStream:
    """Replace both streams by lasting ones that encode any name; return standard output."""
    codecs.register_error(__name__, _replaced)
    output, sys.stderr = _lasting_stream(sys.stdout), _lasting_stream(sys.stderr)
    sys.stdout = output
    return output


def _lasting_stream(stream: TextIO | None) -> LastingStream:
    if stream is None:  # closed by the caller, as with >&-
        return LastingStream(open(os.devnull, "wb"), "utf-8")  # noqa: PTH123
    return LastingStream(
        stream.buffer, stream.encoding, __name__, line_buffering=bool(stream.line_buffering)
    )


def print_line(line: str, stream: TextIO) -> None:
    """Print a line and flush it; on a terminal, failures and notes have a colour."""
    if stream.isatty() and has_colours():
        line = coloured(line)
    stream.write(f"{line}\n")  # in one go, for others may write to the same log
    stream.flush()


_RED, _YELLOW, _PLAIN_AGAIN = "\x1b[31m", "\x1b[33m", "\x1b[39m"
_FAILED = re.compile(r"^(failed|Error)(?=: )|(?<=  )failed$")
_NOTED = re.compile(r"^(note|skipped)(?=: )")


def coloured(line: str) -> str:
    """Return a line with the word that begins a failure or note, or ends a failed row, coloured."""
    for pattern, colour in ((_FAILED, _RED), (_NOTED, _YELLOW)):
        line = pattern.sub(lambda found, by=colour: f"{by}{found[0]}{_PLAIN_AGAIN}", line)
    return line


def has_colours() -> bool:
    """Return whether the user's terminal may be sent colours (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def print_sentences(sentences: Iterable[str], stream: TextIO) -> None:
    """Print sentences, on a terminal wrapped between words with further lines indented.

    Paths below the current folder are relative to it.
    """
    for sentence in map(from_here, sentences):
        columns = columns_of(stream)
        lines = [sentence] if columns is None else broken(sentence, columns)
        for line in lines:
            print_line(line, stream)


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal that a stream goes to, or None."""
    if not stream.isatty():
        return None
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not a stream of the system
        return shutil.get_terminal_size().columns
    return shutil.get_terminal_size(size).columns if "COLUMNS" in os.environ else size.columns


def broken(sentence: str, columns: int) -> list[str]:
    """Wrap a sentence; a word that is longer than a line stays whole."""
    return textwrap.wrap(
        sentence,
        max(columns, 20),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


PATIENCE = 1.0
"""Seconds before the spinner appears; shorter tasks show none."""

SEARCHING = "Searching for studies"


@contextmanager
def spinner(what: str) -> Generator[Callable[[str], None]]:
    """Show the task and its elapsed time on stderr during the block; yield a function to rename it.

    Only a terminal shows it. The block prints nothing on stdout.
    """
    sign = _Sign(what)
    timer = threading.Timer(PATIENCE, sign.appear)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield sign.rename
    finally:
        timer.cancel()
        sign.vanish()
        if timer.is_alive():
            timer.join()


@contextmanager
def counting(what: str, things: str) -> Generator[Callable[[int, int], None]]:
    """Show progress as `spinner`; yields a callback for the number of things done."""
    with spinner(what) as rename:
        yield lambda done, due: rename(f"{what}, {done} of {due} {things}")


class _Sign:
    """Spinner that a thread of its own shows once the task takes long."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changes = threading.Lock()
        self._shown: Progress | None = None
        self._is_over = False

    def rename(self, what: str) -> None:
        with self._changes:
            self._what = what
            if self._shown:
                self._shown.update(self._shown.task_ids[0], description=what)

    def appear(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(file=sys.stderr)
        columns = (
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with self._changes:
            if self._is_over or console.is_dumb_terminal:
                return
            self._shown = Progress(*columns, console=console, transient=True, redirect_stdout=False)
            self._shown.add_task(self._what, total=None)
            self._shown.start()

    def vanish(self) -> None:
        with self._changes:
            self._is_over = True
            if self._shown:
                self._shown.stop()
