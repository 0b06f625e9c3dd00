"""Standard output and error that neither a strange name nor a vanished reader can break."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO


def settle() -> None:
    """Give the program both streams, able to take any name."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # closed by the caller, as with >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        else:
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def say(line: str, stream: TextIO) -> None:
    """Print a line at once; if nobody can take it any more, it and all later ones are lost.

    A batch goes on when the reader of its log is gone: the studies matter more.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def tell(sentences: Iterable[str], stream: TextIO) -> None:
    """Say sentences, on a terminal broken between words with their further lines indented."""
    columns = columns_of(stream)
    for sentence in sentences:
        lines = [sentence] if columns is None else broken(sentence, columns)
        for line in lines:
            say(line, stream)


def columns_of(stream: TextIO) -> int | None:
    """Width of the terminal that a stream goes to, or None."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def broken(sentence: str, columns: int) -> list[str]:
    """A sentence as lines; a word that is longer than a line stays whole."""
    return textwrap.wrap(
        sentence,
        max(columns, 20),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
