"""The job queue as its workers see it: take, end, hand back and take over jobs."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from .queue import PAUSED
from .queue_state import PRIORITIES, Claim, Lane
from .queue_tables import APPLICATION, NAMES, VERSION, QueueTables


class Claims:
    """What a worker does with a queue, under its own name.

    worker: unique among all that live; its holder must own the name's lock (`queue_life`).
    All methods raise QueueLostError while the database does not answer.
    """

    def __init__(self, tables: QueueTables, worker: str) -> None:
        self._tables = tables
        self.worker = worker

    def lanes(self) -> list[Lane]:
        """Where jobs may stand, the most urgent first; none while all work is paused."""
        with self._tables.told():
            names = {lane.name for lane in self._tables.client.list_queues()}
        if PAUSED in names:
            return []
        lanes = [lane for name in names if (lane := Lane.parse(name))]
        # Of equal priority, those that may start only now go first.
        return sorted(lanes, key=lambda lane: (PRIORITIES.index(lane.priority), not lane.window))

    def take(self, lane: Lane) -> Claim | None:
        """The oldest job of a lane, which is ours from now on; None if there is none."""
        token = str(uuid4())
        with self._tables.told():
            queue = self._tables.client.retrieve_queue(str(lane))
            if queue is None:
                return None
            taken, _ = self._tables.store.start_queued_workflows(
                queue, self.worker, VERSION, None, owner_xid=token
            )
            if not taken:
                return None
            [row] = self._tables.store.get_workflow_statuses(taken)
        return Claim(
            job=row["workflow_uuid"],
            token=token,
            tries=row["recovery_attempts"],
            payload=json.loads(row["inputs"])["positionalArgs"][0],
        )

    def is_ours(self, claim: Claim) -> bool:
        """Whether a job is still ours, neither cancelled nor taken over."""
        jobs = self._tables.jobs.c
        query = sa.select(jobs.owner_xid).where(jobs.workflow_uuid == claim.job)
        with self._tables.told():
            return [(claim.token,)] == [tuple(row) for row in self._tables.read(query)]

    def end(self, claim: Claim, result: Mapping[str, Any], *, well: bool) -> bool:
        """Record how a job of ours ended; False, and no record, if it is not ours any more."""
        state = NAMES["done" if well else "failed"]
        with self._tables.told():
            return self._tables.store.update_workflow_outcome(
                claim.job, state, output=json.dumps(result), owner_xid=claim.token
            )

    def give_up(self, claim: Claim) -> None:
        """Take a job that ended every worker out of the queue."""
        with self._tables.told():
            self._tables.store.dead_letter_workflows([claim.job], min_recovery_attempts=claim.tries)

    def hand_back(self, claim: Claim) -> None:
        """Put a job of ours back to its place in the queue."""
        with self._tables.told():
            self._tables.store.reenqueue_for_recovery(claim.job, [self.worker], "normal")

    def workers(self) -> set[str]:
        """The names under which jobs are held, of living and dead workers."""
        jobs = self._tables.jobs.c
        query = sa.select(jobs.executor_id).where(
            jobs.application_name == APPLICATION, jobs.status == NAMES["running"]
        )
        with self._tables.told():
            return {worker for (worker,) in self._tables.read(query.distinct())}

    def take_over(self, worker: str) -> int:
        """Put the jobs of a dead worker back into the queue; how many that were."""
        with self._tables.told():
            jobs = self._tables.store.get_pending_workflows(worker, VERSION)
            return sum(
                self._tables.store.reenqueue_for_recovery(job.workflow_id, [worker], "normal")
                for job in jobs
            )

    def wake(self) -> None:
        """Queue the jobs whose time has come."""
        with self._tables.told():
            self._tables.store.transition_delayed_workflows()
