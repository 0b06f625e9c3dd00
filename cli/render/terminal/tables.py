"""Tables of studies, a name of any length with figures behind it; and listings of facts."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len

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

        columns: width of the terminal, or None for no limit. A name that leaves its figures no
        room has a line of its own, so that no name is ever cut.
        """
        if not self.rows:
            return
        widths = self._figure_widths()
        every = [self.head, *self.rows]
        name_width = max(cell_len(row.name) for row in every)
        if columns is not None:
            least = max(len(row.name) for row in (self.head, self.total) if row)
            name_width = max(least, min(name_width, columns - self.figures_width))
        rule = RULE * (name_width + self.figures_width)
        yield from _lines(self.head, name_width, widths)
        yield rule
        for row in self.rows:
            yield from _lines(row, name_width, widths)
        if self.total:
            yield rule
            yield from _lines(self.total, name_width, widths)

    @property
    def figures_width(self) -> int:
        """Columns that everything behind the name takes."""
        widths = self._figure_widths()
        return sum(widths) + len(GAP) * len(widths)

    def _figure_widths(self) -> list[int]:
        every = [self.head, *self.rows, *([self.total] if self.total else [])]
        return [
            max(map(cell_len, column)) for column in zip(*(r.figures for r in every), strict=True)
        ]


def _lines(row: Row, name_width: int, widths: Sequence[int]) -> Iterator[str]:
    name = row.name
    if cell_len(name) > name_width:
        yield name
        name = ""
    padding = " " * (name_width - cell_len(name))
    *numbers, word = row.figures
    figures = [figure.rjust(width) for figure, width in zip(numbers, widths, strict=False)]
    yield GAP.join([name + padding, *figures, word]).rstrip()


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
