"""A node's log, a line an event, and its destinations and state as lines."""

from collections.abc import Iterator

from ...pipelines.node.events import (
    Emptied,
    Failed,
    GaveUp,
    LeftOut,
    NodeEvent,
    NotSent,
    Queued,
    Received,
    Sent,
    Translated,
    Trouble,
    TurnedAway,
)
from .terminal.settings import flagged
from .terminal.text import counted, file_size, printable, seconds


def line_of(event: NodeEvent) -> str:
    """What the log says of an event."""
    return printable(flagged(_words(event)))


def _words(event: NodeEvent) -> str:
    match event:
        case Received():
            return _received(event)
        case TurnedAway(address, reason, count):
            many = f" ({count} times)" if count > 1 else ""
            return f"turned away {address}{many}: {reason}"
        case Queued(series, job, images, 0):
            return f"{series}: {counted(images, 'image')}, queued as {job}"
        case Queued(series, job, images, before):
            grown = f"{counted(images, 'image')}, {before} when it was translated before"
            return f"{series}: {grown}; queued again as {job}"
        case LeftOut(study, reason):
            return f"{study}: {reason}"
        case Translated(series):
            return f"{series}: translated"
        case Failed(series, reason):
            return f"{series}: failed: {reason}"
        case Sent(series, destination, objects, spent):
            told = f"{counted(objects, 'object')} sent to {destination}"
            return f"{series}: {told}, {seconds(spent)} s"
        case NotSent(what, reason, again):
            return f"{what}: not sent: {reason}; again in {again:.0f} s"
        case GaveUp(series, reason):
            return f"{series}: given up: {reason}"
        case Emptied(study):
            return f"{study}: removed from the inbox"
        case Trouble(reason):
            return reason


def _received(event: Received) -> str:
    parts = [counted(event.objects, "object")]
    if event.known:
        parts.append(f"{event.known} known already")
    if event.refused:
        parts.append(f"{event.refused} refused")
    told = f"{event.route} from {event.caller}: {', '.join(parts)}"
    broken = f"; it broke off: {event.reason}" if event.reason else ""
    return f"{told}, {file_size(event.bytes)} in {seconds(event.seconds)} s{broken}"


def checked(destination: str, routes: str, trouble: str | None) -> Iterator[str]:
    """What became of an echo to a destination. routes: which send there."""
    yield printable(f"{destination} ({routes}): {trouble or 'answers'}")
