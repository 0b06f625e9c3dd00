"""Liveness of workers, and their names."""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest
from support import queue_postgres
from support.waiting import eventually

from cuda_cyclegan.io.files.locks import lock, wait_for_lock
from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue import liveness
from cuda_cyclegan.pipelines.jobs.queue.database import Database
from cuda_cyclegan.pipelines.jobs.queue.liveness import (
    CONTACT_SECONDS,
    DEAD_SECONDS,
    Counters,
    Membership,
    living_workers,
    membership,
)
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


def test_a_worker_lives_until_it_lets_go_of_its_name(place: QueuePlace) -> None:
    with open_tables(place, create=True) as tables, membership(tables, "cpu") as first:
        with membership(tables, "cpu") as second, membership(tables, "cuda:0") as card:
            names = {first.name, second.name, card.name}
            assert len(names) == 3
            assert living_workers(tables) == 3
            assert first.dead(names) == set()
            assert second.dead(names) == set()
            with (
                pytest.raises(QueueError, match="cuda:0 is already running"),
                membership(tables, "cuda:0"),
            ):
                pass
        assert first.dead(names) == names - {first.name}
        assert living_workers(tables) == 1


def test_a_disk_without_locks_is_reported_with_the_way_out(
    place: QueuePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home folder that other hosts share may be mounted without locks."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with open_tables(place, create=True) as tables:
        monkeypatch.setattr(fcntl, "flock", refused)
        advice = "put the queue on a local disk" if place.file else "XDG_STATE_HOME"
        reported = pytest.raises(QueueError, match=f"No locks available.*{advice}")
        with reported, membership(tables, "cpu"):
            pass


def test_no_worker_is_dead_while_locks_cannot_be_tested(
    place: QueuePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with as many open files as it may have cannot test them."""

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with open_tables(place, create=True) as tables, membership(tables, "cpu") as first:
        with membership(tables, "cpu") as second:
            name = second.name
            monkeypatch.setattr(liveness, "open_own", refused)
            assert first.dead([name]) == set()
        assert first.dead([name]) == set()
        monkeypatch.undo()
        assert first.dead([name]) == {name}


def test_a_queue_is_not_made_on_a_disk_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(QueueError, match=r"\(No locks available\).*local disk"),
        open_tables(queue_place(str(tmp_path / "private" / "queue.db")), create=True),
    ):
        pass


def test_a_worker_may_start_while_somebody_looks_who_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check takes the lock for a moment, in which the worker requests it."""
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with open_tables(place, create=True) as tables:
        _start_while_somebody_looks(tables, monkeypatch)


def _start_while_somebody_looks(tables: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with membership(tables, "cuda:0"):
        pass
    asked, taken = threading.Event(), threading.Event()

    def start() -> None:
        with suppress(QueueError), membership(tables, "cuda:0"):
            taken.set()
        asked.set()

    worker = threading.Thread(target=start)

    def told_lock(file: int) -> None:
        try:
            lock(file)
        except BlockingIOError:
            asked.set()  # it is refused, or has to wait
            raise
        if threading.current_thread() is not worker:
            worker.start()
            asked.wait()

    def told_wait(file: int) -> None:
        if threading.current_thread() is worker:
            with suppress(BlockingIOError):
                told_lock(file)
                return
        wait_for_lock(file)

    place_of = "cuda_cyclegan.pipelines.jobs.queue.liveness"
    monkeypatch.setattr(f"{place_of}.lock", told_lock)
    monkeypatch.setattr(f"{place_of}.wait_for_lock", told_wait)
    assert living_workers(tables) == 0
    worker.join()
    assert taken.is_set()


class Homes:
    """Homes of one user on machines, or containers, of one name: go to one to be there."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch

    def go_to(self, name: str) -> None:
        self._patch.setenv("HOME", f"{self._folder}/{name}")
        self._patch.setenv("XDG_STATE_HOME", f"{self._folder}/{name}/state")


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Homes:
    return Homes(tmp_path, monkeypatch)


@pytest.fixture
def shared(server: queue_postgres.Server) -> Generator[Database]:
    """A queue of its own on the server."""
    place = queue_place(server.url.replace("/jobs", f"/jobs_{os.urandom(4).hex()}"))
    with open_tables(place, create=True) as tables:
        yield tables


class Clock:
    """Monotonic clock of the watching worker."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        patch.setattr(liveness.time, "monotonic", lambda: self._now)

    def dead_after(self, watching: Membership, seconds: float, *names: str) -> set[str]:
        """Look each second, and return who is dead then."""
        for _ in range(int(seconds)):
            self._now += 1.0
            watching.dead(names)
        return watching.dead(names)

    def skip(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_worker_of_another_machine_is_dead_once_its_counter_has_stood_still(
    shared: Database, homes: Homes, clock: Clock
) -> None:
    homes.go_to("other")
    with membership(shared, "cpu") as other:
        homes.go_to("this")
        with membership(shared, "cpu") as this:
            assert clock.dead_after(this, DEAD_SECONDS - 1, other.name) == set()
            Counters(shared).beat(other.name)
            assert clock.dead_after(this, DEAD_SECONDS, other.name) == set()
            assert clock.dead_after(this, 2, other.name) == {other.name}
            Counters(shared).beat(other.name)
            assert this.dead([other.name]) == set()


def test_a_worker_without_a_counter_is_dead_only_after_a_while(
    shared: Database, homes: Homes, clock: Clock
) -> None:
    """A worker whose job was moved from a queue of version 0.2.0 has none."""
    homes.go_to("this")
    with membership(shared, "cpu") as this:
        assert clock.dead_after(this, DEAD_SECONDS - 1, "other:me:cuda:3") == set()
        assert clock.dead_after(this, 2, "other:me:cuda:3") == {"other:me:cuda:3"}


def test_an_observer_that_lost_the_server_or_was_stopped_begins_anew(
    shared: Database, homes: Homes, clock: Clock
) -> None:
    homes.go_to("other")
    with membership(shared, "cpu") as other:
        homes.go_to("this")
        with membership(shared, "cpu") as this:
            assert clock.dead_after(this, DEAD_SECONDS - 1, other.name) == set()
            clock.skip(CONTACT_SECONDS + 1)
            assert clock.dead_after(this, DEAD_SECONDS - 1, other.name) == set()
            assert clock.dead_after(this, 2, other.name) == {other.name}


@pytest.mark.parametrize("hours", [-2, 2])
def test_no_setting_of_a_clock_makes_a_living_worker_dead(
    shared: Database, homes: Homes, clock: Clock, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    homes.go_to("other")
    with membership(shared, "cpu") as other:
        homes.go_to("this")
        with membership(shared, "cpu") as this:
            right = time.time
            monkeypatch.setattr(time, "time", lambda: right() + hours * 3600)
            for _ in range(4):
                assert clock.dead_after(this, DEAD_SECONDS / 2, other.name) == set()
                Counters(shared).beat(other.name)


def test_a_worker_s_counter_grows_by_itself_and_ends_with_it(
    shared: Database, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.01)
    homes.go_to("one")
    query = "SELECT beats FROM {workers}"

    def beats() -> int:
        with shared.reading() as transaction:
            return transaction.value(query) or 0

    with membership(shared, "cpu"):
        eventually(lambda: beats() > 3)
    assert beats() == 0


def test_a_killed_worker_of_this_machine_is_dead_at_once_and_not_counted(
    shared: Database, homes: Homes
) -> None:
    """The worker's lock is free, although the server has its counter."""
    homes.go_to("one")
    with membership(shared, "cuda:0") as killed:
        pass
    Counters(shared).beat(killed.name)
    with membership(shared, "cpu") as this:
        assert this.dead([]) == {killed.name}
        assert living_workers(shared) == 1
        this.forget(killed.name)
        assert this.dead([]) == set()


def test_workers_of_equal_host_and_user_names_have_names_of_their_own(
    shared: Database, homes: Homes
) -> None:
    """Each container may have a card, and the first of each is cuda:0."""
    homes.go_to("one")
    with membership(shared, "cuda:0") as one:
        homes.go_to("other")
        with membership(shared, "cuda:0") as other:
            assert one.name != other.name
            assert one.name.split(":")[:2] == other.name.split(":")[:2]
            assert one.dead([other.name]) == other.dead([one.name]) == set()
            assert living_workers(shared) == 2
        assert one.dead([other.name]) == set(), "its file cannot be seen from here"


def test_a_worker_that_is_started_again_has_its_name_again(shared: Database, homes: Homes) -> None:
    homes.go_to("one")
    with membership(shared, "cuda:0") as before:
        pass
    with membership(shared, "cuda:0") as after:
        assert after.name == before.name
