"""Marks of readers on studies: rows of one CSV file beside the results."""

import csv
import io
import re
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from getpass import getuser
from pathlib import Path
from time import time
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from ...engine.decoding import FieldError, decode, parse
from ...io.files.documents import read_document, write_document
from ...io.files.locks import folder_lock
from ..errors import ReviewFileError
from ..timestamps import iso_time

NAME = "review.csv"
"""Name of the table of marks in a folder of results."""

Grade: TypeAlias = Literal["good", "doubtful", "bad"]
GRADES: tuple[Grade, ...] = get_args(Grade)
LONGEST_COMMENT = 2000
COLUMNS = ("study", "mark", "comment", "reader", "when")

_SCHEMA = "cuda-cyclegan/review/1"
_DELIMITERS = ",;\t"
_GUARDED = re.compile(r"'*[=+\-@\t]")
"""Beginning of a cell that a spreadsheet takes for a formula, or of one that was guarded."""

_ESCAPED = re.compile(r"[\r\ud800-\udfff]|\\(?=u(?:000d|005c|d[89a-f][0-9a-f]{2}))")
_ESCAPE = re.compile(r"\\u(000d|005c|d[89a-f][0-9a-f]{2})")
"""Characters that a table in UTF-8 cannot hold, and how they are spelled."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Verdict of a reader on one study.

    study: its name. mark: the verdict; None if there is only a comment. comment: in the reader's
    words. reader: name. when: ISO 8601 with zone. more: names and cells of columns that a user
    added.
    """

    study: str
    mark: Grade | None
    comment: str
    reader: str
    when: str
    more: tuple[tuple[str, str], ...] = ()


class Change(TypedDict, total=False):
    """Change of a verdict by its reader; a missing field stays as it is stored.

    mark: the new one; None removes it. comment: the new one; "" removes it.
    """

    mark: Grade | None
    comment: str


@dataclass(frozen=True, slots=True)
class _File:
    schema: str
    marks: tuple[Mark, ...]


class Review:
    """Marks in a CSV file, a row for each study and reader.

    file: the CSV; a JSON file of the same stem, as earlier versions wrote it too, is read if there
    is no CSV. reader: whose marks are stored. shows_all: whether the reader sees the marks of
    others before their own. Every change is stored before it counts, and the file is read before
    it: another page, or a spreadsheet, may have changed it meanwhile.
    """

    def __init__(self, file: Path, reader: str, *, shows_all: bool = False) -> None:
        """Raises ReviewFileError for a file that is no review."""
        if file.suffix == ".json":
            raise ReviewFileError(f"{file} cannot store marks; give a file named .csv.")
        self.file, self.reader, self.shows_all = file, reader, shows_all
        self._guard = threading.Lock()
        self._rows = self._stored()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Marks of all readers."""
        return tuple(mark for marks in self._rows.values() for mark in marks.values())

    def own(self, study: str) -> Mark:
        """Return the reader's own mark on a study, perhaps an empty one."""
        empty = Mark(study, None, "", self.reader, "")
        return self._rows.get(study, {}).get(self.reader, empty)

    def others(self, study: str) -> tuple[Mark, ...]:
        """Return the marks of other readers; none before the reader's own, unless all are shown."""
        if not self.shows_all and self.own(study).mark is None:
            return ()
        marks = self._rows.get(study, {}).values()
        return tuple(mark for mark in marks if mark.reader != self.reader)

    def put(self, study: str, change: Change) -> None:
        """Store a change of the reader's verdict; neither mark nor comment removes it.

        Raises WriteError and ReviewFileError.
        """
        with self._guard, _alone_in(self.file.parent):
            rows = self._stored()
            marks = rows.setdefault(study, {})
            old = marks.get(self.reader) or Mark(study, None, "", self.reader, "")
            new = replace(old, **change, when=iso_time(time()))
            marks[self.reader] = replace(new, comment=new.comment[:LONGEST_COMMENT])
            if new.mark is None and not new.comment:
                del marks[self.reader]
            write_document(
                self.file, _table(one for each in rows.values() for one in each.values())
            )
            self._rows = rows

    def _stored(self) -> dict[str, dict[str, Mark]]:
        rows: dict[str, dict[str, Mark]] = {}
        for file in (self.file, self.file.with_suffix(".json")):
            found = _marks_if_any(file)
            if found is not None:
                for mark in found:
                    rows.setdefault(mark.study, {})[mark.reader] = mark
                break
        return rows


Reviews: TypeAlias = Mapping[Path, Review]
"""Reviews by folder of results."""


