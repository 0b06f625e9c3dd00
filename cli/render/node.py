"""State and events of a DICOM node, as text and as JSON for scripts."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...engine.decoding import encode_record
from ...pipelines.node import events
from ...pipelines.node.events import NodeEvent
from ...pipelines.timestamps import iso_time
from .documents import json_text
from .pending_jobs import moment as minute
from .service_log import Level
from .tables import Row, TextTable
from .text import as_config_keys, counted, file_size, printable, seconds

if TYPE_CHECKING:
    from ...pipelines.node.folder import NodeStatus
    from ...pipelines.node.records import SeriesRecord


SCHEMA = "cuda-cyclegan/node/1"


def line_of(event: NodeEvent) -> str:
    """Return the log line of an event."""
    return printable(as_config_keys(_words(event)))


def level_of(event: NodeEvent) -> Level:
    """Return the level of an event's log line."""
    match event:
        case events.Failed() | events.SendingAbandoned():
            return "error"
        case (
            events.TurnedAway()
            | events.Held()
            | events.LeftOut()
            | events.NotSent()
            | events.NotReported()
            | events.Trouble()
        ):
            return "warning"
        case events.NotCommitted() | events.ReportRefused():
            return "warning"
        case events.CommitmentRequested() if event.earlier:
            return "warning"
        case events.SeriesTranslated() if event.suspicion:
            return "warning"
        case _:
            return "info"


def _words(event: NodeEvent) -> str:
    match event:
        case events.Received():
            return _received(event)
        case events.TurnedAway(address, titles, reason, count):
            who = f"{titles} from {address}" if titles else address
            many = f" ({count} times)" if count > 1 else ""
            return f"rejected {who}{many}: {reason}"
        case events.Queued():
            return _queued(event)
        case events.Held(study, gap, until):
            when = iso_time(until)
            return f"{study}: held until {when} or until the missing images arrive: {gap}"
        case events.LeftOut(study, reason):
            return f"{study}: {reason}"
        case events.SeriesTranslated(series, suspicion):
            return f"{series}: translated; {suspicion}" if suspicion else f"{series}: translated"
        case events.Failed(series, reason):
            return f"{series}: failed: {reason}"
        case events.Sent(series, destination, objects, spent, remark):
            objects_sent = f"{counted(objects, 'object')} sent to {destination}"
            line = f"{series}: {objects_sent}, {seconds(spent)} s"
            return f"{line}; {remark}" if remark else line
        case events.NotSent(what, reason, again):
            return f"{what}: not sent: {reason}; again in {again:.0f} s"
        case events.CommitmentRequested(series, destination, objects, earlier):
            line = f"{series}: storage commitment of {counted(objects, 'object')} requested"
            again = f" again, as no report came to {counted(earlier, 'request')}" if earlier else ""
            return f"{line} from {destination}{again}"
        case events.NotCommitted(series, reason):
            return f"{series}: sent again: {reason}"
        case events.ReportRefused(route, peer, reason):
            return f"{route}: storage commitment report of {peer} refused: {reason}"
        case events.SendingAbandoned(series, reason):
            return (
                f"{series}: sending abandoned: {reason}; to send it again, set a longer retry in "
                "its route"
            )
        case events.Resumed(series):
            return f"{series}: queued to be sent again because its route now has a longer retry"
        case events.Reported(route, peer, safe, asked):
            held = "all are stored" if safe == asked else f"{safe} are stored"
            return f"{route}: storage commitment for {counted(asked, 'object')} of {peer}: {held}"
        case events.NotReported(route, peer, reason):
            return f"{route}: the storage commitment report was not sent to {peer}: {reason}"
        case events.Emptied(study):
            return f"{study}: removed from the inbox"
        case events.Trouble(reason):
            return reason


def _queued(event: events.Queued) -> str:
    line = f"{event.series}: {counted(event.images, 'image')}"
    if event.before:
        line += f", {event.before} when it was translated before; queued again as {event.job}"
    else:
        line += f", queued as {event.job}"
    return f"{line}; {event.remark}" if event.remark else line


def _received(event: events.Received) -> str:
    parts = [counted(event.objects, "object")]
    if event.known:
        parts.append(f"{event.known} already known")
    parts += [f"{count} refused ({reason})" for reason, count in event.refusals]
    line = f"{event.route} from {event.caller}: {', '.join(parts)}"
    broken = f"; the association was aborted: {event.reason}" if event.reason else ""
    return f"{line}, {file_size(event.bytes)} in {seconds(event.seconds)} s{broken}"


