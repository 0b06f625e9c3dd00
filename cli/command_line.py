"""Command line of this program, as reports record it."""

import sys
from collections.abc import Sequence

from ..pipelines.jobs.queue.location import has_password, queue_place


def command_line(words: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the command line with the password removed from a queue's address.

    words: arguments after the program's name; by default those of this process.
    """
    return ("cuda-cyclegan", *map(_without_password, sys.argv[1:] if words is None else words))


def _without_password(word: str) -> str:
    option, is_joined, value = word.partition("=")
    if option.startswith("--") and is_joined and has_password(value):
        return f"{option}={queue_place(value)}"
    return str(queue_place(word)) if has_password(word) else word
