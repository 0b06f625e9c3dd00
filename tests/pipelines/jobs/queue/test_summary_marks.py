"""Summaries that continue the last one: each failure is in one of them, whatever the clocks do."""

import random
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from support.queue_jobs import NORMAL, jobs

from cuda_cyclegan.pipelines.jobs.queue import store
from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue

DAYS = 365
BERLIN = ZoneInfo("Europe/Berlin")


class Clocks:
    """Clocks of this host and of the database, which differ."""

    def __init__(self, tables: Database, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.ahead = 0.0
        patch.setattr(store.time, "time", lambda: self.now)

        spelled = tables.spelled

        def spelled_at_this_time(statement: str) -> str:
            return spelled(statement.replace("{now}", f"{int((self.now + self.ahead) * 1000)}"))

        patch.setattr(tables, "spelled", spelled_at_this_time)


def test_each_failure_of_a_year_is_in_the_next_summary(
    queue: Queue, tables: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summaries run at 07:00 in Berlin; the timer is late now and then, and the clocks change
    twice.
    """
    chance, repeated = random.Random(1), 0
    clocks = Clocks(tables, monkeypatch)
    queue.submit(jobs(tmp_path, 1), NORMAL)
    first = datetime(2027, 1, 1, 7, tzinfo=BERLIN)
    before = first.timestamp()
    fail = "UPDATE {jobs} SET state = 'failed', ended = {now}"
    for day in range(1, DAYS):
        summary = (first + timedelta(days=day)).timestamp() + chance.choice([5, 5, 5, 7205])
        clocks.ahead = chance.choice([-0.4, 0.0, 0.4]) + 7200.0  # its clock is wrong, but steady
        clocks.now = chance.uniform(before, summary)
        with tables.writing() as transaction:
            transaction.change(fail)
        clocks.now = before = summary
        mark = queue.next_summary("", "")
        assert len(queue.jobs_since(mark.since)) == 1, day
        queue.record_summary("", "", mark)
        repeated += len(queue.jobs_since(queue.next_summary("", "").since))
    assert repeated <= 5, "only what ended just before a summary"


def test_a_selection_has_a_mark_of_its_own(queue: Queue) -> None:
    mark = queue.next_summary("night*", "T1TOT2")
    assert mark.since is None
    queue.record_summary("night*", "T1TOT2", mark)
    assert queue.next_summary("night*", "").since is None
    assert queue.next_summary("", "T1TOT2").since is None
    continued = queue.next_summary("night*", "T1TOT2")
    assert continued.since
    assert continued.since.timestamp() * 1000 == pytest.approx(mark.until, abs=1000)
