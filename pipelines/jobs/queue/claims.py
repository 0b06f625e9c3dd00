"""The job queue as workers see it: claim, acknowledge, defer, release and reclaim jobs.

All times are by the database's clock."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import uuid4

from ...retries import crash_counts
from .database import Database, Transaction
from .job import Claim, OpenJobs
from .queue import PAUSED, Queue, job_name
from .schedule import ALONE, BEHIND, PRIORITIES, SchedulingClass
from .store import meta, of_batch

DEFER_SECONDS = 60.0
"""Delay of a job that waits for a passing hindrance, such as a full disk."""

SLACK_SECONDS = 60.0
"""Seconds by which the database's clock may be set back before waiting jobs count as due."""

_LANES = """
WITH RECURSIVE lanes (lane) AS (
    SELECT min(lane) FROM {jobs} WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(lane) FROM {jobs} WHERE state = 'queued' AND lane > lanes.lane)
    FROM lanes WHERE lane IS NOT NULL
)
SELECT lane FROM lanes WHERE lane IS NOT NULL
"""
"""One look into the index per lane, however many jobs are queued."""

_CLAIM = """
UPDATE {jobs}
SET state = 'running', worker = :worker, token = :token, started = {now}, changed = {now},
    tries = tries + 1
WHERE state = 'queued' AND (batch, number) = (
    SELECT batch, number FROM {jobs} WHERE state = 'queued' AND lane = :lane AND %s
    ORDER BY turn, submitted, batch, number LIMIT 1 {skip_locked}
)
RETURNING batch, number, tries, turn
"""
_RECORD = """
INSERT INTO {payloads} (batch, number, payload, result) VALUES (:batch, :number, '', :result)
ON CONFLICT (batch, number) DO UPDATE SET result = excluded.result
"""
_MINE = "state = 'running' AND token = :token"


