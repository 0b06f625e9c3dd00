"""`cuda-cyclegan view`: results looked at and marked in a browser."""

import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...pipelines.option import Effect
from ..errors import errors_reported
from ..options.printing import Traceback
from ..render.documents import written
from ..render.terminal import SEARCHING, counting, print_line, print_sentences, spinner
from ..signals import stop_signals

if TYPE_CHECKING:
    from ...pipelines.view.review import Review, Reviews
    from ...pipelines.view.studies import Viewing

EXAMPLE = """\b
Examples:
  cuda-cyclegan view results
  cuda-cyclegan view scan.nii.gz result.nii.gz
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
        Path | None,
        typer.Option(metavar="FILE.csv", help="Compare the marks with another reader's, and exit."),
        Effect.WIDENS_PRIVACY,
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the page with small images into a new folder, and exit."
        ),
        Effect.WRITES,
    ] = None,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the page in the browser."),
        Effect.HARMLESS,
    ] = True,
    verbose: Traceback = False,
) -> None:
    """Look at results in a browser, and mark them.

    Shows scan, result and their difference in three linked planes, and a list of all studies, each
    of which can be marked good, doubtful or bad. The page is served only to this machine, at an
    address with a secret, until Ctrl-C. The marks are stored next to the results, as review.csv and
    review.json. An exported page works from any disk, without this program; it keeps marks in the
    browser until they are saved.

    \b
    Exit status:
      0  ended, compared or exported
      2  a path contains no results, a file is not a report or review, or the
         folder already exists
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    with stop_signals(), errors_reported(verbose=verbose):
        from ...pipelines.view.review import NAME, Review
        from ...pipelines.view.studies import find_viewing

        with spinner(SEARCHING):
            viewing = find_viewing((first, results) if results else (first,), truth)
        [folder] = viewing.folders
        marks = Review((review or folder / NAME).with_suffix(".csv"))
        if compare:
            _compare(marks, compare)
        elif export:
            _export(viewing, {folder: marks}, export)
        else:
            serve(viewing, {folder: marks}, opens=browser)


def _compare(marks: "Review", other: Path) -> None:
    from ...pipelines.view.review import agreement, load_marks
    from ..render.review import agreement_lines

    print_sentences(agreement_lines(agreement(marks.marks, load_marks(other))), sys.stdout)


def _export(viewing: "Viewing", reviews: "Reviews", folder: Path) -> None:
    from ...pipelines.view.export import check_new, export_viewing
    from ..render.review import export_page

    check_new(folder)
    with counting("Exporting", "studies") as done:
        count = len(viewing.studies)
        size = export_viewing(
            viewing, export_page(viewing, reviews), folder, lambda number: done(number, count)
        )
    print_line(written(folder / "index.html", size), sys.stdout)


def serve(viewing: "Viewing", reviews: "Reviews", *, opens: bool) -> None:
    """Serve the page until a signal ends the program. opens: whether the browser shows it."""
    from ...pipelines.view.server import ViewServer
    from ..render.review import view_page

    files = ", ".join(str(review.file) for review in reviews.values())
    with ViewServer(viewing, reviews, view_page(viewing, reviews)) as server:
        print_line(server.url, sys.stdout)
        print_sentences([f"Marks: {files}. Ctrl-C ends."], sys.stderr)
        sys.stdout.flush()
        server.images.read_ahead(0)  # while the browser starts
        if opens:
            webbrowser.open(server.url)
        server.serve_forever()
