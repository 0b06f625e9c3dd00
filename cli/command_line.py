"""The words that this program was called with, as reports keep them."""

import sys
from collections.abc import Sequence

from ..pipelines.jobs.queue.location import has_password, queue_place


def command_line(words: Sequence[str] | None = None) -> tuple[str, ...]:
    """The words, in which the address of a queue stands without its password.

    words: behind the program's name; those of this process unless given.
    """
    return ("cuda-cyclegan", *map(_without_password, sys.argv[1:] if words is None else words))


def _without_password(word: str) -> str:
    option, is_joined, value = word.partition("=")
    if option.startswith("--") and is_joined and has_password(value):
        return f"{option}={queue_place(value)}"
    return str(queue_place(word)) if has_password(word) else word
