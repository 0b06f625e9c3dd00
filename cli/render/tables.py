"""Tables whose names are shortened to the width of a terminal."""

import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
GAP = "  "
WIDEST_CELL = 30
"""Maximum columns of a cell in the middle of a listing, so that later cells fit."""
_NARROWEST_CELL = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Study and its figures; the last figure is a word, aligned left.

    name: subject of the row.
    """

    name: str
    figures: Sequence[str]


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows under a head, and perhaps a total.

    rows: with as many figures as the head.
    """

    head: Row
    rows: Sequence[Row]
    total: Row | None = None

    def lines(self, columns: int | None) -> Iterator[str]:
        """Return the table as lines.

        columns: width of the terminal, or None for no limit. If a line is too long, the middle of
        its name is cut; if that is not enough, figures are dropped, those before the last first.
        """
        if not self.rows:
            return
        fixed = [self.head, *([self.total] if self.total else [])]
        least = max(cell_len(row.name) for row in fixed)
        name_width = max(least, *(cell_len(row.name) for row in self.rows))
        if columns is not None:
            narrowest = min(name_width, max(NARROWEST, least))
            if narrowest + self.figures_width > columns and len(self.head.figures) > 1:
                yield from self._without_one_figure().lines(columns)
                return
            name_width = min(name_width, max(columns - self.figures_width, narrowest))
        widths = self._figure_widths()
        rule = RULE * (name_width + self.figures_width)
        yield _line(self.head, name_width, widths)
        yield rule
        names = distinguishable([row.name for row in self.rows], name_width)
        for name, row in zip(names, self.rows, strict=True):
            yield _line(Row(name, row.figures), name_width, widths)
        if self.total:
            yield rule
            yield _line(self.total, name_width, widths)

    @property
    def figures_width(self) -> int:
        """Return the number of columns used after the name."""
        widths = self._figure_widths()
        return sum(widths) + len(GAP) * len(widths)

    def _without_one_figure(self) -> "TextTable":
        def narrower(row: Row) -> Row:
            return Row(row.name, [*row.figures[:-2], row.figures[-1]])

        total = narrower(self.total) if self.total else None
        return TextTable(narrower(self.head), [narrower(row) for row in self.rows], total)

    def _figure_widths(self) -> list[int]:
        every = [self.head, *self.rows, *([self.total] if self.total else [])]
        return [
            max(map(cell_len, column)) for column in zip(*(r.figures for r in every), strict=True)
        ]


def _line(row: Row, name_width: int, widths: Sequence[int]) -> str:
    padding = " " * (name_width - cell_len(row.name))
    *numbers, word = row.figures
    figures = [figure.rjust(width) for figure, width in zip(numbers, widths, strict=False)]
    return GAP.join([row.name + padding, *figures, word]).rstrip()


def listing(rows: Sequence[Sequence[str]], columns: int | None) -> Iterator[str]:
    """Return facts as lines: a subject, then cells of words that are wrapped to fit.

    columns: width of the terminal, or None for no limit.
    """
    first, *middle, last = (max(map(cell_len, column)) for column in zip(*rows, strict=True))
    widths = [first, *(min(width, WIDEST_CELL) for width in middle)]
    if columns is not None:
        taken = sum(widths) + len(GAP) * len(widths)
        last = max(min(last, columns - taken), _NARROWEST_CELL)
    for row in rows:
        cells = [_wrapped(cell, width) for cell, width in zip(row, [*widths, last], strict=True)]
        for line in zip_longest(*cells, fillvalue=""):
            padded = (
                cell + " " * (width - cell_len(cell))
                for cell, width in zip(line, [*widths, 0], strict=True)
            )
            yield GAP.join(padded).rstrip()


def _wrapped(cell: str, width: int) -> list[str]:
    """Return the lines of a cell; a count, as in `conv x 10`, stays on the line of its noun."""
    joined = _COUNT.sub(f"{_JOINT}x{_JOINT}", cell)
    lines = textwrap.wrap(joined, max(width, 1), break_on_hyphens=False)
    return [line.replace(_JOINT, " ") for line in lines] or [""]


_COUNT = re.compile(r" x (?=\d+(?:,|$))")
_JOINT = "\N{NO-BREAK SPACE}"


GONE = "…"
NARROWEST = 12
"""Columns below which names cannot be distinguished."""


def shortened(text: str, width: int) -> str:
    """Shorten to `width` columns, first in the middle, since names differ at their ends."""
    if cell_len(text) <= width:
        return text
    tail = _end_of(text, 2 * width // 3)
    return f"{_begin_of(text, width - 1 - cell_len(tail))}{GONE}{tail}"


def distinguishable(names: Sequence[str], width: int) -> list[str]:
    """Shorten each name as `shortened` does, keeping the part that makes it unique."""
    short = [shortened(name, width) for name in names]
    alike: dict[str, set[str]] = {}
    for name, shown in zip(names, short, strict=True):
        alike.setdefault(shown, set()).add(name)
    return [
        shown if len(alike[shown]) == 1 else _from_difference(name, alike[shown], width)
        for name, shown in zip(names, short, strict=True)
    ]


def _from_difference(name: str, alike: Collection[str], width: int) -> str:
    """Keep the beginning, and the part where names with equal ends begin to differ."""
    head = _begin_of(name, width // 4)
    at = max(_common(alike) - width // 4, len(head))
    rest = width - cell_len(head) - 1
    if cell_len(name[at:]) <= rest:
        return f"{head}{GONE}{_end_of(name, rest)}"
    return f"{head}{GONE}{_begin_of(name[at:], rest - 1)}{GONE}"


def _common(names: Collection[str]) -> int:
    """Return the number of letters with which all of them begin."""
    first, last = min(names), max(names)
    return next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)


def _begin_of(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[:-1]
    return text


def _end_of(text: str, width: int) -> str:
    while cell_len(text) > width:
        text = text[1:]
    return text
