"""The ledger: how far each study has come, one JSON object a line, the newest of each counts.

Lines are appended and synced; a kill loses at most the last one, and what it told is done again.
When it is opened, and whenever it has doubled since, it is written anew with what still matters.
"""

import errno
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from ...engine.decoding import FieldError, Json, decode_known, encode, parse
from ...io.errors import WriteError
from ...io.files.atomic import whole_file
from ...io.files.own_files import open_own
from ...io.files.regular import read_regular
from ..errors import ConfigError
from .gaps import Gap

NAME = "ledger.jsonl"
DAMAGED = "ledger-damaged.jsonl"
VERSION = 1
GROWTH = 8 << 20
"""Bytes appended before which it is not written anew: those of 50,000 confirmed objects."""
REMEMBERED_SECONDS = 365 * 86400.0
"""For so long an emptied study is known again."""

SeriesState: TypeAlias = Literal["queued", "failed", "sending", "sent", "undelivered"]


@dataclass(frozen=True, slots=True)
class SeriesRecord:
    """A series of a study that became a job, or several that are the channels of one.

    label: its name in results. round: which one of the study's translations made it. files: hash of
    the objects it consists of. images: how many those are. job: in the queue. key: of equal work
    there. state: how far it came. reason: why it did not come further. queued, done, begun, sent:
    when the job was queued, when it had ended, and when sending began and ended, in seconds since
    1970; 0 before. received: from when to when its objects came. others: names of further results,
    of a model that makes several. remark: what its result says of an incomplete source.
    """

    label: str
    round: int
    files: str
    images: int
    job: str
    key: str
    state: SeriesState = "queued"
    reason: str = ""
    queued: float = 0.0
    done: float = 0.0
    sent: float = 0.0
    received: tuple[float, float] = (0.0, 0.0)
    begun: float = 0.0
    others: tuple[str, ...] = ()
    remark: str = ""

    @property
    def place(self) -> str:
        """Of its result, below the study's."""
        return f"{self.round}/{self.label}"

    @property
    def places(self) -> tuple[str, ...]:
        """Of all its results, that one first."""
        return self.place, *(f"{self.round}/{other}" for other in self.others)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study whose objects were looked at.

    study: route and name. objects: hash of those that were there. images: how many. arrived: when
    they had come at first. looked: when they were looked at. rounds: translations so far. series:
    those that became jobs, older rounds first. left_out: what else is in it, in words. emptied:
    when it was removed; 0 before. refused, broke_off: what it lacks, as in `Gap`. held, until:
    since when it waits for that, and how long it does; 0 if it does not wait.
    """

    study: str
    objects: str
    images: int
    arrived: float
    looked: float
    rounds: int
    series: tuple[SeriesRecord, ...] = ()
    left_out: tuple[str, ...] = ()
    emptied: float = 0.0
    refused: int = 0
    broke_off: bool = False
    held: float = 0.0
    until: float = 0.0

    @property
    def gap(self) -> Gap:
        """What it lacks."""
        return Gap(self.refused, self.broke_off)

    def with_series(self, changed: SeriesRecord) -> "StudyRecord":
        """The same, with one series in the place of its earlier state."""
        return replace(
            self,
            series=tuple(changed if one.place == changed.place else one for one in self.series),
        )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """An object of a result that its destination has.

    series: study, round and label. instance: its UID.
    """

    series: str
    instance: str


@dataclass(frozen=True, slots=True)
class _Line:
    version: int
    study: StudyRecord | None = None
    confirmed: Confirmation | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What a ledger's file tells.

    studies: by name. confirmed: objects that destinations have, by series. damaged: how many lines
    nobody can read, but for a last one that a kill cut off.
    """

    studies: dict[str, StudyRecord]
    confirmed: dict[str, set[str]]
    damaged: int


@contextmanager
def open_ledger(folder: Path) -> Generator["Ledger"]:
    """The ledger of a folder, which has no other for the block. Raises OSError or ConfigError.

    Of a damaged one a copy is kept before it is written anew.
    """
    path = folder / NAME
    kept = read(path, time.time())
    if kept.damaged:
        with whole_file(folder / DAMAGED) as part:
            part.write_bytes(read_regular(path))
            part.chmod(0o600)
    ledger = Ledger(path, _written(path, kept), kept)
    try:
        yield ledger
    finally:
        ledger.close()


