"""Rows of the queue's tables as jobs; what cannot be read of a damaged one is left out."""

from collections.abc import Sequence
from typing import Any, cast

from .state import (
    NOT_RECORDED,
    PASSAGES,
    Interval,
    JobRow,
    JobState,
    Passage,
    SchedulingClass,
    json_object,
)

STATES: dict[str, JobState] = {
    "DELAYED": "waiting",
    "ENQUEUED": "queued",
    "PENDING": "running",
    "SUCCESS": "done",
    "ERROR": "failed",
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": "given up",
    "CANCELLED": "cancelled",
}
NAMES = {state: name for name, state in STATES.items()}


def job_row(row: Sequence[Any]) -> JobRow:
    """One job as the tables have it; times are in milliseconds."""
    job, status, queue, attributes, tries, worker = row[:6]
    submitted, not_before, started, ended, inputs, result = row[6:]
    about = json_object(attributes)
    return JobRow(
        job=job,
        state=state_of(status),
        scheduling=SchedulingClass.parse(str(queue or about.get("lane"))),
        tries=whole(tries),
        worker=None if worker is None else str(worker),
        submitted=seconds_of(submitted) or 0.0,
        not_before=seconds_of(not_before),
        started=seconds_of(started),
        ended=seconds_of(ended),
        payload=payload_of(inputs),
        result=json_object(result) if ended else {},
        established=str(about.get("established", NOT_RECORDED)),
        passages=_passages(about.get(PASSED)),
        put_off=str(about.get(PUT_OFF, "")),
    )


PASSED, PUT_OFF = "passages", "put off"
"""The attributes of a job that hold its passages, and why it was put off the last time."""


def _passages(found: Any) -> dict[Passage, Interval]:
    """Those that can be read."""
    known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    read: dict[Passage, Interval] = {}
    for passage in PASSAGES:
        match known.get(passage):
            case [int() | float() as start, int() | float() as stop]:
                read[passage] = float(start), float(stop)
            case _:
                continue
    return read


def state_of(status: Any) -> JobState:
    """A job's state; one that is none of DBOS's is past any help."""
    return STATES.get(status, "failed")


def payload_of(inputs: Any) -> str:
    """The job's text, as it was submitted; "" if it cannot be read."""
    match json_object(inputs):
        case {"positionalArgs": [str(payload), *_]}:
            return payload
        case _:
            return ""


def seconds_of(milliseconds: Any) -> float | None:
    """A moment in seconds since 1970; None if there is none."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else None


def whole(number: Any) -> int:
    """A count; 0 if there is none."""
    return number if isinstance(number, int) else 0
