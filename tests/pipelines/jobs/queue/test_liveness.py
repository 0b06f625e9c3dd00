"""Which workers live, and what they are called."""

import errno
import fcntl
import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import queue_postgres

from cuda_cyclegan.io.files.locks import lock, wait_for_lock
from cuda_cyclegan.pipelines.errors import QueueError, QueueLostError
from cuda_cyclegan.pipelines.jobs.queue.liveness import (
    CLASS,
    ServerLocks,
    living_workers,
    membership,
)
from cuda_cyclegan.pipelines.jobs.queue.location import QueuePlace, queue_place
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


def test_a_worker_lives_until_it_lets_go_of_its_name(place: QueuePlace) -> None:
    with open_tables(place, create=True), membership(place, "cpu") as first:
        with membership(place, "cpu") as second, membership(place, "cuda:0") as card:
            assert len({first.name, second.name, card.name}) == 3
            second.renew()
            assert not first.is_dead(second.name)
            assert not second.is_dead(first.name)
            with (
                pytest.raises(QueueError, match="cuda:0 is already running"),
                membership(place, "cuda:0"),
            ):
                pass
        assert first.is_dead(card.name)


def test_a_disk_without_locks_is_reported_with_the_way_out(
    place: QueuePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a home folder that other hosts share, mounted without locks."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with open_tables(place, create=True):
        pass
    monkeypatch.setattr(fcntl, "flock", refused)
    advice = "put the queue on a local disk" if place.file else "XDG_STATE_HOME"
    with pytest.raises(QueueError, match=f"No locks available.*{advice}"), membership(place, "cpu"):
        pass


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
    """Who looks takes the lock for a moment, in which the worker asks for it."""
    place = queue_place(str(tmp_path / "private" / "queue.db"))
    with open_tables(place, create=True), membership(place, "cuda:0"):
        pass
    asked, taken = threading.Event(), threading.Event()

    def start() -> None:
        with suppress(QueueError), membership(place, "cuda:0"):
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
    assert living_workers(place) == 0
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
def shared(server: queue_postgres.Server) -> QueuePlace:
    place = queue_place(server.url)
    with open_tables(place, create=True):
        return place


def test_a_worker_of_another_machine_is_dead_only_after_a_while(
    shared: QueuePlace, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.go_to("other")
    with membership(shared, "cpu") as other:
        homes.go_to("this")
        with membership(shared, "cpu") as this:
            assert not this.is_dead(other.name)
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 0.0)
            assert not this.is_dead(other.name)
            assert this.is_dead("other:me:cuda:3")
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 3600.0)
            assert not this.is_dead("other:me:cuda:3")


def test_workers_of_equal_host_and_user_names_have_names_of_their_own(
    shared: QueuePlace, homes: Homes
) -> None:
    """Each container may have a card, and the first of each is cuda:0."""
    homes.go_to("one")
    with membership(shared, "cuda:0") as one:
        homes.go_to("other")
        with membership(shared, "cuda:0") as other:
            assert one.name != other.name
            assert one.name.split(":")[:2] == other.name.split(":")[:2]
            assert not one.is_dead(other.name)
            assert not other.is_dead(one.name)
        assert not one.is_dead(other.name), "its file cannot be seen from here"


def test_a_worker_that_is_started_again_has_its_name_again(
    shared: QueuePlace, homes: Homes
) -> None:
    homes.go_to("one")
    with membership(shared, "cuda:0") as before:
        pass
    with membership(shared, "cuda:0") as after:
        assert after.name == before.name


def test_a_worker_is_not_dead_by_its_file_alone(shared: QueuePlace, homes: Homes) -> None:
    """A clone of this machine, as it runs, would have this machine's marks."""
    homes.go_to("one")
    with membership(shared, "cpu") as this, ServerLocks(shared.url) as clone:
        name = f"{this.name}-9"
        assert clone.hold(name)
        assert not this.is_dead(name)
    with membership(shared, "cpu") as this:
        assert this.is_dead(name), "now nobody holds it, and its file is here"


def test_a_gpu_whose_last_worker_the_server_has_not_forgotten_is_waited_for(
    shared: QueuePlace, homes: Homes
) -> None:
    homes.go_to("one")
    with membership(shared, "cuda:0") as gone:
        pass
    with ServerLocks(shared.url) as lost:
        assert lost.hold(gone.name)
        with (
            pytest.raises(QueueLostError, match="has not yet detected"),
            membership(shared, "cuda:0"),
        ):
            pass
        with membership(shared, "cpu"):
            pass


def test_a_name_that_a_lost_connection_still_holds_is_taken_again_later(
    shared: QueuePlace, homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes.go_to("one")
    with membership(shared, "cpu") as this:
        assert this.renew()
        with ServerLocks(shared.url) as ghost:
            with closing(psycopg.connect(shared.url, autocommit=True)) as admin:
                query = b"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = %s"
                admin.execute(query, [CLASS])
            while not ghost.hold(this.name):
                pass
            assert not this.renew()
            assert not this.renew()
            assert not this.is_lost()
            monkeypatch.setattr("cuda_cyclegan.pipelines.jobs.queue.liveness.GRACE_SECONDS", 0.0)
            assert this.is_lost()
        while not this.renew():
            pass
        assert not this.is_lost()
        with ServerLocks(shared.url) as other:
            assert other.is_held(this.name)


def test_a_server_notices_that_a_worker_has_lost_its_power(server: queue_postgres.Server) -> None:
    place = queue_place(server.url)
    with open_tables(place, create=True), ServerLocks(place.url) as locks:
        assert locks.hold("one")
        connection = locks._connection  # pyright: ignore[reportPrivateUsage]
        assert connection
        for setting, seconds in (("idle", "10"), ("interval", "5"), ("count", "3")):
            query = f"SHOW tcp_keepalives_{setting}"
            assert connection.execute(query.encode()).fetchone() == (seconds,)


def test_locks_that_another_thread_gives_back_meanwhile_are_lost(
    server: queue_postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the main thread of a worker does at its end, whatever the monitor asks just then."""
    execute = psycopg.Connection.execute

    def and_give_back(connection: Any, *arguments: Any) -> Any:
        done = execute(connection, *arguments)
        locks._drop()  # pyright: ignore[reportPrivateUsage]
        return done

    with open_tables(queue_place(server.url), create=True), ServerLocks(server.url) as locks:
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", and_give_back)
            with pytest.raises(QueueLostError):
                locks.hold("one")
        assert locks.hold("one")