class Ledger:
    """An open ledger, made by `open_ledger`; any thread may call.

    What stores raises OSError, and then nothing has changed. damaged: lines that could not be read
    when it was opened.
    """

    def __init__(self, path: Path, descriptor: int, kept: Kept) -> None:
        """descriptor: of the file at the path. kept: what it told."""
        self.damaged = kept.damaged
        self._path, self._descriptor = path, descriptor
        self._lock = threading.RLock()
        self._studies: dict[str, StudyRecord] = {}
        self._present: dict[str, StudyRecord] = {}
        self._confirmed = defaultdict(set, kept.confirmed)
        self._know(kept.studies.values())
        self._shorten_at = self._next_size()

    def close(self) -> None:
        """Store nothing more."""
        with self._lock:  # a thread that is late must not write into what has this number then
            os.close(self._descriptor)
            self._descriptor = -1

    def studies(self) -> list[StudyRecord]:
        """All that are known, emptied ones too."""
        with self._lock:
            return list(self._studies.values())

    def present(self) -> list[StudyRecord]:
        """Those that are not emptied: few, so that they may be looked at all the time."""
        with self._lock:
            return list(self._present.values())

    def study(self, name: str) -> StudyRecord | None:
        """One of them."""
        with self._lock:
            return self._studies.get(name)

    @contextmanager
    def alone(self) -> Generator[None]:
        """Keep other threads from changing a record between a look at it and what follows of it."""
        with self._lock:
            yield

    def put(self, *records: StudyRecord) -> None:
        """Store what is known of studies, on disk before this returns.

        What follows of an earlier look at them is put `alone`.
        """
        with self._lock:
            self._append(*(_Line(VERSION, study=record) for record in records))
            os.fsync(self._descriptor)
            self._know(records)
            self._shorten()

    def change(self, name: str, changed: Callable[[StudyRecord], StudyRecord]) -> StudyRecord:
        """Store what becomes of a study's record."""
        with self._lock:
            record = changed(self._studies[name])
            self._append(_Line(VERSION, study=record))
            os.fsync(self._descriptor)
            self._know([record])
            return record

    def _know(self, records: Iterable[StudyRecord]) -> None:
        for record in records:
            self._studies[record.study] = record
            if record.emptied:
                self._present.pop(record.study, None)
            else:
                self._present[record.study] = record

    def confirmed(self, series: str) -> Collection[str]:
        """The objects of a result that its destination has."""
        with self._lock:
            return frozenset(self._confirmed.get(series, ()))

    def confirm(self, series: str, instance: str) -> None:
        """Note that a destination has an object; on disk for sure with the next record."""
        with self._lock:
            self._append(_Line(VERSION, confirmed=Confirmation(series, instance)))
            self._confirmed[series].add(instance)
            self._shorten()

    def forget_confirmations(self, series: str) -> None:
        """Of a result that is sent as a whole."""
        with self._lock:
            self._confirmed.pop(series, None)

    def _shorten(self) -> None:
        """Write it anew if most of it may be of the past; without room for that it grows on."""
        if os.fstat(self._descriptor).st_size < self._shorten_at:
            return
        with suppress(WriteError):
            fresh = _written(self._path, Kept(self._studies, self._confirmed, damaged=0))
            os.close(self._descriptor)
            self._descriptor = fresh
        self._shorten_at = self._next_size()

    def _next_size(self) -> int:
        size = os.fstat(self._descriptor).st_size
        return size + max(size, GROWTH)

    def _append(self, *lines: _Line) -> None:
        data = b"".join(map(_encoded, lines))
        end = os.fstat(self._descriptor).st_size
        try:
            if os.write(self._descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        except OSError:
            os.ftruncate(self._descriptor, end)  # what was begun must not spoil the next line
            raise


def read(path: Path, now: float) -> Kept:
    """What a ledger's file tells that still matters.

    Raises ConfigError for a ledger of a newer version, or OSError.
    """
    studies: dict[str, StudyRecord] = {}
    confirmed: dict[str, set[str]] = defaultdict(set)
    lines = (read_regular(path) if path.exists() else b"").split(b"\n")
    entries = [_entry(path, line) for line in lines]
    was_cut_off = entries[-1] is None and lines[-1][:1] in (b"", b"{")
    for entry in filter(None, entries):
        if entry.study:
            studies[entry.study.study] = entry.study
        if entry.confirmed:
            confirmed[entry.confirmed.series].add(entry.confirmed.instance)
    known = {
        name: record
        for name, record in studies.items()
        if not record.emptied or now - record.emptied < REMEMBERED_SECONDS
    }
    open_series = {
        f"{record.study}/{one.place}"
        for record in known.values()
        for one in record.series
        if one.state != "sent"
    }
    of_open = {one: confirmed[one] for one in open_series & confirmed.keys()}
    return Kept(known, of_open, entries.count(None) - was_cut_off)


def _entry(path: Path, line: bytes) -> _Line | None:
    """What a line tells; None if nobody can read it."""
    try:
        found = parse(line)
        _check_version(path, found)
        return decode_known(_Line, found)
    except FieldError:
        return None


def _check_version(path: Path, line: Json) -> None:
    version = line.get("version") if isinstance(line, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"{path} was written by a newer version of cuda-cyclegan; update this one."
        )


def _written(path: Path, kept: Kept) -> int:
    """Write a ledger anew; a descriptor that appends to it. Raises OSError or WriteError."""
    with ExitStack() as undone:
        with whole_file(path) as part:
            part.write_bytes(b"".join(_lines(kept)))
            part.chmod(0o600)
            descriptor = open_own(part, os.O_WRONLY | os.O_APPEND)
            undone.callback(os.close, descriptor)
        undone.pop_all()
    return descriptor


def _lines(kept: Kept) -> Iterator[bytes]:
    for record in kept.studies.values():
        yield _encoded(_Line(VERSION, study=record))
    for series, instances in kept.confirmed.items():
        for instance in sorted(instances):
            yield _encoded(_Line(VERSION, confirmed=Confirmation(series, instance)))


def _encoded(line: _Line) -> bytes:
    fields = encode(line)
    assert isinstance(fields, dict)
    told = {key: value for key, value in fields.items() if value is not None}
    return json.dumps(told).encode() + b"\n"
