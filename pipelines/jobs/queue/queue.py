"""The job queue as users see it: submit, list, cancel, retry, pause, prune."""

import hashlib
import json
import secrets
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy as sa
from dbos import EnqueueOptions, WorkflowStatus, error
from sqlalchemy.exc import IntegrityError

from ...errors import QueueError
from .job import (
    ENDED,
    ENDED_BADLY,
    NOT_RECORDED,
    OPEN,
    TRANSFERS,
    BatchCount,
    Interval,
    JobRow,
    JobState,
    OpenJobs,
    Retried,
    StudyJob,
    Submitted,
    Transfer,
    json_object,
    work_of,
)
from .liveness import living_workers
from .location import QueuePlace
from .schedule import Priority, SchedulingClass
from .store import (
    APPLICATION,
    DEFERRED,
    JOINS,
    NAMES,
    PASSED,
    PAUSED,
    VERSION,
    WORK,
    QueueTables,
    open_tables,
    payload_of,
    seconds_of,
    state_of,
    whole,
)

_BATCH_LENGTH = len("20261121-abcdef")

ALONE, _WITH_OTHERS, BEHIND = 1, 2, 3
"""Order within a scheduling class: a job that may have crashed a worker goes first, and alone; a
deferred one goes last, as others may fit onto a disk that is too full for it.
"""

_SOONER: Mapping[str, Any] = {"status": NAMES["queued"], "delay_until_epoch_ms": None}

_AGAIN: Mapping[str, Any] = {
    "status": NAMES["queued"],
    "recovery_attempts": 0,
    "priority": _WITH_OTHERS,
    "owner_xid": None,
    "started_at_epoch_ms": None,
    "completed_at": None,
}

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that looks like another
_MANY = 10_000
"""Most jobs that one statement names; the limit of SQLite is 32,766."""


def _job_row(row: WorkflowStatus, inputs: Any, output: Any) -> JobRow:
    """Convert a job that DBOS listed, whose times are in milliseconds."""
    about = row.attributes or {}
    ended = seconds_of(row.completed_at)
    return JobRow(
        job=row.workflow_id,
        state=state_of(row.status),
        scheduling=SchedulingClass.parse(str(row.queue_name or about.get("lane"))),
        tries=whole(row.recovery_attempts),
        worker=None if row.executor_id is None else str(row.executor_id),
        submitted=seconds_of(row.created_at) or 0.0,
        not_before=seconds_of(row.delay_until_epoch_ms),
        started=seconds_of(row.dequeued_at),
        ended=ended,
        payload=payload_of(inputs),
        result=json_object(output) if ended else {},
        established=str(about.get("established", NOT_RECORDED)),
        transfers=_transfers(about.get(PASSED)),
        deferred=str(about.get(DEFERRED, "")),
        name=str(about.get("name", "")),
        route=str(about.get("route", "")),
    )


