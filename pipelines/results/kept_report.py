"""Report of the last batch into an output folder, kept in the folder's record.

Each shard of a batch keeps a report of its own beside it, and the last one that ends joins them.
"""

import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ...io.errors import WriteError
from ...io.files.documents import write_document
from ...io.files.locks import wait_for_lock
from ...io.files.own_files import open_own
from ..errors import ReportFileError
from ..report.codec import read_report, to_json
from ..report.comparison import joined, of_shards, report_so_far
from ..report.report import BatchReport
from ..shard import Shard
from .record_folder import found_record, made_record

KEPT = "report.json"


def kept_report(output: Path) -> Path | None:
    """Return the file of an output folder's kept report; None if there is none."""
    record = found_record(output)
    file = record / KEPT if record else None
    return file if file and file.is_file() else None


@contextmanager
def joint_report(output: Path) -> Generator[BatchReport]:
    """Return the joint report of a batch in shards, while no other shard reads it.

    Copies of it made meanwhile replace older ones only. Raises ReportFileError and OSError.
    """
    record = made_record(output)
    turn = open_own(record / "report.lock", os.O_RDWR | os.O_CREAT, mode=0o666)
    try:
        wait_for_lock(turn)
        yield read_report(record / KEPT).batch
    finally:
        os.close(turn)


def earlier_report(report: BatchReport) -> BatchReport | None:
    """Return the kept report of earlier runs of a report's batch; None if there is none."""
    with suppress(ReportFileError, OSError):
        if record := found_record(report.output):
            return _earlier(record / KEPT, report)
    return None


def replace_report(report: BatchReport) -> None:
    """Store a report in the record of its output folder in place of the one that is there."""
    if record := found_record(report.output):
        _store(report, record / KEPT)


def keep_report(report: BatchReport, planned: Sequence[str]) -> None:
    """Store a report in the record of its output folder, joined with earlier runs of its batch.

    planned: names of all studies of this run. A report that cannot be written is omitted: results
    and manifest are complete without it.
    """
    if record := found_record(report.output):
        _store(_with_earlier(record / KEPT, report, planned), record / KEPT)


def keep_shard_report(
    report: BatchReport, planned: Sequence[str], shard: Shard, elsewhere: int
) -> None:
    """Store the report of a shard as `keep_report` does, and join it with those of the others.

    The caller keeps other shards from joining meanwhile. elsewhere: number of studies of other
    shards.
    """
    if (record := found_record(report.output)) is None:
        return
    own = record / _name(shard)
    report = _with_earlier(own, report, planned)
    _store(report, own)
    others = (Shard(number + 1, shard.count) for number in range(shard.count))
    parts = [*_stored(record, report, [one for one in others if one != shard]), report]
    _store(of_shards(parts, len(planned) + elsewhere), record / KEPT)


def _name(shard: Shard) -> str:
    return f"report-{shard.number}-of-{shard.count}.json"


def _stored(record: Path, report: BatchReport, shards: Sequence[Shard]) -> Iterator[BatchReport]:
    """Yield the kept reports of other shards of a report's batch, in the order of their numbers."""
    for shard in shards:
        with suppress(ReportFileError, OSError):
            if found := _earlier(record / _name(shard), report):
                yield found


def _with_earlier(file: Path, report: BatchReport, planned: Sequence[str]) -> BatchReport:
    """Return a report joined with that of earlier runs of its batch in a file."""
    with suppress(ReportFileError, OSError):
        if earlier := _earlier(file, report):
            return joined(earlier, report, planned)
    return report


def _earlier(file: Path, report: BatchReport) -> BatchReport | None:
    return report_so_far(file, report.model.sha256, report.options.resolved(), report.output)


def _store(report: BatchReport, file: Path) -> None:
    with suppress(WriteError, OSError):
        write_document(file, f"{json.dumps(to_json(report), indent=2)}\n".encode())
