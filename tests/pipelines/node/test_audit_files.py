"""Files of the audit trail: on disk, whole, and never in the way of the node."""

import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from support.audit_trails import codes, lines
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.node import audit_files, audit_messages
from cuda_cyclegan.pipelines.node.audit_files import AuditFiles, trail_files
from cuda_cyclegan.pipelines.node.events import NodeEvent, Trouble

GAP, START, STOP = "110113/AUDITGAP/8", "110100/110120/0", "110100/110121/0"
DELETED = "110105/0"


class Trail:
    """Trail of a node that starts in a folder; `now` is its clock."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.events, self.now = folder, list[NodeEvent](), 0.0
        self.files = AuditFiles(folder, ["NODE"], self.events.append, lambda: self.now)
        self.files.start()

    def record(self, study: str = "1.2.3") -> None:
        facts = audit_messages.StudyFacts(study, "")
        self.files.record(audit_messages.deleted("NODE", facts))

    def troubles(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Trouble)]


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(tmp_path / "audit")


def failing(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_each_day_has_a_file(trail: Trail) -> None:
    trail.now = 86399.9
    trail.record("1.1")
    trail.now = 86400.0
    trail.record("1.2")
    trail.files.close()
    assert [file.name for file in trail_files(trail.folder)] == ["19700101.jsonl", "19700102.jsonl"]
    assert [len(file.read_bytes().splitlines()) for file in trail_files(trail.folder)] == [2, 2]
    assert trail_files(trail.folder)[0].stat().st_mode & 0o777 == 0o600
    moments = [one["EventIdentification"]["EventDateTime"] for one in lines(trail.folder)]
    assert moments[1:3] == ["1970-01-01T23:59:59.900+00:00", "1970-01-02T00:00:00.000+00:00"]


def test_a_node_that_was_killed_has_a_gap(tmp_path: Path) -> None:
    Trail(tmp_path).files.close()
    killed = Trail(tmp_path)
    killed.record()
    killed.files._thread.close()
    while killed.files.write():
        pass
    Trail(tmp_path).files.close()
    Trail(tmp_path).files.close()
    assert codes(tmp_path) == [START, STOP, START, DELETED, GAP, START, STOP, START, STOP]


def test_recording_waits_for_no_disk(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, goes_on, append = Event(), Event(), AuditFiles._append

    def hanging(path: Path, data: bytes) -> None:
        begun.set()
        assert goes_on.wait(ENOUGH)
        append(path, data)

    monkeypatch.setattr(AuditFiles, "_append", staticmethod(hanging))
    trail.record()
    assert begun.wait(ENOUGH)
    trail.record()
    trail.record()
    assert DELETED not in codes(trail.folder)
    goes_on.set()
    trail.files.close()
    assert codes(trail.folder) == [START, DELETED, DELETED, DELETED, STOP]


def test_messages_wait_in_memory_until_a_full_disk_has_space(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(AuditFiles, "_append", staticmethod(failing))
        trail.record()
        trail.files._thread.close()
        assert not trail.files.write()
        assert not trail.files.write()
    [trouble] = trail.troubles()
    assert "cannot be written (No space left on device); its messages wait" in trouble
    trail.files.close()
    assert codes(trail.folder) == [START, DELETED, STOP]
    assert len(trail.troubles()) == 1


def test_lost_messages_are_counted(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_files, "_MOST_WAITING", 2)
    with monkeypatch.context() as full:
        full.setattr(AuditFiles, "_append", staticmethod(failing))
        trail.files._thread.close()
        while trail.files._waiting:
            trail.files._waiting.pop()
        for number in range(5):
            trail.record(f"1.{number}")
        assert not trail.files.write()
    assert any("a message of the audit trail in" in one for one in trail.troubles())
    assert trail.files.write()
    trail.record("1.6")
    trail.files.close()
    found = [one for one in codes(trail.folder) if one != START]
    assert found == [DELETED, DELETED, GAP, DELETED, STOP]
    gap = lines(trail.folder)[-3]["EventIdentification"]["EventOutcomeDescription"]["text"]
    assert gap == "3 audit messages before this one are lost"


def test_messages_that_are_never_written_are_reported(
    trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail.files._thread.close()
    while trail.files.write():
        pass
    monkeypatch.setattr(AuditFiles, "_append", staticmethod(failing))
    trail.record()
    trail.files.close()
    assert trail.troubles()[-1] == f"2 messages of the audit trail in {trail.folder} are lost"
    trail.record()  # by a thread that outlives the node
    assert "a message of the audit trail in" in trail.troubles()[-1]


@pytest.mark.parametrize("place", ["write", "fsync"])
def test_a_failure_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file, write = tmp_path / "19700101.jsonl", os.write
    AuditFiles._append(file, b"first\n")

    def short(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            failing()
        return write(descriptor, data[:10])

    with monkeypatch.context() as full:
        full.setattr(os, place, short if place == "write" else failing)
        with pytest.raises(OSError, match="No space"):
            AuditFiles._append(file, b"second\nthird\n")
    assert file.read_bytes() == (b"first\nsecond\n" + b"third\n" * (place == "fsync"))
    file.write_bytes(b"first\nsec")  # a power failure
    AuditFiles._append(file, b"third\n")
    assert file.read_bytes() == b"first\nsec\nthird\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / "19700101.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="link"):
        AuditFiles._append(tmp_path / "19700101.jsonl", b"line\n")


def test_lines_are_flushed_to_disk(trail: Trail, monkeypatch: pytest.MonkeyPatch) -> None:
    trail.files._thread.close()
    while trail.files.write():
        pass
    flushed = list[Any]()
    monkeypatch.setattr(os, "fsync", flushed.append)
    for _ in range(3):
        trail.record()
    assert trail.files.write()
    assert len(flushed) == 1
