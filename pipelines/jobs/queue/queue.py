"""The job queue as users see it: submit, list, cancel, retry, pause, prune."""

import hashlib
import json
import secrets
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from ....engine.decoding import FieldError, Json, decode, encode
from ....engine.model.calibration import ResultReference
from ...errors import QueueError
from .database import BUSY_SECONDS, IDLE_SECONDS, ConflictError, Database, Transaction
from .job import (
    ENDED_BADLY,
    NOT_RECORDED,
    TRANSFERS,
    BatchCount,
    Interval,
    JobRow,
    JobState,
    OpenJobs,
    Retried,
    StudyJob,
    Submitted,
    SummaryMark,
    Transfer,
    json_object,
    work_of,
)
from .liveness import living_workers
from .location import QueuePlace
from .schedule import WITH_OTHERS, Priority, SchedulingClass
from .store import (
    OPEN_STATES,
    database_time,
    host_time,
    in_states,
    meta,
    of_batch,
    open_tables,
    set_meta,
)

PAUSED = "paused"
"""Fact about the queue while all work is paused."""

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that looks like another
_MANY = 1_000
"""Most jobs that one statement names, or whose payloads are in memory at once."""

_TRIES = 100
"""Most tries of a change that other submissions overtake; each overtakes it once."""
_CONFLICTS = "its open jobs contradict each other"

_OVERLAP_SECONDS = BUSY_SECONDS + IDLE_SECONDS
"""Longest time from when a job ends to when that is stored: a frozen worker is given up then."""

_MINUTE = 60_000
_ANY_NUMBER = 1 << 31

_ROWS = """
SELECT batch, number, state, lane, tries, worker, submitted, due, started, ended, deferred,
    transfers, about, payload, result
FROM {jobs} JOIN {batches} USING (batch) LEFT JOIN {payloads} USING (batch, number)
"""
_ADD_JOB = f"""
INSERT INTO {{jobs}}
    (batch, number, state, work, priority, hours, turn, due, tries, submitted, changed, transfers)
VALUES (
    :batch, :number, :state, :work, :priority, :hours, {WITH_OTHERS}, :due, 0, :now, :now,
    :transfers
)
ON CONFLICT (work) WHERE {OPEN_STATES} DO NOTHING
"""
_ADD_PAYLOAD = "INSERT INTO {payloads} (batch, number, payload) VALUES (:batch, :number, :payload)"
_QUEUE_AGAIN = f"""
UPDATE {{jobs}}
SET state = 'queued', work = coalesce(:work, work), turn = {WITH_OTHERS}, tries = 0, token = NULL,
    started = NULL, ended = NULL, changed = {{now}}
WHERE batch = :batch AND number = :number AND {in_states(ENDED_BADLY)} AND NOT EXISTS (
    SELECT 1 FROM {{jobs}} AS other
    WHERE other.work = coalesce(:work, {{jobs}}.work) AND other.{OPEN_STATES}
)
"""
_AT_ONCE = "state = 'queued', due = NULL"
_NOT_STARTED = in_states(["waiting", "queued"])


def _job_row(row: tuple[Any, ...]) -> JobRow:
    batch, number, state, lane, tries, worker, submitted, due, started, ended = row[:10]
    deferred, transfers, about, payload, result = row[10:]
    known = json_object(about)
    return JobRow(
        job=job_name(batch, number),
        state=state,
        scheduling=SchedulingClass.parse(lane),
        tries=tries,
        worker=worker,
        submitted=submitted / 1000,
        not_before=_seconds(due),
        started=_seconds(started),
        ended=_seconds(ended),
        payload=payload or "",
        result=json_object(result) if state in ("done", "failed") else {},
        established=str(known.get("established", NOT_RECORDED)),
        reference=_reference(known.get("reference")),
        transfers=_transfers(transfers),
        deferred=decoded_text(deferred),
        name=str(known.get("name", "")),
        route=str(known.get("route", "")),
    )


def _reference(stored: Json) -> ResultReference | None:
    """Return the results of a model's reference set; None also if they cannot be read."""
    with suppress(FieldError):
        return decode(ResultReference, stored) if stored else None


def job_name(batch: str, number: int) -> str:
    """Return the name of a job, as users see it."""
    return f"{batch}/{number:05}"


