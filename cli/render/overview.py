"""Overview of a night's jobs as a table, as a page, and as JSON for scripts."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...pipelines.timestamps import iso_time
from .pending_jobs import PAUSED, moment, waiting_jobs
from .progress_lines import failure_text
from .tables import Row, TextTable
from .text import alike_lines, counted, duration, printable, scaled, seconds

if TYPE_CHECKING:
    from ...pipelines.jobs.summary import BatchOverview, EndedJob, JobOutcome, Overview
    from ...pipelines.view.studies import ViewedStudy, Viewing

SCHEMA = "cuda-cyclegan/overview/1"

_WORKING = "working time"
_WORDS: "dict[JobOutcome, str]" = {
    "translated": "translated",
    "up to date": "kept",
    "failed": "failed",
    "cancelled": "cancelled",
}


def lines(overview: "Overview", columns: int | None) -> Iterator[str]:
    """Return the table: a line per batch. columns: of the terminal; None for no limit."""
    shown: list[JobOutcome] = [outcome for outcome in _WORDS if overview.totals[outcome]]
    total = _figures(shown, overview, _busy(overview.busy), "")
    table = TextTable(
        Row("batch", [*(_WORDS[one] for one in shown), "open", _WORKING, "voxels/s", "last ended"]),
        [
            Row(named(batch), _figures(shown, batch, _busy(batch.busy), _last(batch)))
            for batch in overview.batches
        ],
        Row("all", total) if len(overview.batches) > 1 else None,
    )
    yield from table.lines(columns)


def _figures(
    shown: "list[JobOutcome]", found: "BatchOverview | Overview", busy: str, last: str
) -> list[str]:
    from ...pipelines.jobs.summary import Overview

    rate = found.voxels_per_second
    counts = (
        found.totals[one] if isinstance(found, Overview) else found.count(one) for one in shown
    )
    return [
        *(str(count or "") for count in counts),
        str(found.open or ""),
        busy,
        scaled(rate) if rate else "",
        last,
    ]


def named(batch: "BatchOverview") -> str:
    """Return number and name of a batch."""
    return f"{batch.batch} {printable(batch.name)}".rstrip()


def _last(batch: "BatchOverview") -> str:
    return moment(batch.last) if batch.last else ""


def _busy(spent: float) -> str:
    return "" if not spent else duration(spent) if spent >= 60 else f"{seconds(spent)} s"


def sentences(overview: "Overview") -> Iterator[str]:
    """Return what happened and what is left in a few sentences."""
    yield f"{_period(overview)}: {_counts(overview)}"
    if rate := overview.studies_per_hour:
        yield f"Throughput: {rate:.0f} studies per hour (idle time not counted)"
    if causes := overview.causes:
        listed = ", ".join(f"{count} {cause}" for cause, count in causes.items())
        yield f"Failures by cause: {listed}"
    odd = ((f"{one.job} {printable(one.row.name)}", why.note) for one, why in overview.suspicious())
    yield from alike_lines("suspicious", odd)
    if later := list(waiting_jobs(overview.waiting)):
        yield f"Later: {', '.join(later)}"
    if overview.paused:
        yield PAUSED.capitalize()
    if overview.open and not overview.workers:
        yield "No worker is running; 'cuda-cyclegan worker' runs the jobs"


def _period(overview: "Overview") -> str:
    since = overview.selection.since
    until = f"until {moment(overview.until.timestamp())}"
    return f"From {moment(since.timestamp())} {until}" if since else until.capitalize()


def _counts(overview: "Overview") -> str:
    found = [(overview.totals[one], word) for one, word in _WORDS.items()]
    parts = [f"{count} {word}" for count, word in (*found, (overview.open, "open")) if count]
    return (
        f"{', '.join(parts) or 'no job'}, in {counted(len(overview.batches), 'batch', 'batches')}"
    )


def failures(overview: "Overview") -> Iterator[str]:
    """Return the failed jobs with their reasons."""
    failed = ((f"{one.job} {printable(one.row.name)}", _reason(one)) for one in overview.failures)
    return alike_lines("failed", failed)


def _reason(ended: "EndedJob") -> str:
    return failure_text(ended.row.failure)


def viewing(overview: "Overview") -> "Viewing":
    """Return the studies for the viewer: each result once, with the last of its jobs."""
    from ...pipelines.view.studies import Viewing

    ended = (one for batch in overview.batches for one in batch.ended if one.output)
    studies = {(one.output, one.row.name): _viewed(one) for one in ended}
    return Viewing(_title(overview), tuple(studies.values()))


def _title(overview: "Overview") -> str:
    if overview.selection.batch:
        return " ".join(map(named, overview.batches))
    return f"Jobs {_period(overview)[0].lower()}{_period(overview)[1:]}"


def page(overview: "Overview", target: Path, queue: str) -> str:
    """Return the page: failures first, and the studies of each batch last.

    target: the file that it becomes. queue: option of the page's commands; "" for none.
    """
    from .review import review_page, stored_pictures, study_data

    title = _title(overview)
    studies = [_viewed(one) for batch in overview.batches for one in batch.ended]
    data = {
        **study_data(studies, beside=target.absolute().parent),
        "mode": "file",
        "opens": False,
        "title": title,
        "started": iso_time(overview.until),
    }
    return review_page(
        "night.html.j2",
        data,
        pictures=stored_pictures(studies),
        filters={"reason": _reason, "named": named, "last": _last, "busy": _busy, "scaled": scaled},
        title=title,
        overview=overview,
        words=_WORDS,
        figures=_tiles(overview),
        later=list(waiting_jobs(overview.waiting)),
        paused=PAUSED.capitalize() if overview.paused else "",
        lists=list(_lists(overview)),
        queue=queue,
    )


def _viewed(ended: "EndedJob") -> "ViewedStudy":
    from ...pipelines.view.studies import study_of_row

    return study_of_row(ended.row, Path(os.path.realpath(ended.output)), ended.origin)


def _lists(overview: "Overview") -> "Iterator[tuple[BatchOverview, int, int]]":
    """Yield the batches with jobs that ended, and the places of these among those of all."""
    end = 0
    for batch in overview.batches:
        first, end = end, end + len(batch.ended)
        if batch.ended:
            yield batch, first, end


def _tiles(overview: "Overview") -> dict[str, str]:
    rate, hourly = overview.voxels_per_second, overview.studies_per_hour
    return {
        **{word: str(overview.totals[one] or "") for one, word in _WORDS.items()},
        "open": str(overview.open or ""),
        _WORKING: _busy(overview.busy),
        "throughput": f"{scaled(rate)} voxels/s" if rate else "",
        "studies per hour": f"{hourly:.0f}" if hourly else "",
        "workers": str(overview.workers),
    }


def to_json(overview: "Overview") -> dict[str, Any]:
    """Encode the overview as JSON values."""
    since = overview.selection.since
    return {
        "schema": SCHEMA,
        "since": iso_time(since) if since else None,
        "until": iso_time(overview.until),
        "name": overview.selection.name or None,
        "route": overview.selection.route or None,
        "paused": overview.paused,
        "workers": overview.workers,
        "totals": {**_keys(overview.totals), "open": overview.open},
        "causes": overview.causes,
        "busy_seconds": overview.busy,
        "voxels_per_second": overview.voxels_per_second,
        "studies_per_hour": overview.studies_per_hour,
        "waiting": [
            {
                "jobs": kind.count,
                "state": kind.state,
                "window": kind.window or None,
                "not_before": iso_time(kind.until) if kind.until is not None else None,
            }
            for kind in overview.waiting
        ],
        "suspicious": [
            {
                "job": one.job,
                "study": one.row.name,
                "findings": [each.words for each in why.findings],
            }
            for one, why in overview.suspicious()
        ],
        "batches": [_batch(batch) for batch in overview.batches],
    }


def _batch(batch: "BatchOverview") -> dict[str, Any]:
    return {
        "batch": batch.batch,
        "name": batch.name,
        "route": batch.route or None,
        "model": batch.work.model,
        "inputs": batch.work.inputs,
        "output": batch.work.output,
        **_keys({one: batch.count(one) for one in _WORDS}),
        "open": batch.open,
        "busy_seconds": batch.busy,
        "voxels_per_second": batch.voxels_per_second,
        "last_ended": iso_time(batch.last) if batch.last else None,
        "failures": [
            {
                "job": one.job,
                "study": one.row.name,
                "class": one.row.failure.kind if one.row.failure else None,
                "reason": one.row.failure.reason if one.row.failure else None,
            }
            for one in batch.ended
            if one.outcome == "failed"
        ],
    }


def _keys(counts: "dict[JobOutcome, int] | Any") -> dict[str, int]:
    return {outcome.replace(" ", "_"): count for outcome, count in counts.items()}
