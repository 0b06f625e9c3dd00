"""Report of the last batch into an output folder, kept in the folder's record."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...io.errors import WriteError
from ...io.files.documents import write_document
from ..errors import ReportFileError
from ..report.codec import to_json
from ..report.comparison import joined, report_so_far
from ..report.report import BatchReport
from .record_folder import found_record

KEPT = "report.json"


def kept_report(output: Path) -> Path | None:
    """Return the file of an output folder's kept report; None if there is none."""
    record = found_record(output)
    file = record / KEPT if record else None
    return file if file and file.is_file() else None


def keep_report(report: BatchReport, planned: Sequence[str]) -> None:
    """Store a report in the record of its output folder, joined with earlier runs of its batch.

    planned: names of all studies of this run. A report that cannot be written is omitted: results
    and manifest are complete without it.
    """
    record = found_record(report.output)
    if record is None:
        return
    file = record / KEPT
    with suppress(ReportFileError, OSError):
        earlier = report_so_far(file, report.model.sha256, report.options.settings(), report.output)
        report = joined(earlier, report, planned) if earlier else report
    with suppress(WriteError, OSError):
        write_document(file, f"{json.dumps(to_json(report), indent=2)}\n".encode())
