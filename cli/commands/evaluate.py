"""`cuda-cyclegan evaluate`: compares results with ground truth."""

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...pipelines.option import Effect
from ..errors import Exit, complain, errors_reported, stored
from ..options.printing import Traceback
from ..options.translate import ShardOption
from ..options.values import checked_file, checked_output, wrong_value
from ..render.documents import STDOUT, save_page, screen, write_json, written
from ..render.skipped import unread_places
from ..render.terminal import SEARCHING, columns_of, counting, print_line, print_sentences, spinner
from ..render.text import printable_lines
from ..signals import Stop, stop_signals

if TYPE_CHECKING:
    from ...pipelines.evaluation.pairs import Sources
    from ...pipelines.evaluation.protocols import Outside, Protocol
    from ...pipelines.evaluation.report import Evaluation

EXAMPLE = """\b
Examples:
  cuda-cyclegan evaluate results --truth truth --html evaluation.html
  cuda-cyclegan evaluate results --truth ct --mask masks \\
      --protocol synthrad2025 --csv figures.csv
"""

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_RANGE = re.compile(f"{_NUMBER},{_NUMBER}", re.IGNORECASE)


def evaluate(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Folder with results, or one result.")
    ],
    truth: Annotated[
        Path,
        typer.Option(metavar="DIR|FILE", help="Folder with the ground truth, or one scan."),
        Effect.WIDENS_PRIVACY,
    ],
    mask: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="Folder with masks, or one mask; only voxels above 0 count.",
        ),
        Effect.WIDENS_PRIVACY,
    ] = None,
    segmentations: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="RESULTS TRUTH",
            help="Folders with segmentations of results and truth, or one of each, whose labels "
            "are compared: Dice and HD95.",
        ),
        Effect.WIDENS_PRIVACY,
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="CSV file that pairs files, with the columns result,truth or result,truth,mask.",
        ),
        Effect.WIDENS_PRIVACY,
    ] = None,
    protocol: Annotated[
        Literal["general", "synthrad2025"],
        typer.Option(metavar="general|synthrad2025", help="Evaluation protocol."),
        Effect.HARMLESS,
    ] = "general",
    data_range: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH",
            help="Value range of the truth, for PSNR and SSIM.  [default: the range of each truth]",
        ),
        Effect.HARMLESS,
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE|none",
            help="Value of the truth outside its field of view, which does not count.  [default: "
            "values of a CT below -1024]",
        ),
        Effect.HARMLESS,
    ] = None,
    any_truth: Annotated[
        bool,
        typer.Option(
            "--any-truth", help="Also compare with other results and with the translated scans."
        ),
        Effect.HARMLESS,
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write all metrics as JSON; - prints them."),
        Effect.WRITES,
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write a table with one row per study."),
        Effect.WRITES,
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write an HTML page, worst studies first."),
        Effect.WRITES,
    ] = None,
    shard: ShardOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files."), Effect.WRITES
    ] = False,
    verbose: Traceback = False,
) -> None:
    """Compare results with ground truth.

    Results are matched with ground truth by name; DICOM results also by study and frame of
    reference. Metrics per study and overall: mean absolute error, peak signal-to-noise ratio,
    MS-SSIM, SSIM, Pearson's r and others; of a CT also the errors per tissue and the overlap of
    bone. With --segmentations also the overlap and surface distance of each label.

    Nothing is resampled: a result whose grid differs from its truth's fails, as does an unreadable
    one, and the others are still evaluated. A truth that is the result itself, or a scan or result
    of its batch, fails too, unless --any-truth is set. Unmatched studies are listed.

    \b
    Exit status:
      0  all studies are evaluated
      1  a study failed or is unmatched, or an input could not be read
      2  wrong usage, or an output file exists already
      3  no study was found
      4  a library is missing
      129, 130, 143  stopped by a closed terminal, Ctrl-C or SIGTERM
    """
    wanted = _Wanted(
        checked_output("--json", json),
        checked_file("--csv", csv),
        checked_file("--html", html),
        verbose,
    )
    with stop_signals() as stop, errors_reported(verbose=verbose):
        from ...pipelines.evaluation.pairs import Sources

        sources = Sources(results, truth, mask, pairs, shard, segmentations)
        rules = _protocol(protocol, data_range, outside, mask)
        wanted.check_free(sources, replace=force)
        raise typer.Exit(_run(sources, rules, wanted, stop, any_truth=any_truth))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Outputs to write, and how much to print."""

    json: Path | None
    csv: Path | None
    html: Path | None
    verbose: bool

    @property
    def files(self) -> tuple[Path, ...]:
        """Outputs that are not printed."""
        files = self.json if self.json != STDOUT else None, self.csv, self.html
        return tuple(filter(None, files))

    def check_free(self, sources: "Sources", *, replace: bool) -> None:
        """Raise OccupiedError if a file exists and may not be replaced."""
        from ...pipelines.results.output_file import check_free

        read = tuple(
            path
            for path in (
                *(sources.results, sources.truth, sources.masks, sources.table),
                *(sources.segmentations or ()),
            )
            if path
        )
        for file in self.files:
            check_free(file, replace=replace, sources=read)

    def write(self, evaluation: "Evaluation") -> None:
        """Write or print the outputs. Raises WriteError."""
        from ...pipelines.evaluation.report import csv_text, store, to_json
        from ..render.evaluation import page

        if self.json:
            write_json(to_json(evaluation), self.json)
        if self.csv:
            store(csv_text(evaluation), self.csv)
        if self.html:
            save_page(page(evaluation), self.html)

    def written(self) -> list[str]:
        """Return a message for each file that `write` has written."""
        return [written(file, file.stat().st_size) for file in self.files if file.is_file()]


def _protocol(
    name: str, data_range: str | None, outside: str | None, mask: Path | None
) -> "Protocol":
    """Return the requested protocol. Raises BadParameter."""
    from ...pipelines.evaluation.protocols import SYNTHRAD2025, general

    if name == "general":
        return general(_ends(data_range) if data_range else None, _filling(outside))
    if outside:
        raise wrong_value("--outside", "this protocol measures whole masks; omit the option.")
    if data_range:
        raise wrong_value("--data-range", "this protocol defines the data range; omit the option.")
    if mask is None:
        raise wrong_value(
            "--protocol", "this protocol measures within masks; give them with --mask."
        )
    return SYNTHRAD2025


def _ends(text: str) -> tuple[float, float]:
    found = _RANGE.fullmatch(text.replace(" ", ""))
    low, high = map(float, found.groups()) if found else (0.0, 0.0)
    if not low < high:
        raise wrong_value(
            "--data-range", f"{text!r} is not a value range such as 0,1000 or -1024,3071."
        )
    return low, high


def _filling(text: str | None) -> "Outside":
    """Return the values outside the truth's field of view. Raises BadParameter."""
    if text is None:
        return "below-air"
    if text == "none":
        return "none"
    if not re.fullmatch(_NUMBER, text.strip(), re.IGNORECASE):
        raise wrong_value("--outside", f"{text!r} is neither a value such as -2000 nor none.")
    return float(text)


