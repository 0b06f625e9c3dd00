"""`cuda-cyclegan report`: shows results of past batches, as text or as a page."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.option import Effect
from ..errors import errors_reported
from ..options.printing import AllRows, Traceback
from ..render.documents import save_page, written
from ..render.terminal import columns_of, print_line, print_sentences
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...pipelines.report.codec import StoredReport

EXAMPLE = """\b
Examples:
  cuda-cyclegan report results
  cuda-cyclegan report before.json after.json --html comparison.html
"""


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS|FILE.json...",
            help="Folders of results, or reports that 'translate --report' wrote.",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a self-contained HTML page."),
        Effect.WRITES,
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing page."), Effect.WRITES
    ] = False,
    all_rows: AllRows = False,
    verbose: Traceback = False,
) -> None:
    """Show reports of past batches.

    Times, throughput, memory, a timeline of the studies, and failures. Two reports are also
    compared study by study. The HTML page is self-contained and shows the previews of 'translate
    --preview'.

    \b
    Exit status:
      0  shown
      2  a file is not a report, or the page exists already
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...pipelines.report.codec import read_report

        stored = [
            replace(read_report(_report_of(file)), name=name)
            for file, name in zip(files, _names(files), strict=True)
        ]
        if html:
            _write_page(stored, html, force=force)
        else:
            _print(stored, all_rows=all_rows)


def _report_of(path: Path) -> Path:
    """Return a report's file, for a folder of results the one that is kept with its record."""
    from ...pipelines.results.kept_report import kept_report

    return (kept_report(path) if path.is_dir() else None) or path


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that differ, such as first/results and second/results."""
    whole = [Path(os.path.abspath(path)).parts for path in paths]  # noqa: PTH100
    kept = 1
    while len({parts[-kept:] for parts in whole}) < len(set(whole)):
        kept += 1
    return [str(Path(*parts[-kept:])) for parts in whole]


def _print(stored: "list[StoredReport]", *, all_rows: bool) -> None:
    from ..render.report import sections

    columns = columns_of(sys.stdout)
    for section in sections(stored, columns, all_rows=all_rows):
        for line in section.lines:
            print_line(line, sys.stdout)
        print_sentences(section.sentences, sys.stdout)


def _write_page(stored: "list[StoredReport]", target: Path, *, force: bool) -> None:
    from ...pipelines.results.output_file import check_free
    from ..render.report import page

    check_free(target, replace=force, sources=tuple(one.file for one in stored))
    size = save_page(page(stored, target), target)
    print_line(written(target, size), sys.stdout)
