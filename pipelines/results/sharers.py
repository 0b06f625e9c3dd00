"""Runs that share an output folder: workers of a queue, or shards of one command.

Sharers of a folder are of one kind at a time. The first one writes the kind into a file of the
record, which each holds locked while it runs; a lock ends with its process, also by kill -9.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...engine.decoding import FieldError, decode_known, encode_stated, parse
from ...io.files.disk import read_at
from ...io.files.locks import lock
from ..errors import OutputFolderAwaitedError, OutputFolderError

SHARERS = "sharers.json"


@dataclass(frozen=True, slots=True)
class Sharers:
    """Kind of runs that may write to an output folder together.

    who: they, in words. alike: what all of them have in common, by name.
    """

    who: str
    alike: Mapping[str, str] = field(default_factory=dict[str, str])

    def unlike(self, other: "Sharers") -> str:
        """Return what another kind has different, in words; empty if nothing."""
        if other.who != self.who:
            return other.who
        return " and ".join(
            name for name, value in self.alike.items() if other.alike.get(name) != value
        )


WORKERS = Sharers("workers of a queue")
_UNKNOWN = "other runs"


def join(
    sharers: Sharers, output: Path, begins_anew: bool, open_file: Callable[[str], int]
) -> ExitStack:
    """Join those who share an output folder, until the returned stack is closed.

    No other run joins meanwhile. begins_anew: whether this run may follow others that had something
    else in common. open_file: opens a file of the record. Raises OutputFolderError, or its subclass
    for runs that are still at work; and OSError if there are no locks.
    """
    with ExitStack() as opened:
        held = open_file(SHARERS)
        opened.callback(os.close, held)
        is_alone = True
        try:
            lock(held)
        except BlockingIOError:
            is_alone = False
        size = os.fstat(held).st_size
        unlike = "" if is_alone else _UNKNOWN
        with suppress(FieldError):  # torn by a crash of the first one
            unlike = sharers.unlike(decode_known(Sharers, parse(read_at(held, size, 0))))
        if not is_alone and unlike:
            raise OutputFolderAwaitedError(
                f"{_named(sharers, unlike)} are writing to {output}; wait for them to end, or "
                "choose another output folder."
            )
        if unlike and sharers.alike and not begins_anew and unlike != WORKERS.who:
            raise OutputFolderError(
                f"{_named(sharers, unlike)} wrote to {output}; give all {sharers.who} equal "
                "options, or use setting overwrite to begin again."
            )
        if is_alone:
            os.ftruncate(held, 0)
            os.write(held, json.dumps(encode_stated(sharers)).encode())
        # Locks of bytes, as on Windows, cannot be converted; nobody else joins in between.
        shared = open_file(SHARERS)
        opened.pop_all().close()
        opened.callback(os.close, shared)
        lock(shared, shared=True)
        return opened.pop_all()


def _named(sharers: Sharers, unlike: str) -> str:
    """Return other sharers in words, with their difference."""
    if unlike in (WORKERS.who, "shards", _UNKNOWN):
        return unlike.capitalize()
    return f"{sharers.who.capitalize()} that differ in {unlike}"