def verdict(own: Mark | None, others: Iterable[Mark]) -> dict[str, Any]:
    """Return what a page shows of the marks on a study: the reader's own, and those of others."""
    return {
        "mark": own.mark if own else None,
        "comment": own.comment if own else "",
        "when": own.when if own else "",
        "others": [[one.reader, one.mark, one.comment] for one in others],
    }


@contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Keep other programs from storing marks in a folder, if folders can be locked there."""
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(folder_lock(folder, waits=True))
        yield


def login() -> str:
    """Return the name of this user. Raises ReviewFileError if the system knows none."""
    try:
        return getuser()
    except (KeyError, OSError, ImportError):
        raise ReviewFileError(
            "This user has no login name for marks; give setting reader."
        ) from None


def load_marks(file: Path) -> tuple[Mark, ...]:
    """Return the marks in a review's CSV file, or in a JSON file. Raises ReviewFileError."""
    found = _marks_if_any(file)
    if found is None:
        raise ReviewFileError(f"{file} cannot be read: no such file.")
    return found


def _marks_if_any(file: Path) -> tuple[Mark, ...] | None:
    """Return the marks in a file; None if there is no such file."""
    try:
        content = read_document(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReviewFileError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        marks = (_from_json if file.suffix == ".json" else _from_table)(content)
        _check_single(marks)
    except (ValueError, csv.Error) as error:
        raise ReviewFileError(
            f"{file} is not a review, and stays as it is: {error}; give a file that 'view' wrote."
        ) from error
    return marks


def _check_single(marks: Iterable[Mark]) -> None:
    seen = set[tuple[str, str]]()
    for mark in marks:
        if (mark.study, mark.reader) in seen:
            raise ValueError(f"it has two rows for {mark.study!r} by {mark.reader!r}")
        seen.add((mark.study, mark.reader))


def _from_json(content: bytes) -> tuple[Mark, ...]:
    found = decode(_File, parse(content))
    if found.schema != _SCHEMA:
        raise FieldError("schema", f"must be {_SCHEMA}, not {found.schema}")
    return found.marks


def _from_table(content: bytes) -> tuple[Mark, ...]:
    """Return the rows of a table as spreadsheets store it. Raises ValueError and csv.Error."""
    is_wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))  # "Unicode text" of Excel
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("its text is not UTF-8; a spreadsheet stores it as 'CSV UTF-8'") from None
    if re.match("sep=.\r?\n", text):  # a line that names the delimiter for Excel
        text = text.partition("\n")[2]
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    head = [name.strip().casefold() for name in next(rows, list[str]())]
    if missing := [name for name in COLUMNS if head.count(name) != 1]:
        raise ValueError(f"its first line must name {', '.join(missing)} once")
    return tuple(_mark(head, cells, rows.line_num) for cells in rows if any(cells))


def _mark(head: list[str], cells: list[str], line: int) -> Mark:
    if len(cells) > len(head) and any(cells[len(head) :]):
        raise ValueError(f"line {line} has more cells than the first line")
    texts = [_text(cell) for cell in cells] + [""] * (len(head) - len(cells))
    row = dict(zip(head, texts, strict=False))
    study, word, comment, reader, when = (row.pop(name) for name in COLUMNS)
    grades: dict[str, Grade] = {grade: grade for grade in GRADES}
    grade = grades.get(word.strip().casefold())
    if not study or (word.strip() and grade is None):
        what = f"the mark {word!r}, which is none of {', '.join(GRADES)}" if study else "no study"
        raise ValueError(f"line {line} has {what}")
    return Mark(study, grade, comment, reader.strip(), when, tuple(row.items()))


def _table(marks: Iterable[Mark]) -> bytes:
    rows = sorted(marks, key=lambda mark: (mark.study, mark.reader))
    added = list(dict.fromkeys(name for mark in rows for name, _ in mark.more))
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([*COLUMNS, *added])
    for mark in rows:
        own = (mark.study, mark.mark or "", mark.comment, mark.reader, mark.when)
        more = dict(mark.more)
        writer.writerow(map(_cell, (*own, *(more.get(name, "") for name in added))))
    return table.getvalue().encode()


def _cell(text: str) -> str:
    """Return a text that UTF-8 can hold, and that no spreadsheet takes for a formula.

    Halves of characters, which stand for the bytes of a name that is not UTF-8, are escaped.
    """
    text = _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f"'{text}" if _GUARDED.match(text) else text


def _text(cell: str) -> str:
    """Return the text of a cell: what `_cell` returned it for."""
    text = cell[1:] if cell.startswith("'") and _GUARDED.match(cell) else cell
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
