"""Marks of a reader on studies: stored beside the results, and compared with another reader's."""

import csv
import io
import json
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from getpass import getuser
from pathlib import Path
from time import time
from typing import Literal, TypeAlias, get_args

from ...engine.decoding import FieldError, decode, parse
from ...io.files.documents import read_document, write_document
from ...io.files.locks import folder_lock
from ..errors import ReviewFileError
from ..timestamps import iso_time

SCHEMA = "cuda-cyclegan/review/1"
NAME = "review.csv"
"""Name of the table of marks; the JSON beside it has the same stem."""

Grade: TypeAlias = Literal["good", "doubtful", "bad"]
GRADES: tuple[Grade, ...] = get_args(Grade)
LONGEST_COMMENT = 2000
_COLUMNS = ("study", "mark", "comment", "reader", "when")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters by which a spreadsheet takes a cell for a formula."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Verdict of a reader on one study.

    study: its name. mark: the verdict; None if there is only a comment. comment: in the reader's
    words. reader: login. when: ISO 8601 with zone.
    """

    study: str
    mark: Grade | None
    comment: str
    reader: str
    when: str


@dataclass(frozen=True, slots=True)
class _File:
    schema: str
    marks: tuple[Mark, ...]


class Review:
    """Marks in a CSV file for people and a JSON file beside it for programs, a row a study.

    file: the CSV. Every change is stored before it counts, and read before it: another page of the
    same folder may have stored marks meanwhile.
    """

    def __init__(self, file: Path) -> None:
        """Raises ReviewFileError for a JSON file that is no review."""
        self.file = file
        self._guard = threading.Lock()
        self.marks = self._stored()

    @property
    def json(self) -> Path:
        """Path of the JSON file."""
        return self.file.with_suffix(".json")

    def put(self, study: str, mark: Grade | None, comment: str) -> Mark | None:
        """Store the verdict on a study; neither mark nor comment removes it.

        Raises WriteError and ReviewFileError.
        """
        new = Mark(study, mark, comment[:LONGEST_COMMENT], _login(), iso_time(time()))
        with self._guard, _alone_in(self.file.parent):
            marks = {**self._stored(), study: new}
            if mark is None and not comment:
                del marks[study]
            self._store(marks)
            self.marks = marks
        return marks.get(study)

    def _stored(self) -> dict[str, Mark]:
        return dict(load_marks(self.json)) if self.json.exists() else {}

    def _store(self, marks: Mapping[str, Mark]) -> None:
        rows = [asdict(marks[name]) for name in sorted(marks)]
        content = {"schema": SCHEMA, "marks": rows}
        write_document(self.json, f"{json.dumps(content, indent=2)}\n".encode())
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(row[name] or "") for name in _COLUMNS})
        write_document(self.file, table.getvalue().encode())


@contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Keep other programs from storing marks in a folder, if folders can be locked there."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(folder_lock(folder, waits=True))
        yield


Reviews: TypeAlias = Mapping[Path, Review]
"""Reviews by folder of results."""


def _login() -> str:
    try:
        return getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def load_marks(file: Path) -> Mapping[str, Mark]:
    """Return the marks by study in a review's JSON file, or in that beside its CSV file.

    Raises ReviewFileError.
    """
    stored = file.with_suffix(".json")
    try:
        found = decode(_File, parse(read_document(stored)))
    except OSError as error:
        raise ReviewFileError(f"{stored} cannot be read: {error.strerror}.") from error
    except FieldError as error:
        raise ReviewFileError(
            f"{stored} is not a review ({error}); give a file that 'view' wrote."
        ) from error
    if found.schema != SCHEMA:
        raise ReviewFileError(
            f"{stored} has layout {found.schema} and this version reads {SCHEMA}; use the version "
            "that wrote it."
        )
    return {mark.study: mark for mark in found.marks}


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two readers over the studies that both marked.

    both: number of these studies. alike: number with the same mark. counts: studies by the marks of
    the first and the second reader. unlike: names of the studies with different marks. alone:
    number of studies that only the first, and only the second reader marked.
    """

    both: int
    alike: int
    counts: Mapping[tuple[Grade, Grade], int]
    unlike: tuple[str, ...]
    alone: tuple[int, int]

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (1960), unweighted; None where chance alone explains full agreement."""
        if not self.both:
            return None
        firsts, seconds = Counter[Grade](), Counter[Grade]()
        for (first, second), count in self.counts.items():
            firsts[first] += count
            seconds[second] += count
        by_chance = sum(firsts[grade] * seconds[grade] for grade in GRADES) / self.both**2
        observed = self.alike / self.both
        return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)


def agreement(first: Mapping[str, Mark], second: Mapping[str, Mark]) -> Agreement:
    """Compare the marks of two readers."""
    ours: dict[str, Grade] = {name: mark.mark for name, mark in first.items() if mark.mark}
    theirs: dict[str, Grade] = {name: mark.mark for name, mark in second.items() if mark.mark}
    names = [name for name in ours if name in theirs]
    counts = Counter[tuple[Grade, Grade]]((ours[name], theirs[name]) for name in names)
    unlike = tuple(sorted(name for name in names if ours[name] != theirs[name]))
    alone = len(ours) - len(names), len(theirs) - len(names)
    return Agreement(len(names), len(names) - len(unlike), counts, unlike, alone)