def _run(
    sources: "Sources", protocol: "Protocol", wanted: _Wanted, stop: Stop, *, any_truth: bool
) -> Exit:
    from ...pipelines.evaluation.evaluation import evaluate as evaluated
    from ...pipelines.evaluation.pairs import find_pairs
    from ..render.evaluation import PICTURES

    with spinner(SEARCHING):
        found = find_pairs(sources)
    if not found.pairs:
        print_sentences(unread_places(found.skipped), sys.stderr)
        if found.elsewhere:
            print_line(f"Shard {sources.shard} has no study.", sys.stderr)
            return Exit.SOME_FAILED if found.skipped else Exit.DONE
        complain(f"No study found in {sources.results} or {sources.truth}.")
        return Exit.NO_STUDY
    with counting("Evaluating", "studies") as report_done, stop.again():
        pictures = PICTURES if wanted.html else 0
        evaluation = evaluated(
            found.pairs, protocol, report_done, pictures=pictures, any_truth=any_truth
        )
    if not evaluation.evaluated() and not evaluation.interrupted:
        return _nothing_evaluated(evaluation, sources, wanted)
    outcome = stored(lambda: wanted.write(evaluation))
    _shown(evaluation, wanted)
    if outcome is Exit.DONE:
        print_sentences(wanted.written(), screen(wanted.json))
    if evaluation.interrupted:
        print_line("Stopped.", sys.stderr)
        return stop.status
    print_sentences(unread_places(found.skipped), sys.stderr)
    whole = evaluation.count("evaluated") == len(evaluation.rows) and not found.skipped
    return outcome if whole else Exit.SOME_FAILED


def _nothing_evaluated(evaluation: "Evaluation", sources: "Sources", wanted: _Wanted) -> Exit:
    """Show the reasons and write no file: it would only be in the way of the corrected command."""
    if wanted.json == STDOUT:
        printed = replace(wanted, csv=None, html=None)
        stored(lambda: printed.write(evaluation))
    _shown(evaluation, wanted)
    if not sources.table and not any(row.result and row.truth for row in evaluation.rows):
        print_sentences([_PAIRING], sys.stderr)
    if wanted.files:
        print_sentences([_NOTHING_WRITTEN], sys.stderr)
    return Exit.SOME_FAILED


_PAIRING = (
    "Results are paired by name. Pair others with --pairs FILE.csv (columns result,truth), or name "
    "one result and one truth."
)
_NOTHING_WRITTEN = "No file was written, because nothing was evaluated."


def _shown(evaluation: "Evaluation", wanted: _Wanted) -> None:
    from ..render import evaluation as shown

    out = screen(wanted.json)
    for line in shown.tables(evaluation, columns_of(out)):
        print_line(line, out)
    print_sentences(shown.totals(evaluation), out)
    print_sentences(shown.failures(evaluation), sys.stderr)
    if wanted.verbose:
        for row in evaluation.rows:
            if row.trace:
                print_line(printable_lines(row.trace), sys.stderr)
