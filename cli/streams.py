"""Standard output and error that neither a strange name nor a vanished reader can break."""

import os
import sys
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
