"""What the ledger keeps through kills, full disks and newer versions."""

import errno
import os
from pathlib import Path

import pytest

from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node import ledger as module
from cuda_cyclegan.pipelines.node.ledger import (
    DAMAGED,
    NAME,
    REMEMBERED_SECONDS,
    Ledger,
    SeriesRecord,
    StudyRecord,
    open_ledger,
)


def study(name: str = "NODE/20261122-ab", **changed: float) -> StudyRecord:
    series = SeriesRecord("series-0001-cd", 1, "f", 8, "batch/00001", "key", "sending")
    return StudyRecord(name, "objects", 8, 1.0, 2.0, 1, (series,), **changed)


def test_what_was_put_is_there_again(tmp_path: Path) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.put(study())
        ledger.confirm("NODE/20261122-ab/1/series-0001-cd", "1.2.3")
    with open_ledger(tmp_path) as ledger:
        assert ledger.studies() == [study()]
        assert ledger.confirmed("NODE/20261122-ab/1/series-0001-cd") == {"1.2.3"}
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_line_that_a_kill_cut_off_is_passed_over(tmp_path: Path, cut: int) -> None:
    with open_ledger(tmp_path) as ledger:
        ledger.put(study())
        ledger.put(study("NODE/20261122-cd"))
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-cut])
    with open_ledger(tmp_path) as ledger:
        assert ledger.damaged == 0
        assert study() in ledger.studies()
        ledger.put(study("NODE/20261122-ef"))
    with open_ledger(tmp_path) as ledger:
        assert study("NODE/20261122-ef") in ledger.studies()


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\xff\xfe", b'{"version": 1, "study": 7}'])
def test_a_damaged_line_is_counted_and_the_file_kept_as_it_was(
    tmp_path: Path, damage: bytes
) -> None:
    with open_ledger(tmp_path) as ledger:
        for name in ("NODE/20261122-ab", "NODE/20261122-cd"):
            ledger.put(study(name))
    path = tmp_path / NAME
    _, last = path.read_bytes().splitlines(keepends=True)
    damaged = damage + b"\n" + last + b'{"version"'
    path.write_bytes(damaged)
    with open_ledger(tmp_path) as ledger:
        assert ledger.damaged == 1
        assert [one.study for one in ledger.studies()] == ["NODE/20261122-cd"]
    assert (tmp_path / DAMAGED).read_bytes() == damaged
    assert (tmp_path / DAMAGED).stat().st_mode & 0o777 == 0o600
    with open_ledger(tmp_path) as ledger:
        assert ledger.damaged == 0


def test_a_file_of_zeros_is_damaged(tmp_path: Path) -> None:
    """As some file systems leave it when the power fails."""
    (tmp_path / NAME).write_bytes(b"\0" * 500)
    with open_ledger(tmp_path) as ledger:
        assert ledger.damaged == 1


def test_a_line_for_which_there_is_no_room_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[: len(data) // 2])

    with open_ledger(tmp_path) as ledger:
        ledger.put(study())
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space left") as raised:
                ledger.put(study("NODE/20261122-cd"))
        assert raised.value.errno == errno.ENOSPC
        assert ledger.study("NODE/20261122-cd") is None
        ledger.put(study("NODE/20261122-ef"))
    with open_ledger(tmp_path) as ledger:
        assert [one.study for one in ledger.studies()] == ["NODE/20261122-ab", "NODE/20261122-ef"]


def test_it_is_written_anew_with_what_matters(tmp_path: Path) -> None:
    long_ago = 1.0
    with open_ledger(tmp_path) as ledger:
        for _ in range(50):
            ledger.put(study())
        ledger.put(study("NODE/19700101-cd", emptied=long_ago))
        ledger.confirm("NODE/19700101-cd/1/series-0001-cd", "1.2.3")
    with open_ledger(tmp_path) as ledger:
        assert [one.study for one in ledger.studies()] == ["NODE/20261122-ab"]
    assert len((tmp_path / NAME).read_bytes().splitlines()) == 1
    assert REMEMBERED_SECONDS > 0


def sent(ledger: Ledger, results: int) -> None:
    """Results of 20 objects each, all confirmed, and one of which only two are."""
    ledger.put(study())
    for number in range(results):
        for instance in range(20):
            ledger.confirm(f"NODE/{number}/1/series-0001-cd", f"1.2.{instance}")
        ledger.forget_confirmations(f"NODE/{number}/1/series-0001-cd")
    for instance in ("1.2.3", "1.2.4"):
        ledger.confirm("NODE/20261122-ab/1/series-0001-cd", instance)


def test_a_node_that_runs_for_months_keeps_it_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROWTH", 5000)
    with open_ledger(tmp_path) as ledger:
        sent(ledger, 50)
        assert (tmp_path / NAME).stat().st_size < 3 * 5000
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    with open_ledger(tmp_path) as ledger:
        assert ledger.studies() == [study()]
        assert ledger.confirmed("NODE/20261122-ab/1/series-0001-cd") == {"1.2.3", "1.2.4"}


def test_one_that_cannot_be_shortened_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROWTH", 5000)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_ledger(tmp_path) as ledger:
        monkeypatch.setattr("cuda_cyclegan.io.files.atomic.flush", full)
        sent(ledger, 50)
        monkeypatch.undo()
    with open_ledger(tmp_path) as ledger:
        assert ledger.studies() == [study()]
        assert ledger.confirmed("NODE/20261122-ab/1/series-0001-cd") == {"1.2.3", "1.2.4"}


def test_one_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"version": 2, "study": "new"}\n')
    with pytest.raises(ConfigError, match="newer version"), open_ledger(tmp_path):
        pass
    assert (tmp_path / NAME).read_text() == '{"version": 2, "study": "new"}\n'
