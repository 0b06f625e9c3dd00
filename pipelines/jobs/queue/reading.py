"""All that is read of a queue for people: batches, jobs, and what has not ended."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from .liveness import living_workers
from .rows import PUT_OFF, job_row, seconds_of, state_of
from .state import OPEN, BatchCount, JobRow, JobState, OpenJobs, SchedulingClass, json_object
from .tables import APPLICATION, QueueTables

_BATCH_LENGTH = len("20261121-abcdef")


class QueueReader:
    """Looks at a queue and changes nothing.

    All methods raise QueueLostError while the database does not answer.
    """

    def __init__(self, tables: QueueTables) -> None:
        self._tables = tables

    def batches(self) -> list[BatchCount]:
        """All batches, oldest first."""
        jobs = self._tables.jobs.c
        batch = sa.func.substr(jobs.workflow_uuid, 1, _BATCH_LENGTH)
        about = sa.func.min(sa.cast(jobs.attributes, sa.Text))
        query = (
            sa.select(batch, jobs.status, sa.func.count(), sa.func.min(jobs.created_at), about)
            .where(jobs.application_name == APPLICATION)
            .group_by(batch, jobs.status)
        )
        with self._tables.translating_errors():
            rows = self._tables.read(query)
        counts: dict[str, BatchCount] = {}
        for name, status, count, created, attributes in rows:
            label, submitted = str(json_object(attributes).get("name", "")), seconds_of(created)
            state, moment = state_of(status), submitted or 0.0
            before = counts.get(name, BatchCount(name, label, moment, {}))
            states: dict[JobState, int] = {**before.jobs, state: before.jobs.get(state, 0) + count}
            counts[name] = BatchCount(name, label, min(before.submitted, moment), states)
        return sorted(counts.values(), key=lambda count: count.submitted)

    def jobs(self, batch: str, states: Collection[JobState] = ()) -> list[JobRow]:
        """The jobs of a batch, or the one `<batch>/<number>`, in their order.

        states: only those in one of them, if any is named.
        """
        return self._rows(self._tables.of_batch(batch, states))

    def put_off(self) -> list[JobRow]:
        """The jobs that wait for something to pass, in their order."""
        attributes = sa.cast(self._tables.jobs.c.attributes, sa.Text)
        noted = attributes.contains(json.dumps(PUT_OFF), autoescape=True)
        rows = self._rows([*self._tables.of_batch("", ["waiting"]), noted])
        return [row for row in rows if row.put_off]

    def open_jobs(self, batch: str = "") -> tuple[OpenJobs, ...]:
        """What has not ended of a batch, or of all for "", by state and scheduling class."""
        jobs = self._tables.jobs.c
        query = (
            sa.select(
                jobs.status,
                jobs.queue_name,
                sa.func.count(),
                sa.func.min(jobs.delay_until_epoch_ms),
            )
            .where(*self._tables.of_batch(batch, OPEN))
            .group_by(jobs.status, jobs.queue_name)
            .order_by(jobs.status, jobs.queue_name)
        )
        with self._tables.translating_errors():
            rows = self._tables.read(query)
        return tuple(
            OpenJobs(
                count,
                state_of(status),
                SchedulingClass.parse(str(scheduling)).window,
                seconds_of(until) if state_of(status) == "waiting" else None,
            )
            for status, scheduling, count, until in rows
        )

    def open_keys(self) -> Mapping[str, str]:
        """The jobs that have not ended, as `<batch>/<number>`, by their work's key."""
        jobs = self._tables.jobs.c
        key = jobs.deduplication_id
        query = sa.select(key, jobs.workflow_uuid).where(key.isnot(None))
        with self._tables.translating_errors():
            return dict(map(tuple, self._tables.read(query)))

    def workers(self) -> int:
        """How many are alive on any machine, whether they have a job or not."""
        return living_workers(self._tables.place)

    def is_paused(self) -> bool:
        """Whether no job may start."""
        return self._tables.is_paused()

    def names(self, where: Sequence[Any]) -> list[str]:
        """The jobs for which all conditions hold, as `<batch>/<number>`."""
        query = sa.select(self._tables.jobs.c.workflow_uuid).where(*where)
        with self._tables.translating_errors():
            return [job for (job,) in self._tables.read(query)]

    def _rows(self, where: Sequence[Any]) -> list[JobRow]:
        jobs, inputs, outputs = self._tables.jobs, self._tables.inputs, self._tables.outputs
        query = (
            sa.select(
                *(jobs.c.workflow_uuid, jobs.c.status, jobs.c.queue_name),
                *(sa.cast(jobs.c.attributes, sa.Text),),
                *(jobs.c.recovery_attempts, jobs.c.executor_id, jobs.c.created_at),
                *(jobs.c.delay_until_epoch_ms, jobs.c.started_at_epoch_ms, jobs.c.completed_at),
                *(inputs.c.inputs, outputs.c.output),
            )
            .select_from(jobs)
            .outerjoin(inputs, inputs.c.workflow_uuid == jobs.c.workflow_uuid)
            .outerjoin(outputs, outputs.c.workflow_uuid == jobs.c.workflow_uuid)
            .where(*where)
            .order_by(jobs.c.workflow_uuid)
        )
        with self._tables.translating_errors():
            return list(map(job_row, self._tables.read(query)))