def _transfers(found: Any) -> dict[Transfer, Interval]:
    """Decode the intervals that a node recorded, as far as they can be read."""
    known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    read: dict[Transfer, Interval] = {}
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
    with open_tables(place, create=create) as tables:
        yield Queue(tables)


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
    """Access of users to a queue.

    All methods raise QueueLostError while the database does not answer. Counts and keys, which node
    and watch read each second, are SQL: for 10,000 jobs they take 8 to 25 ms of processor time,
    DBOS's listing 220 ms.
    """

    def __init__(self, tables: QueueTables) -> None:
        self._tables = tables

    def batches(self) -> list[BatchCount]:
        """Return all batches, oldest first; model and folders are those of the first job."""
        jobs = self._tables.jobs.c
        batch = sa.func.substr(jobs.workflow_uuid, 1, _BATCH_LENGTH)
        about = sa.func.min(sa.cast(jobs.attributes, sa.Text))
        query = (
            sa.select(
                batch,
                jobs.status,
                sa.func.count(),
                sa.func.min(jobs.created_at),
                about,
                sa.func.min(jobs.workflow_uuid),
            )
            .where(jobs.application_name == APPLICATION)
            .group_by(batch, jobs.status)
        )
        counts: dict[str, BatchCount] = {}
        firsts: dict[str, str] = {}
        with self._tables.translating_errors():
            for name, status, count, created, attributes, first in self._tables.read(query):
                label, submitted = str(json_object(attributes).get("name", "")), seconds_of(created)
                state, moment = state_of(status), submitted or 0.0
                before = counts.get(name, BatchCount(name, label, moment, {}))
                number = before.jobs.get(state, 0) + count
                states: dict[JobState, int] = {**before.jobs, state: number}
                counts[name] = BatchCount(name, label, min(before.submitted, moment), states)
                firsts[name] = min(firsts.get(name, first), first)
            inputs = self._texts(self._tables.inputs.c.inputs, list(firsts.values()))
        found = (
            replace(count, work=work_of(payload_of(inputs.get(firsts[name]))))
            for name, count in counts.items()
        )
        return sorted(found, key=lambda count: (count.submitted, count.batch))

    def jobs(self, batch: str, states: Collection[JobState] = ()) -> list[JobRow]:
        """Return the jobs of a batch, or the one `<batch>/<number>`, in order; "" is any batch.

        states: only jobs in one of these states, if given.
        """
        with self._tables.translating_errors():
            return self._rows(self._tables.list_jobs(batch, states))

    def jobs_since(self, moment: datetime | None) -> list[JobRow]:
        """Return the open jobs, and those that ended since a time of this host's clock; None lists
        all that ended.
        """
        with self._tables.translating_errors():
            after = None
            if moment:
                milliseconds = self._tables.database_time(moment)
                after = datetime.fromtimestamp(milliseconds / 1000, UTC)
            listed = self._tables.list_jobs("", OPEN)
            listed += self._tables.list_jobs("", ENDED, ended_after=after)
            # A job that ended between the two queries is in both.
            latest = {row.workflow_id: row for row in listed}
            return self._rows([latest[job] for job in sorted(latest)])

    def _rows(self, listed: Sequence[WorkflowStatus]) -> list[JobRow]:
        ids = [row.workflow_id for row in listed]
        inputs = self._texts(self._tables.inputs.c.inputs, ids)
        outputs = self._texts(self._tables.outputs.c.output, ids)
        return [
            _job_row(row, inputs.get(job), outputs.get(job))
            for job, row in zip(ids, listed, strict=True)
        ]

    def deferred(self) -> list[JobRow]:
        """Return the jobs that wait for a hindrance to pass, in order."""
        jobs = self._tables.jobs.c
        noted = sa.cast(jobs.attributes, sa.Text).contains(json.dumps(DEFERRED), autoescape=True)
        waiting = [*self._tables.of_batch("", ["waiting"]), noted]
        with self._tables.translating_errors():
            found = self._tables.read(sa.select(jobs.workflow_uuid).where(*waiting))
            names = [job for (job,) in found]
            listed = self._tables.list_jobs("", ["waiting"], among=names) if names else []
            return [row for row in self._rows(listed) if row.deferred]

    def open_jobs(self, batch: str = "") -> tuple[OpenJobs, ...]:
        """Count the open jobs of a batch by state, scheduling class and whether they are held; ""
        is any batch.
        """
        jobs = self._tables.jobs.c
        kind = jobs.status, jobs.queue_name, jobs.delay_until_epoch_ms.is_(None)
        query = (
            sa.select(
                jobs.status,
                jobs.queue_name,
                sa.func.count(),
                sa.func.min(jobs.delay_until_epoch_ms),
            )
            .where(*self._tables.of_batch(batch, OPEN))
            .group_by(*kind)
            .order_by(*kind)
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
        """Return the open jobs, as `<batch>/<number>`, by the key of their work."""
        jobs = self._tables.jobs.c
        key = jobs.deduplication_id
        query = sa.select(key, jobs.workflow_uuid).where(key.isnot(None))
        with self._tables.translating_errors():
            return dict(map(tuple, self._tables.read(query)))

    def known_keys(self) -> set[str]:
        """Return the keys of work that is open, or that failed or was cancelled."""
        attributes = sa.cast(self._tables.jobs.c.attributes, sa.Text)
        query = sa.select(attributes).where(*self._tables.of_batch("", ENDED_BADLY))
        # Open jobs first: one that ends meanwhile is in one of both.
        known = set(self.open_keys())
        with self._tables.translating_errors():
            ended = (json_object(text).get(WORK) for (text,) in self._tables.read(query))
            return known.union(key for key in ended if isinstance(key, str))

    def workers(self) -> int:
        """Return the number of living workers on all machines, idle ones included."""
        return living_workers(self._tables.place)

    def is_paused(self) -> bool:
        """Return whether no job may start."""
        return self._tables.is_paused()

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
        received: Mapping[str, Interval] | None = None,
    ) -> Submitted:
        """Add jobs to one batch, all or none, except those whose work is open already.

        route: AE title of a node that received the studies. joins: jobs of one model that are
        submitted with the same text share a batch; "" makes a new one. not_before: by this host's
        clock. established: how the model's reading was verified, in words. received: interval in
        which a node received the files, by the key of the work.
        """
        attributes = {"name": name, "lane": str(scheduling), "established": established}
        if route:
            attributes["route"] = route
        if joins and jobs:
            shared = json.dumps([joins, jobs[0].model_sha256])
            attributes[JOINS] = hashlib.sha256(shared.encode()).hexdigest()[:32]
        keys = {job.key(): job for job in jobs}
        with self._tables.translating_errors():
            self._tables.register(scheduling)
            due = self._tables.database_time(not_before) if not_before else None
            while True:
                known = self.open_keys()
                new = {key: job for key, job in keys.items() if key not in known}
                try:
                    batch, added = self._add(new, attributes, received or {}, due)
                except error.DBOSQueueDeduplicatedError:
                    continue  # another submission was faster
                ids = {key: added.get(key) or known[key] for key in keys}
                before = tuple(ids[key] for key in keys if key not in added)
                return Submitted(batch, len(new), len(jobs) - len(new), ids, before)

    def record_sent(self, job: str, interval: Interval) -> None:
        """Record the interval in which a node sent a job's result."""
        with self._tables.translating_errors():
            for row in self._tables.list_jobs(job):
                passed = {**_transfers((row.attributes or {}).get(PASSED)), "send": interval}
                self._tables.annotate(row, **{PASSED: passed})

    def cancel(self, batch: str) -> int:
        """Cancel the open jobs of a batch, or one job; running ones stop within seconds."""
        with self._tables.translating_errors():
            ids = [row.workflow_id for row in self._tables.list_jobs(batch, OPEN)]
            for some in _portions(ids):
                self._tables.client.cancel_workflows(some)
        return len(ids)

    def retry(self, batch: str) -> Retried:
        """Queue the failed and cancelled jobs of a batch, or one job, unless equal work is open.

        Deferred jobs, and those of their batch that wait along with them, are queued immediately.
        The client cannot do this: `resume_workflows` ignores failed jobs, and `rewind_workflow`
        takes 8 s for 1,000 jobs in place of 0.3 s; both drop the key by which equal work is found.
        """
        deferred = {_batch_of(row.job) for row in self.deferred()}
        rows = self.jobs(batch, ENDED_BADLY)
        keys = {row.job: _key(row) for row in rows}
        with self._tables.translating_errors():
            sooner = 0
            if _batch_of(batch) in deferred:
                is_timed = self._tables.jobs.c.delay_until_epoch_ms.isnot(None)
                waiting = [*self._tables.of_batch(batch, ["waiting"]), is_timed]
                sooner = self._tables.change(waiting, _SOONER)
            for scheduling in {row.scheduling for row in rows}:
                self._tables.register(scheduling)
            while True:
                known = self.open_keys()
                due = {keys[row.job] or row.job: row for row in rows if keys[row.job] not in known}
                try:
                    again = self._queue_again(batch, list(due.values()), keys)
                except IntegrityError:
                    continue  # a submission was faster
                return Retried(again + sooner, len(rows) - len(due))

    def run_now(self, batch: str) -> int:
        """Let the waiting jobs of a batch, or one job, start now, and return their number.

        They may wait for a time, for a window of the day, or because they were deferred or held.
        """
        name, sooner = self._tables.jobs.c.queue_name, 0
        with self._tables.translating_errors():
            open_jobs = self._tables.of_batch(batch, ["waiting", "queued"])
            for (found,) in self._tables.read(sa.select(name).where(*open_jobs).distinct()):
                scheduling = SchedulingClass.parse(str(found))
                always = replace(scheduling, window="")
                self._tables.register(always)
                states: list[JobState] = ["waiting", "queued"] if scheduling.window else ["waiting"]
                where = [*self._tables.of_batch(batch, states), name == found]
                sooner += self._tables.change(where, {**_SOONER, "queue_name": str(always)})
        return sooner

    def hold(self, batch: str) -> int:
        """Let the jobs of a batch, or one job, that have not started wait until `run_now` or `move`
        gives them a time, and return their number.
        """
        with self._tables.translating_errors():
            where = self._tables.of_batch(batch, ["waiting", "queued"])
            held = {"status": NAMES["waiting"], "delay_until_epoch_ms": None}
            return self._tables.change(where, held)

    def move(
        self,
        batch: str,
        *,
        priority: Priority | None = None,
        window: str | None = None,
        not_before: datetime | None = None,
    ) -> int:
        """Change when the jobs of a batch, or one job, that have not started may start; return
        their number.

        priority, window: of their new scheduling class, where not None. not_before: earliest start
        by this host's clock; None leaves those that wait or are held as they are.
        """
        name, moved = self._tables.jobs.c.queue_name, 0
        with self._tables.translating_errors():
            later: dict[str, Any] = {}
            if not_before:
                due = self._tables.database_time(not_before)
                later = {"status": NAMES["waiting"], "delay_until_epoch_ms": due}
            waiting = self._tables.of_batch(batch, ["waiting", "queued"])
            for (found,) in self._tables.read(sa.select(name).where(*waiting).distinct()):
                before = SchedulingClass.parse(str(found))
                after = SchedulingClass(
                    before.priority if priority is None else priority,
                    before.window if window is None else window,
                )
                self._tables.register(after)
                values = {**later, "queue_name": str(after)}
                moved += self._tables.change([*waiting, name == found], values)
        return moved

    def _texts(self, column: Any, jobs: Sequence[str]) -> dict[str, Any]:
        """Read a column of inputs or outputs by job, as text, which nothing unpickles."""
        job, found = column.table.c.workflow_uuid, dict[str, Any]()
        for some in _portions(jobs):
            rows = self._tables.read(sa.select(job, column).where(job.in_(some)))
            found |= dict(map(tuple, rows))
        return found

    def _queue_again(
        self, batch: str, rows: Sequence[JobRow], keys: Mapping[str, str | None]
    ) -> int:
        if not rows:
            return 0
        jobs, bound = self._tables.jobs, sa.bindparam
        update = (
            sa.update(jobs)
            .where(jobs.c.workflow_uuid == bound("job"), jobs.c.status == bound("was"))
            .values({**_AGAIN, "queue_name": bound("to"), "deduplication_id": bound("key")})
            .values(updated_at=self._tables.now())
        )
        each = [
            {
                "job": row.job,
                "was": NAMES[row.state],
                "to": str(row.scheduling),
                "key": keys[row.job],
            }
            for row in rows
        ]
        with self._tables.begin() as connection:
            self._hold(connection, _batch_of(batch))
            return connection.execute(update, each).rowcount

    def prune(self, before: datetime) -> int:
        """Delete jobs that ended before a time of this host's clock, and return their number.

        A batch with open jobs keeps all of its jobs. The client cannot do this: its
        `delete_workflows` also deletes a job that was queued again since it was listed.
        """
        with self._tables.translating_errors():
            moment = self._tables.database_time(before)
            old = [*self._tables.of_batch(""), self._tables.jobs.c.completed_at <= moment]
            with self._tables.begin() as connection:
                for batch in sorted(set(map(_batch_of, self._names(connection, old)))):
                    self._hold(connection, batch)
                still_open = self._names(connection, self._tables.of_batch("", OPEN))
                kept = set(map(_batch_of, still_open))
                ended = [job for job in self._names(connection, old) if _batch_of(job) not in kept]
                for some in _portions(ended):
                    for table in (self._tables.inputs, self._tables.outputs, self._tables.jobs):
                        connection.execute(sa.delete(table).where(table.c.workflow_uuid.in_(some)))
        return len(ended)

    def _names(self, connection: sa.Connection, where: Sequence[Any]) -> Sequence[str]:
        """Return the jobs that meet all conditions, as `<batch>/<number>`."""
        query = sa.select(self._tables.jobs.c.workflow_uuid).where(*where)
        return connection.execute(query).scalars().all()

    def pause(self) -> None:
        """Let no job start from now on; running ones continue."""
        with self._tables.translating_errors():
            self._tables.client.register_queue(PAUSED, on_conflict="never_update")

    def resume(self) -> None:
        """Let jobs start again."""
        with self._tables.translating_errors():
            self._tables.client.delete_queue(PAUSED)

    def _add(
        self,
        jobs: Mapping[str, StudyJob],
        attributes: Mapping[str, Any],
        received: Mapping[str, Interval],
        due: int | None,
    ) -> tuple[str, dict[str, str]]:
        """Add jobs by key; return their batch, and their names by key.

        due: earliest start by the database's clock. The client's own delay would be by this host's
        clock.
        """
        with self._tables.begin() as connection:
            batch, count = self._joined(connection, attributes.get(JOINS))
            added = {key: f"{batch}/{number:05}" for number, key in enumerate(jobs, count + 1)}
            for key, job in jobs.items():
                passed = {PASSED: {"receive": received[key]}} if key in received else {}
                options = _options(added[key], {**attributes, **passed, WORK: key}, key)
                self._tables.client.enqueue_in_transaction(connection, options, job.to_json())
            # The client's own moment is a whole second where SQLite is older than 3.42.
            values: dict[str, Any] = {"created_at": self._tables.now()}
            if due is not None:
                values |= {"status": NAMES["waiting"], "delay_until_epoch_ms": due}
            names = self._tables.jobs.c.workflow_uuid
            for some in _portions(list(added.values())):
                self._tables.change([names.in_(some)], values, within=connection)
        return batch, added

    def _joined(self, connection: sa.Connection, joins: str | None) -> tuple[str, int]:
        """Return the batch that jobs join, and the number of its last job; 0 for a new batch.

        The transaction holds the batch from here on, so that no other one adds to it.
        """
        jobs = self._tables.jobs.c
        name = jobs.workflow_uuid
        if joins:
            noted = sa.cast(jobs.attributes, sa.Text).contains(json.dumps(joins))
            query = sa.select(sa.func.min(name)).where(*self._tables.of_batch(""), noted)
            first = connection.execute(query).scalar()
            if first is not None and self._hold(connection, _batch_of(first)):
                batch = _batch_of(first)
                query = sa.select(sa.func.max(name)).where(*self._tables.of_batch(batch))
                return batch, int(str(connection.execute(query).scalar()).partition("/")[2])
        return f"{datetime.now():%Y%m%d}-{''.join(secrets.choice(_LETTERS) for _ in range(6))}", 0

    def _hold(self, connection: sa.Connection, batch: str) -> bool:
        """Hold a batch until the transaction ends: no other one joins, retries or prunes it.

        Its first job is locked. Return False if the batch was pruned.
        """
        jobs = self._tables.jobs
        name = jobs.c.workflow_uuid
        query = sa.select(sa.func.min(name)).where(*self._tables.of_batch(batch))
        hold = sa.update(jobs).values(priority=jobs.c.priority)
        while first := connection.execute(query).scalar():
            if connection.execute(hold.where(name == first)).rowcount:
                return True
        return False


def _batch_of(job: str) -> str:
    return job.partition("/")[0]


def _options(job: str, attributes: dict[str, Any], key: str) -> EnqueueOptions:
    return EnqueueOptions(
        workflow_name="translate_study",
        queue_name=attributes["lane"],
        workflow_id=job,
        app_version=VERSION,
        deduplication_id=key,
        priority=_WITH_OTHERS,
        attributes=attributes,
    )


def _portions(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _MANY):
        yield list(ids[start : start + _MANY])


def _key(row: JobRow) -> str | None:
    """Return the job's key for its present files, or None if the job or a file cannot be read."""
    try:
        return StudyJob.from_json(row.payload).key()
    except (QueueError, OSError):
        return None
