"""The job queue as workers see it: claim, acknowledge, defer, release and reclaim jobs.

All times are by the database's clock. `store.PRIVATE` has the reason for each table and column of
DBOS that is used here."""

import json
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from ...retries import crash_counts
from .job import Claim, OpenJobs
from .queue import ALONE, BEHIND, Queue
from .schedule import PRIORITIES, SchedulingClass
from .store import APPLICATION, DEFERRED, NAMES, PAUSED, VERSION, QueueTables, payload_of, whole

IN_FLIGHT: Any = sa.text("status IN ('ENQUEUED', 'PENDING')")
"""Predicate of DBOS's index for claims, which SQLite uses only for a query with the same words."""

_NOT_TAKEN: Mapping[str, Any] = {"owner_xid": None, "started_at_epoch_ms": None}

DEFER_SECONDS = 60.0
"""Delay of a job that waits for a passing hindrance, such as a full disk."""

SLACK_SECONDS = 60.0
"""Seconds by which the database's clock may be set back before waiting jobs count as due."""


class Claims:
    """Access of one worker to a queue.

    worker: name whose lock the worker holds (`liveness`), so that no other living worker has it.
    only: batch to claim jobs from; "" means all batches.
    All methods raise QueueLostError while the database does not answer.
    """

    def __init__(self, tables: QueueTables, worker: str, only: str = "") -> None:
        self._tables = tables
        self._only = only
        self.worker = worker

    def scheduling_classes(self) -> list[SchedulingClass]:
        """Return the scheduling classes, most urgent first; none while work is paused."""
        names = self._tables.queue_names()
        if PAUSED in names:
            return []
        classes = [found for name in names if (found := SchedulingClass.parse(name))]
        # Of equal priority, those that may start only now go first.
        return sorted(classes, key=lambda one: (PRIORITIES.index(one.priority), not one.window))

    def is_paused(self) -> bool:
        """Return whether no job may start."""
        return self._tables.is_paused()

    def claim(self, scheduling: SchedulingClass) -> Claim | None:
        """Claim the next job of a scheduling class, or return None.

        The jobs of one submission, which share their time of creation, go in order of their names.
        No other worker gets it: SQLite lets one writer in at a time, and PostgreSQL skips rows that
        another transaction is about to claim.
        """
        token, inputs = str(uuid4()), self._tables.inputs.c
        with self._tables.translating_errors(), self._tables.begin() as connection:
            taken: Any = connection.execute(self._taking(scheduling, token)).one_or_none()
            if taken is None:
                return None
            job, tries, priority = taken
            payload = sa.select(inputs.inputs).where(inputs.workflow_uuid == job)
            stored = connection.execute(payload).scalar()
        return Claim(job, token, whole(tries), payload_of(stored), scheduling, priority == ALONE)

    def _taking(self, scheduling: SchedulingClass, token: str) -> Any:
        jobs = self._tables.jobs
        first = (
            sa.select(jobs.c.workflow_uuid)
            .where(
                *self._tables.of_batch(self._only),
                jobs.c.queue_name == str(scheduling),
                jobs.c.status == NAMES["queued"],
                jobs.c.application_version == VERSION,
                IN_FLIGHT,
            )
            .order_by(jobs.c.priority, jobs.c.created_at, jobs.c.workflow_uuid)
            .limit(1)
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        now = self._tables.now()
        return (
            sa.update(jobs)
            .where(jobs.c.workflow_uuid == first, jobs.c.status == NAMES["queued"])
            .values(
                status=NAMES["running"],
                owner_xid=token,
                executor_id=self.worker,
                started_at_epoch_ms=now,
                updated_at=now,
                recovery_attempts=jobs.c.recovery_attempts + 1,
            )
            .returning(jobs.c.workflow_uuid, jobs.c.recovery_attempts, jobs.c.priority)
        )

    def open_jobs(self) -> tuple[OpenJobs, ...]:
        """Return the jobs that this worker may claim and that have not ended."""
        return Queue(self._tables).open_jobs(self._only)

    def owned(self, claims: Iterable[Claim]) -> set[str]:
        """Return the tokens of claims that still hold: neither cancelled nor reclaimed."""
        tokens = [claim.token for claim in claims]
        query = sa.select(self._tables.jobs.c.owner_xid).where(*self._running(tokens))
        with self._tables.translating_errors():
            return {found for (found,) in self._tables.read(query)}

    def acknowledge(self, claim: Claim, result: Mapping[str, Any], *, well: bool) -> bool:
        """Record how a claimed job ended, or return False if the claim is lost."""
        values = {
            "status": NAMES["done" if well else "failed"],
            "owner_xid": None,
            "deduplication_id": None,
            "completed_at": self._tables.now(),
        }
        outputs = self._tables.outputs
        with self._tables.translating_errors(), self._tables.begin() as connection:
            is_ours = self._tables.change(self._running([claim.token]), values, within=connection)
            if is_ours:  # an earlier try may have left an output
                connection.execute(sa.delete(outputs).where(outputs.c.workflow_uuid == claim.job))
                recorded = {"workflow_uuid": claim.job, "output": json.dumps(result)}
                connection.execute(sa.insert(outputs).values(recorded))
        return is_ours > 0

    def dead_letter(self, claim: Claim) -> None:
        """Take a job that crashed every worker out of the queue."""
        values = {
            "status": NAMES["given up"],
            "owner_xid": None,
            "queue_name": None,
            "deduplication_id": None,
            "started_at_epoch_ms": None,
            "completed_at": self._tables.now(),
        }
        with self._tables.translating_errors():
            self._tables.change(self._running([claim.token]), values)

    def release(self, tokens: Collection[str]) -> None:
        """Return claimed jobs to their places in the queue, without counting the try."""
        self._queue_again(tokens, {"recovery_attempts": self._one_try_less()})

    def defer(self, claim: Claim, why: str) -> None:
        """Delay a claimed job, without counting the try, and record the reason.

        The queued jobs of its batch, whose results go to the same folder, are delayed too, and go
        first the next time.
        """
        later: dict[str, Any] = {
            "status": NAMES["waiting"],
            "delay_until_epoch_ms": self._tables.now() + int(DEFER_SECONDS * 1000),
        }
        with self._tables.translating_errors():
            for row in self._tables.list_jobs(claim.job):
                self._tables.annotate(row, **{DEFERRED: why})
            own = {
                **_NOT_TAKEN,
                "recovery_attempts": self._one_try_less(),
                "priority": ALONE if claim.alone else BEHIND,
            }
            with self._tables.begin() as connection:
                change = partial(self._tables.change, within=connection)
                if change(self._running([claim.token]), {**later, **own}):
                    change(self._tables.of_batch(claim.batch, ["queued"]), later)

    def in_flight(self) -> dict[str, list[str]]:
        """Return the tokens of all claims by worker, living or dead."""
        jobs = self._tables.jobs.c
        query = sa.select(jobs.executor_id, jobs.owner_xid).where(
            jobs.application_name == APPLICATION, jobs.status == NAMES["running"]
        )
        found: dict[str, list[str]] = {}
        with self._tables.translating_errors():
            for worker, token in self._tables.read(query):
                found.setdefault(str(worker), []).append(token)
        return found

    def reclaim(self, tokens: Collection[str]) -> int:
        """Put back the jobs that a dead worker had claimed, and return their number.

        A job that was the only one in flight counts as the cause. Of several none does, and each
        runs alone the next time.
        """
        values: dict[str, Any] = {"priority": ALONE}
        if not crash_counts(len(tokens)):
            values["recovery_attempts"] = self._one_try_less()
        return self._queue_again(tokens, values)

    def wake(self) -> None:
        """Queue the waiting jobs that are due.

        A job is also due if the database's clock was set back since the job was last updated, which
        is when its delay began. A job without a time is held, and stays so.
        """
        jobs, now = self._tables.jobs.c, self._tables.now()
        was_set_back = jobs.updated_at > now + int(SLACK_SECONDS * 1000)
        is_due = sa.or_(jobs.delay_until_epoch_ms <= now, was_set_back)
        where = [
            *self._tables.of_batch("", ["waiting"]),
            jobs.delay_until_epoch_ms.isnot(None),
            is_due,
        ]
        with self._tables.translating_errors():
            self._tables.change(where, {"status": NAMES["queued"]})

    def _queue_again(self, tokens: Collection[str], values: Mapping[str, Any]) -> int:
        back = {"status": NAMES["queued"], **_NOT_TAKEN}
        with self._tables.translating_errors():
            return self._tables.change(self._running(tokens), {**back, **values})

    def _running(self, tokens: Collection[str]) -> list[Any]:
        """Return conditions for the jobs of these tokens; the status is there for its index."""
        jobs = self._tables.jobs.c
        return [jobs.status == NAMES["running"], jobs.owner_xid.in_(tokens)]

    def _one_try_less(self) -> Any:
        return self._tables.jobs.c.recovery_attempts - 1
