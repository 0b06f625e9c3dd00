"""Pruning while another process retries or joins a batch, on both databases."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.queue_jobs import NORMAL, jobs, states
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.jobs.queue.database import Database, Transaction
from cuda_cyclegan.pipelines.jobs.queue.job import Retried, StudyJob, Submitted
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue, open_queue

SOON = timedelta(minutes=1)


@pytest.fixture
def other(tables: Database) -> Generator[Queue]:
    """The queue as another process opens it."""
    with open_queue(tables.place) as opened:
        yield opened


@contextmanager
def first_write_delayed(tables: Database, act: Callable[[], object]) -> Generator[None]:
    """Call a function before the first transaction of the block that writes."""
    writing, due = tables.writing, iter([act])

    def intervene() -> Any:
        if next_act := next(due, None):
            next_act()
        return writing()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "writing", intervene)
        yield


@contextmanager
def commits_delayed(tables: Database, act: Callable[[], object]) -> Generator[None]:
    """Start a thread before the first commit of the block that follows a change of a row, which
    gives it time to wait for that commit.
    """
    threads, writing = list[threading.Thread](), tables.writing

    @contextmanager
    def intervening() -> Generator[Transaction]:
        with writing() as transaction:
            changed, change = list[int](), transaction.change

            def noted(*arguments: Any, **values: Any) -> int:
                changed.append(change(*arguments, **values))
                return changed[-1]

            transaction.change = noted
            transaction.change_each = partial(_summed, noted)
            yield transaction
            if any(changed) and not threads:
                threads.append(threading.Thread(target=act))
                threads[0].start()
                threads[0].join(0.5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "writing", intervening)
        yield
    threads[0].join(ENOUGH)


def _summed(change: Callable[..., int], statement: str, values: Sequence[Any]) -> int:
    return sum(change(statement, **each) for each in values)


@pytest.mark.parametrize("job", ["00001", "00002"])
def test_a_job_that_is_queued_again_during_a_prune_stays_with_its_batch(
    tables: Database, other: Queue, tmp_path: Path, job: str
) -> None:
    queue, now = Queue(tables), datetime.now().astimezone()
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    queue.cancel(batch)
    with first_write_delayed(tables, lambda: other.retry(f"{batch}/{job}")):
        assert queue.prune(now + SOON) == 0
    assert sorted(states(queue, batch)) == ["cancelled", "queued"]
    assert StudyJob.from_json(queue.jobs(batch)[0].payload)


@pytest.mark.parametrize("job", ["00001", "00002"])
def test_a_prune_during_a_retry_waits_and_keeps_the_batch(
    tables: Database, other: Queue, tmp_path: Path, job: str
) -> None:
    queue, now, pruned = Queue(tables), datetime.now().astimezone(), list[int]()
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    queue.cancel(batch)
    with commits_delayed(tables, lambda: pruned.append(other.prune(now + SOON))):
        assert queue.retry(f"{batch}/{job}") == Retried(again=1, known=0)
    assert pruned == [0]
    assert sorted(states(queue, batch)) == ["cancelled", "queued"]


def test_a_retry_during_a_prune_finds_no_job(
    tables: Database, other: Queue, tmp_path: Path
) -> None:
    queue, now, retried = Queue(tables), datetime.now().astimezone(), list[Retried]()
    batch = queue.submit(jobs(tmp_path, 2), NORMAL).batch
    queue.cancel(batch)
    with commits_delayed(tables, lambda: retried.append(other.retry(batch))):
        assert queue.prune(now + SOON) == 2
    assert retried == [Retried(again=0, known=0)]
    assert states(queue, batch) == []


def test_a_submission_that_joins_a_batch_during_its_prune_gets_a_new_one(
    tables: Database, other: Queue, tmp_path: Path
) -> None:
    queue, now, added = Queue(tables), datetime.now().astimezone(), list[Submitted]()
    batch = queue.submit(jobs(tmp_path, 2), NORMAL, joins="tonight").batch
    queue.cancel(batch)
    late = jobs(tmp_path, 1, output="/b")
    with commits_delayed(tables, lambda: added.append(other.submit(late, NORMAL, joins="tonight"))):
        assert queue.prune(now + SOON) == 2
    [submitted] = added
    assert submitted.batch != batch
    assert states(queue, submitted.batch) == ["queued"]