class Claims:
    """Access of one worker to a queue.

    worker: name whose lock the worker holds (`liveness`), so that no other living worker has it.
    only: batch to claim jobs from; "" means all batches.
    All methods raise QueueLostError while the database does not answer.
    """

    def __init__(self, database: Database, worker: str, only: str = "") -> None:
        self._database = database
        self._only = only
        self.worker = worker

    def scheduling_classes(self) -> list[SchedulingClass]:
        """Return the classes of the queued jobs, most urgent first; none while work is paused."""
        with self._database.reading() as transaction:
            if meta(transaction, PAUSED):
                return []
            classes = [SchedulingClass.parse(lane) for (lane,) in transaction.rows(_LANES)]
        # Of equal priority, those that may start only now go first.
        return sorted(classes, key=lambda one: (PRIORITIES.index(one.priority), not one.window))

    def is_paused(self) -> bool:
        """Return whether no job may start."""
        return Queue(self._database).is_paused()

    def claim(self, scheduling: SchedulingClass) -> Claim | None:
        """Claim the next job of a scheduling class, or return None.

        The jobs of one submission, which share their time of creation, go in order of their names.
        No other worker gets it: SQLite lets one writer in at a time, and PostgreSQL skips rows that
        another transaction is about to claim.
        """
        where, values = of_batch(self._only)
        values |= {"worker": self.worker, "token": str(uuid4()), "lane": str(scheduling)}
        with self._database.writing() as transaction:
            taken = transaction.row(_CLAIM % where, **values)
            if taken is None:
                return None
            batch, number, tries, turn = taken
            query = "SELECT payload FROM {payloads} WHERE batch = :batch AND number = :number"
            payload = transaction.value(query, batch=batch, number=number)
        job, token = job_name(batch, number), values["token"]
        return Claim(job, token, tries, payload or "", scheduling, turn == ALONE)

    def open_jobs(self) -> tuple[OpenJobs, ...]:
        """Return the jobs that this worker may claim and that have not ended."""
        return Queue(self._database).open_jobs(self._only)

    def owned(self, claims: Iterable[Claim]) -> set[str]:
        """Return the tokens of claims that still hold: neither cancelled nor reclaimed."""
        query = f"SELECT token FROM {{jobs}} WHERE {_MINE}"
        with self._database.reading() as transaction:
            return {claim.token for claim in claims if transaction.row(query, token=claim.token)}

    def acknowledge(self, claim: Claim, result: Mapping[str, Any], *, well: bool) -> bool:
        """Record how a claimed job ended, or return False if the claim is lost."""
        ended = f"state = '{'done' if well else 'failed'}', token = NULL, ended = {{now}}"
        _, values = of_batch(claim.job)
        with self._database.writing() as transaction:
            is_ours = _change(transaction, [claim.token], ended) > 0
            if is_ours:
                transaction.change(_RECORD, result=json.dumps(result), **values)
        return is_ours

    def dead_letter(self, claim: Claim) -> None:
        """Take a job that crashed every worker out of the queue."""
        ended = "state = 'given up', token = NULL, started = NULL, ended = {now}"
        with self._database.writing() as transaction:
            _change(transaction, [claim.token], ended)

    def release(self, tokens: Collection[str]) -> None:
        """Return claimed jobs to their places in the queue, without counting the try."""
        self._queue_again(tokens, "tries = tries - 1")

    def defer(self, claim: Claim, why: str) -> None:
        """Delay a claimed job, without counting the try, and record the reason.

        The queued jobs of its batch, whose results go to the same folder, are delayed too, and go
        first the next time.
        """
        later = f"state = 'waiting', due = {{now}} + {int(DEFER_SECONDS * 1000)}"
        own = f"{later}, token = NULL, started = NULL, tries = tries - 1, deferred = :why, "
        own += f"turn = {ALONE if claim.alone else BEHIND}"
        others = f"UPDATE {{jobs}} SET {later}, changed = {{now}} "
        others += "WHERE batch = :batch AND state = 'queued'"
        with self._database.writing() as transaction:
            if _change(transaction, [claim.token], own, why=json.dumps(why)):
                transaction.change(others, batch=claim.batch)

    def in_flight(self) -> dict[str, list[str]]:
        """Return the tokens of all claims by worker, living or dead."""
        found: dict[str, list[str]] = {}
        query = "SELECT worker, token FROM {jobs} WHERE state = 'running'"
        with self._database.reading() as transaction:
            for worker, token in transaction.rows(query):
                found.setdefault(str(worker), []).append(token)
        return found

    def reclaim(self, tokens: Collection[str]) -> int:
        """Put back the jobs that a dead worker had claimed, and return their number.

        A job that was the only one in flight counts as the cause. Of several none does, and each
        runs alone the next time.
        """
        counted = "tries = tries" if crash_counts(len(tokens)) else "tries = tries - 1"
        return self._queue_again(tokens, f"turn = {ALONE}, {counted}")

    def wake(self) -> None:
        """Queue the waiting jobs that are due.

        A job is also due if the database's clock was set back since the job was last changed, which
        is when its delay began. A job without a time is held, and stays so.
        """
        slack = int(SLACK_SECONDS * 1000)
        with self._database.writing() as transaction:
            transaction.change(
                "UPDATE {jobs} SET state = 'queued', changed = {now} WHERE (batch, number) IN ("
                "SELECT batch, number FROM {jobs} WHERE state = 'waiting' AND due IS NOT NULL "
                f"AND (due <= {{now}} OR changed > {{now}} + {slack}) {{skip_locked}})"
            )

    def _queue_again(self, tokens: Collection[str], changes: str) -> int:
        back = f"state = 'queued', token = NULL, started = NULL, {changes}"
        if not tokens:
            return 0
        with self._database.writing() as transaction:
            return _change(transaction, tokens, back)


def _change(transaction: Transaction, tokens: Collection[str], changes: str, **values: Any) -> int:
    """Change the jobs whose claims hold, and return their number."""
    statement = f"UPDATE {{jobs}} SET {changes}, changed = {{now}} WHERE {_MINE}"
    return sum(transaction.change(statement, token=token, **values) for token in tokens)