def decoded_text(stored: str | None) -> str:
    """Return a text that is stored as JSON, "" if there is none."""
    return str(json_object(f'{{"text": {stored}}}').get("text", "")) if stored else ""


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _transfers(stored: str | None) -> dict[Transfer, Interval]:
    """Decode the intervals that a node recorded, as far as they can be read."""
    known, read = json_object(stored), dict[Transfer, Interval]()
    for transfer in TRANSFERS:
        match known.get(transfer):
            case [int() | float() as start, int() | float() as stop]:
                read[transfer] = float(start), float(stop)
            case _:
                continue
    return read


@contextmanager
def open_queue(place: QueuePlace, *, create: bool = False) -> Generator["Queue"]:
    """Open the queue at a place; create: make it if there is none. Raises QueueError."""
    with open_tables(place, create=create) as database:
        yield Queue(database)


class QueueLink:
    """Queue that is opened when needed, and again after `close`."""

    def __init__(self, place: QueuePlace) -> None:
        self._place, self._opened = place, ExitStack()
        self._queue: Queue | None = None

    def queue(self) -> "Queue":
        """Return the open queue. Raises QueueError."""
        if self._queue is None:
            opening = open_queue(self._place, create=True)
            self._queue = self._opened.enter_context(opening)
        return self._queue

    def close(self) -> None:
        """Close the queue until it is needed again."""
        self._opened.close()
        self._queue = None


