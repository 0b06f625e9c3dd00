"""Tables of studies, a name of any length with figures behind it; and listings of facts."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

from .elision import NARROWEST, told_apart

RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
GAP = "  "
WIDEST_CELL = 30
"""Columns of a cell in the middle of a listing, so that the words behind it have room."""
_NARROWEST_CELL = 16


@dataclass(frozen=True, slots=True)
class Row:
    """A study and its figures; the last figure is a word and stands left.

    name: what the row is about.
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
        """The table as lines.

        columns: width of the terminal, or None for no limit. Of a name that leaves its figures no
        room the middle goes; where that is not enough, figures go, those before the last first.
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
        names = told_apart([row.name for row in self.rows], name_width)
        for name, row in zip(names, self.rows, strict=True):
            yield _line(Row(name, row.figures), name_width, widths)
        if self.total:
            yield rule
            yield _line(self.total, name_width, widths)

    @property
    def figures_width(self) -> int:
        """Columns that everything behind the name takes."""
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
    """Facts as lines: a subject, and cells of words behind it that are broken to fit.

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
    return textwrap.wrap(cell, max(width, 1), break_on_hyphens=False) or [""]
