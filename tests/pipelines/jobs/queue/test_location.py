"""A queue that others could change is refused, also where a link leads to it."""

import os
from pathlib import Path

import pytest

from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs.queue.liveness import membership
from cuda_cyclegan.pipelines.jobs.queue.location import check_private, make_private, queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.jobs.queue.store import open_tables


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a queue in it, both of this user alone."""
    folder = tmp_path / "own"
    make_private(folder / "queue.db")
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that others can write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def assert_refused(queue: Path, folder: Path) -> None:
    for use in (check_private, make_private):
        with pytest.raises(QueueError, match=f"write to the queue's folder {folder}"):
            use(queue)


def test_links_among_own_folders_are_followed(own: Path, tmp_path: Path) -> None:
    (own / "first").symlink_to("queue.db")
    (own / "second").symlink_to(own / "first")
    (tmp_path / "folder").symlink_to("own")
    for queue in (own / "second", tmp_path / "folder" / "queue.db"):
        check_private(queue)
        make_private(queue)


def test_a_link_into_a_folder_that_others_can_write(own: Path, shared: Path) -> None:
    (shared / "queue.db").touch(0o600)
    (own / "link").symlink_to(shared / "queue.db")
    (own / "longer").symlink_to("link")
    (own / "new").symlink_to(shared / "not there yet")
    for queue in (own / "link", own / "longer", own / "new"):
        assert_refused(queue, shared)
    assert not (shared / "not there yet").exists()


def test_a_link_from_a_folder_that_others_can_write(own: Path, shared: Path) -> None:
    """Others could redirect it; this also holds for a link of a folder further up."""
    (shared / "queue.db").symlink_to(own / "queue.db")
    (shared / "folder").symlink_to(own)
    (own / "around").symlink_to(shared / "folder" / "queue.db")
    for queue in (shared / "queue.db", shared / "folder" / "queue.db", own / "around"):
        assert_refused(queue, shared)


def test_links_in_a_ring_end(own: Path) -> None:
    (own / "ring").symlink_to("ring")
    with pytest.raises(QueueError, match="cannot be created"):
        make_private(own / "ring")


def test_a_server_is_shown_without_its_password_and_options() -> None:
    place = queue_place("postgres://me:secret@host/jobs?sslmode=require&connect_timeout=9")
    assert str(place) == "postgresql://me:***@host/jobs"
    assert place.url.count("connect_timeout") == 1
    assert "sslmode=require" in place.url
    assert "keepalives_idle=10" in place.url


def test_a_folder_is_no_queue(own: Path) -> None:
    (own / "jobs").mkdir()
    with pytest.raises(QueueError, match=f"The queue {own}/jobs is not a file"):
        check_private(own / "jobs")


def test_nobody_else_can_read_a_queue_whatever_the_umask(own: Path) -> None:
    place = queue_place(str(own / "made" / "queue.db"))
    before = os.umask(0)
    try:
        with open_tables(place, create=True) as tables, membership(tables, "cpu"):
            assert not Queue(tables).is_paused()
            found = {path: path.stat().st_mode & 0o777 for path in [own, *own.rglob("*")]}
    finally:
        os.umask(before)
    assert {path.name for path in found} >= {"queue.db", "queue.db-wal", "names"}
    assert [path for path, mode in found.items() if mode & 0o077] == []