class Queue:
    """Access of users to a queue. All methods raise QueueLostError while it does not answer.

    batch: in each method, of jobs: a batch, one job as `<batch>/<number>`, or "" for all.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def batches(self) -> list[BatchCount]:
        """Return all batches, oldest first; model and folders are those of the first job."""
        with self._database.reading() as transaction:
            counts = transaction.rows(
                "SELECT batch, state, count(*), min(submitted) FROM {jobs} GROUP BY batch, state"
            )
            about = transaction.rows(
                "SELECT batch, about, payload FROM {batches} LEFT JOIN {payloads} USING (batch) "
                "WHERE number IS NULL OR number = "
                "(SELECT min(number) FROM {jobs} WHERE {jobs}.batch = {batches}.batch)"
            )
        states: dict[str, dict[JobState, int]] = {}
        submitted: dict[str, float] = {}
        for batch, state, count, moment in counts:
            states.setdefault(batch, {})[state] = count
            submitted[batch] = min(moment / 1000, submitted.get(batch, moment / 1000))
        known = {batch: (json_object(text), payload) for batch, text, payload in about}
        found: list[BatchCount] = []
        for batch, jobs in states.items():
            facts, payload = known.get(batch, ({}, None))
            name = str(facts.get("name", ""))
            found.append(BatchCount(batch, name, submitted[batch], jobs, work_of(payload or "")))
        return sorted(found, key=lambda count: (count.submitted, count.batch))

    def jobs(self, batch: str, states: Collection[JobState] = ()) -> list[JobRow]:
        """Return the jobs, in order; states: only those in one of these states, if given."""
        where, values = of_batch(batch)
        return self._rows(f"{where} AND {in_states(states)}", **values)

    def jobs_since(self, moment: datetime | None) -> list[JobRow]:
        """Return the open jobs, and those that ended since a time of this host's clock; None lists
        all that ended.
        """
        with self._database.reading() as transaction:
            since = database_time(transaction, moment) if moment else 0
        return self._rows(f"{OPEN_STATES} OR ended >= :since", since=since)

    def _rows(self, where: str, **values: Any) -> list[JobRow]:
        with self._database.reading() as transaction:
            rows = transaction.rows(f"{_ROWS} WHERE {where} ORDER BY batch, number", **values)
        return [_job_row(row) for row in rows]

    def counts(self, batch: str) -> dict[JobState, int]:
        """Return the number of jobs by state; nothing if there is no such batch or job."""
        where, values = of_batch(batch)
        query = f"SELECT state, count(*) FROM {{jobs}} WHERE {where} GROUP BY state"
        with self._database.reading() as transaction:
            return dict(transaction.rows(query, **values))

    def deferred(self) -> list[JobRow]:
        """Return the jobs that wait for a hindrance to pass, in order."""
        return self._rows("state = 'waiting' AND deferred IS NOT NULL")

    def open_jobs(self, batch: str = "") -> tuple[OpenJobs, ...]:
        """Count the open jobs by state, scheduling class and minute of their earliest start."""
        where, values = of_batch(batch)
        query = f"""
            SELECT state, lane, count(*), min(due) FROM (
                SELECT state, lane, CASE WHEN state = 'waiting' THEN due END AS due FROM {{jobs}}
                WHERE {where} AND {OPEN_STATES}
            ) AS waits
            GROUP BY state, lane, due / {_MINUTE} ORDER BY state, lane, due / {_MINUTE}
        """
        with self._database.reading() as transaction:
            rows = transaction.rows(query, **values)
        return tuple(
            OpenJobs(count, state, SchedulingClass.parse(lane).window, _seconds(due))
            for state, lane, count, due in rows
        )

    def open_keys(self) -> Mapping[str, str]:
        """Return the open jobs, as `<batch>/<number>`, by the key of their work."""
        with self._database.reading() as transaction:
            return _open_keys(transaction)

    def known_keys(self) -> set[str]:
        """Return the keys of work that is open, or that failed or was cancelled."""
        query = "SELECT work FROM {jobs} WHERE state <> 'done' AND work IS NOT NULL"
        with self._database.reading() as transaction:
            return {key for (key,) in transaction.rows(query)}

    def workers(self) -> int:
        """Return the number of living workers on all machines, idle ones included."""
        return living_workers(self._database)

    def is_paused(self) -> bool:
        """Return whether no job may start."""
        with self._database.reading() as transaction:
            return meta(transaction, PAUSED) is not None

    def submit(
        self,
        jobs: Sequence[StudyJob],
        scheduling: SchedulingClass,
        *,
        name: str = "",
        route: str = "",
        joins: str = "",
        not_before: datetime | None = None,
        established: str = NOT_RECORDED,
        reference: ResultReference | None = None,
        received: Mapping[str, Interval] | None = None,
    ) -> Submitted:
        """Add jobs to one batch, all or none, except those whose work is open already.

        route: AE title of a node that received the studies. joins: jobs of one model that are
        submitted with the same text share a batch; "" makes a new one. not_before: by this host's
        clock. established: how the model's reading was verified, in words. reference: results of
        its reference set. received: interval in which a node received the files, by the key of the
        work.
        """
        keys = {job.key(): job for job in jobs}
        about: dict[str, Json] = {"name": name, "route": route, "established": established}
        if reference:
            about["reference"] = encode(reference)
        shared = None
        if joins and jobs:
            text = json.dumps([joins, jobs[0].model_sha256])
            shared = hashlib.sha256(text.encode()).hexdigest()[:32]
        for _ in range(_TRIES):
            with (
                suppress(ConflictError),  # another submission was faster
                self._database.writing() as transaction,
            ):
                due = database_time(transaction, not_before) if not_before else None
                wanted = {
                    "priority": scheduling.priority,
                    "hours": scheduling.window,
                    "due": due,
                }
                found = _submitted(transaction, keys, shared, about, wanted, received or {})
                return replace(found, known=len(jobs) - found.added)
        raise self._database.unusable(_CONFLICTS)

    def record_sent(self, job: str, interval: Interval) -> None:
        """Record the interval in which a node sent a job's result."""
        where, values = of_batch(job)
        with self._database.writing() as transaction:
            query = f"SELECT transfers FROM {{jobs}} WHERE {where} {{locked}}"
            for (stored,) in transaction.rows(query, **values):
                passed = json.dumps({**_transfers(stored), "send": interval})
                change = f"UPDATE {{jobs}} SET transfers = :passed WHERE {where}"
                transaction.change(change, passed=passed, **values)

    def cancel(self, batch: str) -> int:
        """Cancel the open jobs; running ones stop within seconds."""
        cancelled = "state = 'cancelled', ended = {now}, token = NULL, started = NULL"
        return self._change(batch, OPEN_STATES, cancelled)

    def retry(self, batch: str) -> Retried:
        """Queue the failed and cancelled jobs of a batch, or one job, unless equal work is open.

        Deferred jobs, and those of their batch that wait along with them, are queued immediately.
        """
        is_deferred = """
            state = 'waiting' AND due IS NOT NULL AND EXISTS (
                SELECT 1 FROM {jobs} AS other WHERE other.batch = {jobs}.batch
                AND other.state = 'waiting' AND other.deferred IS NOT NULL
            )
        """
        sooner = self._change(batch, is_deferred, _AT_ONCE)
        keys = list(self._keys_now(batch))
        for _ in range(_TRIES):
            with (
                suppress(ConflictError),  # a submission was faster
                self._database.writing() as transaction,
            ):
                _hold(transaction, batch)
                again = transaction.change_each(_QUEUE_AGAIN, keys)
                return Retried(again + sooner, len(keys) - again)
        raise self._database.unusable(_CONFLICTS)

    def _keys_now(self, batch: str) -> Iterator[dict[str, Any]]:
        """Yield the jobs that ended badly, last one first, with the key of their work if it can be
        read: a scan may have changed since.
        """
        where, values = of_batch(batch)
        query = f"""
            SELECT batch, number, payload FROM {{jobs}} LEFT JOIN {{payloads}} USING (batch, number)
            WHERE {where} AND {in_states(ENDED_BADLY)} AND number < :below
            ORDER BY number DESC LIMIT {_MANY}
        """
        below = _ANY_NUMBER
        while True:
            with self._database.reading() as transaction:
                rows = transaction.rows(query, below=below, **values)
            if not rows:
                return
            for name, number, payload in rows:
                yield {"batch": name, "number": number, "work": _key(payload or "")}
            below = rows[-1][1]

    def run_now(self, batch: str) -> int:
        """Let the waiting jobs start now, and return their number.

        They may wait for a time, for a window of the day, or because they were deferred or held.
        """
        waits = f"{_NOT_STARTED} AND (state = 'waiting' OR hours <> '')"
        return self._change(batch, waits, f"{_AT_ONCE}, hours = ''")

    def hold(self, batch: str) -> int:
        """Let the jobs that have not started wait until `run_now` or `move` gives them a time, and
        return their number.
        """
        return self._change(batch, _NOT_STARTED, "state = 'waiting', due = NULL")

    def move(
        self,
        batch: str,
        *,
        priority: Priority | None = None,
        window: str | None = None,
        not_before: datetime | None = None,
    ) -> int:
        """Change when the jobs that have not started may start; return their number.

        priority, window: of their new scheduling class, where not None. not_before: earliest start
        by this host's clock; None leaves those that wait or are held as they are.
        """
        values: dict[str, Any] = {"priority": priority, "hours": window}
        changes = "priority = coalesce(:priority, priority), hours = coalesce(:hours, hours)"
        if not_before is not None:
            changes += ", state = 'waiting', due = :due"
            with self._database.reading() as transaction:
                values["due"] = database_time(transaction, not_before)
        return self._change(batch, _NOT_STARTED, changes, **values)

    def _change(self, batch: str, which: str, changes: str, **values: Any) -> int:
        """Change some jobs, and return their number. which: condition."""
        where, named = of_batch(batch)
        with self._database.writing() as transaction:
            _hold(transaction, batch)
            return transaction.change(
                f"UPDATE {{jobs}} SET {changes}, changed = {{now}} WHERE {where} AND {which}",
                **named,
                **values,
            )

    def next_summary(self, name: str, route: str) -> SummaryMark:
        """Return the period of the next summary of a selection, before its jobs are read.

        It ends before now, as a job that ended by now may not be stored yet: the next summary
        repeats such jobs, and misses none.
        """
        with self._database.reading() as transaction:
            stored = meta(transaction, _summary(name, route))
            until = transaction.now() - int(_OVERLAP_SECONDS * 1000)
            return SummaryMark(host_time(transaction, int(stored)) if stored else None, until)

    def record_summary(self, name: str, route: str, mark: SummaryMark) -> None:
        """Record that a summary of a selection was written: the next one begins where it ended."""
        with self._database.writing() as transaction:
            set_meta(transaction, _summary(name, route), str(mark.until))

    def prune(self, before: datetime) -> int:
        """Delete jobs that ended before a time of this host's clock, and return their number.

        A batch with open jobs keeps all of its jobs.
        """
        with self._database.writing() as transaction:
            moment = database_time(transaction, before)
            # Whoever holds a batch may queue a job of it again: what is open is read after that.
            transaction.rows("SELECT batch FROM {batches} ORDER BY batch {locked}")
            count = transaction.change(
                f"DELETE FROM {{jobs}} WHERE ended <= :moment AND batch NOT IN "
                f"(SELECT batch FROM {{jobs}} WHERE {OPEN_STATES})",
                moment=moment,
            )
            transaction.change(
                "DELETE FROM {payloads} WHERE NOT EXISTS (SELECT 1 FROM {jobs} WHERE "
                "{jobs}.batch = {payloads}.batch AND {jobs}.number = {payloads}.number)"
            )
            transaction.change(
                "DELETE FROM {batches} WHERE batch NOT IN (SELECT batch FROM {jobs})"
            )
        return count

    def pause(self) -> None:
        """Let no job start from now on; running ones continue."""
        with self._database.writing() as transaction:
            set_meta(transaction, PAUSED, "yes")

    def resume(self) -> None:
        """Let jobs start again."""
        with self._database.writing() as transaction:
            transaction.change("DELETE FROM {meta} WHERE name = :name", name=PAUSED)