def checked(peer: str, routes: str, trouble: str | None) -> str:
    """Return whether a destination or source answers. routes: those that it is of."""
    return printable(f"{peer} ({routes}): {trouble or 'answers'}")


def status_lines(status: "NodeStatus", workers: int | None, columns: int | None) -> Iterator[str]:
    """Return the lines of `node --status`: one per series that is not sent, then counts.

    workers: number of living workers of its queue; None if it does not answer. columns: width of
    the terminal, or None for no limit.
    """
    rows = [
        Row(f"{record.study}/{one.place}", [str(one.images), _confirmed(status, record.study, one)])
        for record in status.studies
        for one in record.series
        if one.state != "sent"
    ]
    if rows:
        yield from TextTable(Row("series", ["images", "state"]), rows).lines(columns)
    for record in status.studies:
        for one in record.series:
            if one.reason:
                name = f"{record.study}/{one.place}"
                yield printable(f"{one.state}: {name}: {as_config_keys(one.reason)}")
            if one.remark and not record.emptied:
                yield f"incomplete: {record.study}/{one.place}: {one.remark}"
        for reason in record.left_out if not record.emptied else ():
            yield printable(f"skipped: {record.study}: {as_config_keys(reason)}")
        if record.held:
            until, figures = iso_time(record.until), record.gap.figures(record.images)
            yield f"held: {record.study}: {figures}; until {until} or 'node --release'"
    yield from _totals(status, workers)


def _confirmed(status: "NodeStatus", study: str, series: "SeriesRecord") -> str:
    count = status.confirmed.get(f"{study}/{series.place}", 0)
    return f"{series.state}, {count} confirmed" if count else series.state


def _totals(status: "NodeStatus", workers: int | None) -> Iterator[str]:
    states = Counter(one.state for record in status.studies for one in record.series)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield f"{counted(states.total(), 'series', 'series')}{': ' if counts else ''}{counts}"
    held = sum(not record.emptied for record in status.studies) + len(status.arriving)
    studies = f"Kept: {counted(held, 'study', 'studies')}, {file_size(status.bytes)}"
    arriving = f"{len(status.arriving)} not examined yet" if status.arriving else "all examined"
    waiting = sum(bool(record.held) for record in status.studies)
    held_studies = f", {waiting} held" if waiting else ""
    yield f"{studies}; {arriving}{held_studies}"
    yield "The node is running." if status.running else _stopped(status)
    if workers is None:
        yield "The queue does not answer."
    elif workers:
        yield f"{counted(workers, 'worker is', 'workers are')} running."
    else:
        yield "No worker is running; 'cuda-cyclegan worker' runs the jobs."


def _stopped(status: "NodeStatus") -> str:
    """State that no node is running, and when the last one recorded something."""
    if last := max((record.last for record in status.studies), default=0.0):
        return (
            f"No node is running here: states are those of {minute(last)}; see 'jobs' for finished "
            "jobs."
        )
    return "No node is running here."


def status_json(status: "NodeStatus", workers: int | None) -> str:
    """Encode the status as JSON, in ASCII. workers: as in `status_lines`."""
    found = {
        "schema": SCHEMA,
        "folder": status.folder,
        "running": status.running,
        **({} if workers is None else {"workers": workers}),
        "inbox": {"bytes": status.bytes, "arriving": [str(study) for study in status.arriving]},
        "studies": [
            {
                **encode_record(record),
                **{
                    name: _moment(getattr(record, name))
                    for name in ("arrived", "looked", "emptied", "held", "until")
                },
                "left_out": [as_config_keys(reason) for reason in record.left_out],
                "series": [_series(status, record.study, one) for one in record.series],
            }
            for record in status.studies
        ],
    }
    return json_text(found)


def _series(status: "NodeStatus", study: str, series: "SeriesRecord") -> dict[str, Any]:
    """Encode a series with the start and end of each stage so far."""
    stages: dict[str, tuple[float, float | None]] = {
        "receive": series.received,
        "translate": (series.queued, series.done or None),
    }
    if series.done and series.state != "failed":
        stages["send"] = (series.begun or series.done, series.sent or None)
    return {
        "series": f"{study}/{series.place}",
        "images": series.images,
        "state": series.state,
        "reason": as_config_keys(series.reason) or None,
        "remark": series.remark or None,
        "job": series.job,
        "confirmed": status.confirmed.get(f"{study}/{series.place}", 0),
        "stages": {
            stage: {"start": _moment(start), "stop": _moment(stop)}
            for stage, (start, stop) in stages.items()
        },
    }


def _moment(seconds: float | None) -> str | None:
    return iso_time(seconds) if seconds else None
