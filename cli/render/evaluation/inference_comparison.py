"""Studies that were translated in patches and at once, side by side."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TypeAlias

from ....pipelines.calibration import ComparedStudy
from ....pipelines.report.report import Failure
from ..progress_lines import failure_text
from ..terminal.tables import Row, TextTable
from ..terminal.text import printable, seconds

_Rows: TypeAlias = Sequence[tuple[str, ComparedStudy | Failure]]
"""Names of studies, and what came of each."""


def lines(rows: _Rows, columns: int | None) -> Iterator[str]:
    """The table of studies, and what is typical; columns: of the terminal, None for no limit."""
    found = [(name, row) for name, row in rows if isinstance(row, ComparedStudy)]
    if not found:
        return
    table = TextTable(
        head=Row("study", [*_twice("seam"), "relative L2", "mean |diff|", *_twice("seconds")]),
        rows=[Row(printable(name), _figures(row)) for name, row in found],
    )
    yield from table.lines(columns)
    apart = median(row.difference for _, row in found)
    faster = median(row.patches.seconds / max(row.volume.seconds, 1e-9) for _, row in found)
    yield (
        f"Typically they differ by {apart:.2g} (relative L2), and a volume at once takes "
        f"{1 / faster:.2g} x the time of patches. Seams are looked for where patches meet."
    )


def reasons(rows: _Rows) -> Iterator[str]:
    """Why studies could not be compared."""
    for name, row in rows:
        if isinstance(row, Failure):
            yield f"not compared: {printable(name)}: {failure_text(row)}"


def _twice(figure: str) -> list[str]:
    return [f"{figure}, patches", "at once"]


def _figures(row: ComparedStudy) -> list[str]:
    return [
        *map(_score, (row.patches.seam, row.volume.seam)),
        f"{row.difference:.2g}",
        f"{row.mean_difference:.3g}",
        *(seconds(each.seconds) for each in (row.patches, row.volume)),
    ]


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"