def _submitted(
    transaction: Transaction,
    keys: Mapping[str, StudyJob],
    joins: str | None,
    about: Mapping[str, Json],
    wanted: Mapping[str, Any],
    received: Mapping[str, Interval],
) -> Submitted:
    """Add the jobs whose work is not open. Raises ConflictError.

    wanted: values of columns of new jobs.
    """
    batch, count = _joined(transaction, joins)
    known = _open_keys(transaction, list(keys))
    added = (key for key in keys if key not in known)
    new = {key: number for number, key in enumerate(added, count + 1)}
    if batch is None:
        batch = f"{datetime.now():%Y%m%d}-{''.join(secrets.choice(_LETTERS) for _ in range(6))}"
        if new and not transaction.change(
            "INSERT INTO {batches} (batch, joins, about) VALUES (:batch, :joins, :about) "
            "ON CONFLICT DO NOTHING",
            batch=batch,
            joins=joins,
            about=json.dumps(about),
        ):
            raise ConflictError(batch)
    state = "queued" if wanted["due"] is None else "waiting"
    common = {**wanted, "batch": batch, "state": state, "now": transaction.now()}
    rows = [
        {
            **common,
            "number": number,
            "work": key,
            "transfers": json.dumps({"receive": received[key]}) if key in received else None,
        }
        for key, number in new.items()
    ]
    if transaction.change_each(_ADD_JOB, rows) != len(rows):
        raise ConflictError(batch)
    payloads = [
        {"batch": batch, "number": number, "payload": keys[key].to_json()}
        for key, number in new.items()
    ]
    transaction.change_each(_ADD_PAYLOAD, payloads)
    ids = {key: job_name(batch, new[key]) if key in new else known[key] for key in keys}
    return Submitted(
        batch, len(new), len(keys) - len(new), ids, tuple(ids[key] for key in keys if key in known)
    )


