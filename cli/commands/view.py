"""`cuda-cyclegan view`: results looked at and marked in a browser."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.option import Effect
from ..errors import errors_reported
from ..options.marks import Browser, ReaderName, ShowMarks
from ..options.printing import Traceback
from ..options.values import wrong_value
from ..render.documents import written
from ..render.terminal import SEARCHING, counting, print_line, print_sentences, spinner
from ..render.text import counted, printable
from ..signals import stop_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...pipelines.view.review import Review, Reviews
    from ...pipelines.view.studies import Viewing

EXAMPLE = """\b
Examples:
  cuda-cyclegan view results
  cuda-cyclegan view scan.nii.gz result.nii.gz
  cuda-cyclegan view results --reader anna --random-order 7
  cuda-cyclegan view results --compare second-reader/review.csv
"""


def view(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS|SCANS",
            help="Folder of results, one result or a report; scans, if results follow.",
        ),
    ],
    results: Annotated[
        Path | None, typer.Argument(metavar="[RESULTS]", help="Results of the scans.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="DIR|FILE", help="Ground truth that the results are compared with."),
        Effect.WIDENS_PRIVACY,
    ] = None,
    review: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="File of the marks.  [default: review.csv in the results]"
        ),
        Effect.WRITES,
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.csv",
            help="Compare the marks with those in another file, and exit; can be repeated.",
        ),
        Effect.WIDENS_PRIVACY,
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the page with small images into a new folder, and exit."
        ),
        Effect.WRITES,
    ] = None,
    with_marks: Annotated[
        bool,
        typer.Option("--with-marks", help="Write all marks and comments into the exported page."),
        Effect.WIDENS_PRIVACY,
    ] = False,
    random_order: Annotated[
        int | None,
        typer.Option(
            metavar="SEED",
            help="Read blind: studies in a random order, without names, notes and measures.",
        ),
        Effect.HARMLESS,
    ] = None,
    reader: ReaderName = None,
    show_marks: ShowMarks = False,
    browser: Browser = True,
    verbose: Traceback = False,
) -> None:
    """Look at results in a browser, and mark them.

    Shows scan, result and their difference in three linked planes, and a list of all studies, each
    of which can be marked good, doubtful or bad. The page is served only to this machine, at an
    address with a secret, until Ctrl-C. The marks are stored next to the results, as review.csv: a
    row for each study and reader. An exported page works from any disk, without this program; it
    keeps marks in the browser until they are saved.

    \b
    Exit status:
      0  ended, compared or exported
      2  a path contains no results, a file is not a report or review, or the
         folder already exists
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    if with_marks and not export:
        raise wrong_value("--with-marks", "needs --export.")
    if random_order is not None and (export or compare):
        why = "hides the names by which marks are stored, so it needs this program's own page."
        raise wrong_value("--random-order", why)
    with stop_signals(), errors_reported(verbose=verbose):
        from ...pipelines.view.measured import measured
        from ...pipelines.view.review import NAME, Review, login
        from ...pipelines.view.studies import blinded, find_viewing

        with spinner(SEARCHING):
            viewing = find_viewing((first, results) if results else (first,), truth)
        if not compare and random_order is None:
            with counting("Measuring", "results") as report_done:
                viewing = measured(viewing, report_done)
        [folder] = viewing.folders
        marks = Review(review or folder / NAME, reader or login(), shows_all=show_marks)
        if compare:
            _compare(marks, compare)
        elif export:
            _export(viewing, {folder: marks}, export, with_marks=with_marks)
        else:
            shown = viewing if random_order is None else blinded(viewing, random_order)
            serve(shown, {folder: marks}, opens=browser)


def _compare(marks: "Review", others: list[Path]) -> None:
    from ...pipelines.view.agreement import readers_of
    from ...pipelines.view.review import load_marks
    from ..render.agreement import agreement_lines

    files = {file.resolve(): (file, load_marks(file)) for file in others}
    own = {marks.file.resolve(): (marks.file, marks.marks)}
    readers = readers_of(list((own | files).values()))
    print_sentences(agreement_lines(readers), sys.stdout)


def _export(viewing: "Viewing", reviews: "Reviews", folder: Path, *, with_marks: bool) -> None:
    from ...pipelines.view.export import check_new, export_viewing
    from ..render.review import export_page

    check_new(folder)
    with counting("Exporting", "studies") as done:
        count = len(viewing.studies)
        page = export_page(viewing, reviews if with_marks else {})
        size = export_viewing(viewing, page, folder, lambda number: done(number, count))
    print_line(written(folder / "index.html", size), sys.stdout)


def serve(viewing: "Viewing", reviews: "Reviews", *, opens: bool) -> None:
    """Serve the page until a signal ends the program. opens: whether the browser shows it."""
    from ...pipelines.view.browser import opened_in_browser
    from ...pipelines.view.server import ViewServer
    from ..render.review import view_page

    def say(sentence: str) -> None:
        print_sentences([sentence], sys.stderr)

    files = ", ".join(printable(str(review.file)) for review in reviews.values())
    reader = printable(next(iter(reviews.values())).reader)
    with ViewServer(viewing, reviews, view_page(viewing, reviews), say) as server:
        for sentence in _unknown(viewing, reviews):
            say(sentence)
        print_line(server.url, sys.stdout)
        say(f"Reader: {reader}. Marks: {files}. Ctrl-C ends.")
        server.images.read_ahead(0)  # while the browser starts
        with opened_in_browser(server.url, say) if opens else nullcontext():
            server.serve_forever()


MOST_NAMED = 3


def _unknown(viewing: "Viewing", reviews: "Reviews") -> "Iterator[str]":
    """Yield which files have rows of studies that are not shown."""
    known = {(study.folder, study.name) for study in viewing.studies}
    for folder, review in reviews.items():
        names = dict.fromkeys(one.study for one in review.marks if (folder, one.study) not in known)
        if names:
            listed = ", ".join(printable(name) for name in list(names)[:MOST_NAMED])
            more = ", ..." if len(names) > MOST_NAMED else ""
            studies = counted(len(names), "study", "studies")
            file = printable(str(review.file))
            yield f"{file} has marks of {studies} not shown here, which are kept: {listed}{more}"
