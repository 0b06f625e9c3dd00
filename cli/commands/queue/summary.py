"""Output of `cuda-cyclegan jobs summary`: the report of a batch, or the overview of a night."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...command_line import command_line
from ...errors import Exit
from ...render.documents import (
    STDOUT,
    save_page,
    screen,
    standard_named,
    write_json,
    write_report,
    written,
)
from ...render.terminal import columns_of, print_line, print_sentences

if TYPE_CHECKING:
    from ....pipelines.jobs.queue.job import JobRow, SummaryMark
    from ....pipelines.jobs.queue.queue import Queue
    from ....pipelines.jobs.summary import Selection


@dataclass(frozen=True, slots=True)
class Files:
    """Requested files.

    data: report or JSON; `STDOUT` prints it. html: page. force: replace existing files.
    """

    data: Path | None
    html: Path | None
    force: bool

    @classmethod
    def dated(cls, data: Path | None, html: Path | None, *, force: bool) -> "Files":
        """Return the files with date fields of `strftime` in their paths filled in."""
        return cls(standard_named(_dated(data)), _dated(html), force)

    def check_free(self) -> None:
        """Raise OccupiedError if one of them exists and may not be replaced."""
        from ....pipelines.results.output_file import check_free

        for file in (self.data, self.html):
            if file and file != STDOUT:
                check_free(file, replace=self.force, sources=())

    def save(self, page: str) -> None:
        """Write the page. Raises WriteError."""
        if self.html:
            print_line(written(self.html, save_page(page, self.html)), screen(self.data))


def _dated(path: Path | None) -> Path | None:
    if path is None or "%" not in str(path):
        return path
    return Path(datetime.now().strftime(str(path)))


def show_batch(
    jobs: "Queue", batch: str, rows: "Sequence[JobRow]", files: Files, *, all_rows: bool
) -> Exit:
    """Show and store the report of a batch. all_rows: whether its table has every study."""
    from ....pipelines.jobs.queue.job import counted_open
    from ....pipelines.jobs.summary import report_of
    from ....pipelines.report.codec import as_stored
    from ...render import batch_summary
    from ...render.queue import outlook

    summed, out = replace(report_of(rows), command=command_line()), screen(files.data)
    files.check_free()
    if files.data:
        write_report(summed, files.data)
    if files.html:
        from ...render.report import page

        files.save(page([as_stored(summed, Path(batch))], files.html))
    for line in batch_summary.table(summed, columns_of(out), all_rows=all_rows):
        print_line(line, out)
    print_sentences(batch_summary.totals(summed, not_reached="open"), out)
    print_sentences(outlook(jobs, counted_open(rows)), out)
    print_sentences(batch_summary.failures(summed), sys.stderr)
    return Exit.SOME_FAILED if summed.failures else Exit.DONE


def show_overview(
    jobs: "Queue", selection: "Selection", mark: "SummaryMark | None", files: Files, queue: str
) -> Exit:
    """Show and store the overview of selected jobs. queue: option of commands on the page.

    mark: of the next overview, recorded once all of this one is written.
    """
    from ....pipelines.jobs.summary import overview_of
    from ...render import overview as shown

    found, out = overview_of(jobs, selection), screen(files.data)
    files.check_free()
    if files.data:
        write_json(shown.to_json(found), files.data)
    if files.html:
        files.save(shown.page(found, files.html, queue))
    for line in shown.lines(found, columns_of(out)):
        print_line(line, out)
    print_sentences(shown.sentences(found), out)
    print_sentences(shown.failures(found), sys.stderr)
    if mark:
        sys.stdout.flush()
        jobs.record_summary(selection.name, selection.route, mark)
    return Exit.SOME_FAILED if found.failures else Exit.DONE