def _summary(name: str, route: str) -> str:
    """Return the name of the fact of how far summaries of a selection came."""
    return f"summary {json.dumps([name, route])}"


def _joined(transaction: Transaction, joins: str | None) -> tuple[str | None, int]:
    """Return the batch that jobs join, and the number of its last job; None for a new batch.

    The transaction holds the batch from here on, so that no other one adds to it.
    """
    query = "SELECT batch FROM {batches} WHERE joins = :joins {locked}"
    batch = None if joins is None else transaction.value(query, joins=joins)
    if batch is None:
        return None, 0
    last = "SELECT coalesce(max(number), 0) FROM {jobs} WHERE batch = :batch"
    return batch, transaction.value(last, batch=batch)


def _hold(transaction: Transaction, batch: str) -> None:
    """Hold a batch until the transaction ends: no other one joins, changes or prunes it."""
    name = batch.partition("/")[0]
    transaction.rows("SELECT batch FROM {batches} WHERE batch = :name {locked}", name=name)


def _open_keys(transaction: Transaction, among: Sequence[str] | None = None) -> dict[str, str]:
    """Return the open jobs by the key of their work; among: only these keys, if given."""
    query = f"SELECT work, batch, number FROM {{jobs}} WHERE {OPEN_STATES} AND work IS NOT NULL"
    if among is None:
        return {key: job_name(batch, number) for key, batch, number in transaction.rows(query)}
    known: dict[str, str] = {}
    for start in range(0, len(among), _MANY):
        values = {f"key_{number}": key for number, key in enumerate(among[start : start + _MANY])}
        names = ", ".join(f":{name}" for name in values)
        rows = transaction.rows(f"{query} AND work IN ({names})", **values)
        known |= {key: job_name(batch, number) for key, batch, number in rows}
    return known


def _key(payload: str) -> str | None:
    """Return the job's key for its present files, or None if the job or a file cannot be read."""
    try:
        return StudyJob.from_json(payload).key()
    except (QueueError, OSError):
        return None
