"""Contents of the node's store through kills, damage, full disks and newer versions."""

import errno
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from support.processes import started

from cuda_cyclegan.io.dicom_network.storage_commitment import Commitment, Referenced
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node import store as store_module
from cuda_cyclegan.pipelines.node.records import PendingReport, SeriesRecord, StudyRecord
from cuda_cyclegan.pipelines.node.store import (
    DAMAGED,
    NAME,
    REMEMBERED_SECONDS,
    VERSION,
    open_store,
    read_store,
    release,
)

STORED = Path(__file__).parents[2] / "fixtures" / "stored_formats"
NOW = 1_800_000_000.0
PLACE = "NODE/20261122-ab/1/series-0001-cd"


def study(name: str = "NODE/20261122-ab", **changed: float) -> StudyRecord:
    series = SeriesRecord(
        *("series-0001-cd", 1, "f", 8, "batch/00001", "key", "sending", "no answer"),
        *(1.5, 2.5, 3.5, (0.5, 1.0), 4.5, ("other-0001", "other-0002"), "a remark"),
    )
    record = StudyRecord(name, "objects", 8, 1.0, 2.0, 1, (series,), ("a localizer",))
    return replace(record, refused=2, broke_off=True, **changed)


def report(transaction: str = "1.2") -> PendingReport:
    return PendingReport("NODE", "PACS", 5.0, Commitment(transaction, (Referenced("1", "2"),)))


def test_records_are_read_back_as_they_were_put(tmp_path: Path) -> None:
    later = replace(study("NODE/20261122-cd"), series=(), left_out=())
    with open_store(tmp_path, NOW) as store:
        store.put(study())
        store.put(later, replace(study(), images=9))
        store.change(later.study, lambda record: replace(record, rounds=4))
        store.confirm(PLACE, "1.2.3")
        store.confirm("sent", "1.2.3")
        store.forget_confirmations("sent")
        store.put_report(report())
        store.put_report(report("1.3"))
        store.remove_report(report("1.3").key)
        store.open_transfer("NODE/20261122-ab")
        store.open_transfer("closed")
        store.close_transfer("closed")
        for image in ("x", "y"):
            store.refuse("NODE/20261122-ab", image)
        store.accept("NODE/20261122-ab", "y")
    with open_store(tmp_path, NOW) as store:
        expected = [replace(study(), images=9), replace(later, rounds=4)]
        assert store.studies() == store.present() == expected
        assert store.confirmed(PLACE) == {"1.2.3"}
        assert store.confirmations() == {PLACE: 1}
        assert store.report_moments() == {report().key: 5.0}
        assert store.report(report().key) == report()
        assert store.report(report("1.3").key) is None
        gaps = store.gaps()
        assert (gaps.refused, gaps.open) == ({"NODE/20261122-ab": {"x"}}, {"NODE/20261122-ab"})
        assert store.problems == []
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_model_and_destination_of_a_result_are_read_back(tmp_path: Path) -> None:
    [series] = study().series
    sent = replace(series, model="hash", destination="PACS@host:104", rejects="1/series")
    with open_store(tmp_path, NOW) as store:
        store.put(replace(study(), series=(sent,)))
    with read_store(tmp_path) as store:
        assert store.studies() == [replace(study(), series=(sent,))]


def test_a_removed_study_is_known_for_a_year(tmp_path: Path) -> None:
    removed = study(emptied=NOW)
    with open_store(tmp_path, NOW) as store:
        store.put(study())
        store.put(removed)
        assert (store.present(), store.study(removed.study)) == ([], removed)
    with open_store(tmp_path, NOW + REMEMBERED_SECONDS) as store:
        assert (store.present(), store.studies(), store.names()) == (
            *([], [removed]),
            [removed.study],
        )
        store.put(study())  # it arrives again
        assert store.present() == [study()]
        store.put(removed)
    with open_store(tmp_path, NOW + REMEMBERED_SECONDS + 1) as store:
        assert store.studies() == []


def test_a_release_by_another_connection_lasts_until_the_study_changes(tmp_path: Path) -> None:
    with open_store(tmp_path, NOW) as store:
        store.put(study(held=1.0, until=2.0))
        release(tmp_path, ["NODE/20261122-ab", "NODE/unknown"])
        store.put(study(held=1.0, until=3.0))
        assert store.is_released("NODE/20261122-ab")
        store.hold_again("NODE/20261122-ab")
        assert not store.is_released("NODE/20261122-ab")
        assert not store.is_released("NODE/unknown")


WRITER = """
import sys
from pathlib import Path
from cuda_cyclegan.pipelines.node.store import open_store
from pipelines.node.test_store import study
with open_store(Path(sys.argv[1]), 0.0) as store:
    for number in range(1_000_000):
        store.open_transfer(f"NODE/{number}")
        store.refuse(f"NODE/{number}", "image")
        store.close_transfer(f"NODE/{number}")
        store.put(study(f"NODE/{number}"))
        print(number, flush=True)
"""


@pytest.mark.process
def test_a_kill_loses_nothing_that_a_call_has_stored(tmp_path: Path) -> None:
    tests = Path(__file__).parents[2]
    for count in (1, 30):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        command = [sys.executable, "-c", WRITER, str(folder)]
        with started(command, stdout=subprocess.PIPE, text=True, cwd=tests) as process:
            assert process.stdout
            for _ in range(count):
                number = int(process.stdout.readline())
            process.kill()
            number = max(number, *map(int, process.stdout.read().split() or [0]))
        with open_store(folder, NOW) as store:
            assert store.problems == []
            found = len(store.studies())
            assert found in (number + 1, number + 2)
            assert len(store.gaps().refused) - found in (0, 1)
            assert len(store.gaps().open) <= 1


@pytest.mark.parametrize("is_first_page", [False, True])
def test_a_damaged_file_is_reported_kept_and_read_as_far_as_it_can_be(
    tmp_path: Path, is_first_page: bool
) -> None:
    names = [f"NODE/{number}" for number in range(200)]
    with open_store(tmp_path, NOW) as store:
        store.put(*map(study, names))
        store.put_report(report())
    path = tmp_path / NAME
    content = bytearray(path.read_bytes())
    if is_first_page:
        content[:100] = bytes(100)
    else:
        at = content.index(b"NODE/150") // 4096 * 4096
        content[at : at + 4096] = bytes(4096)
    path.write_bytes(content)
    with open_store(tmp_path, NOW) as store:
        [problem] = store.problems
        assert f"{path} is damaged" in problem
        found = [one.study for one in store.studies()]
        assert found == names[: len(found)]
        assert bool(found) is not is_first_page
        store.put(study("NODE/new"))
        assert (tmp_path / f"{NAME}-wal").exists()
    assert (tmp_path / DAMAGED).read_bytes() == content
    with open_store(tmp_path, NOW) as store:
        assert store.problems == []
        assert store.study("NODE/new") == study("NODE/new")


@pytest.mark.parametrize("content", [b"", b"\0" * 500, b"\xff" * 9000])
def test_a_file_without_any_record_is_damaged(tmp_path: Path, content: bytes) -> None:
    """Some file systems leave such a file when the power fails."""
    (tmp_path / NAME).write_bytes(content)
    with open_store(tmp_path, NOW) as store:
        assert len(store.problems) == 1


def test_a_record_for_which_there_is_no_room_changes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, NOW) as store:
        store.put(study())
        [[pages]] = store._rows("PRAGMA page_count")
        store._rows(f"PRAGMA max_page_count = {pages}")
        large = replace(study("NODE/20261122-cd"), left_out=("x" * (4 << 20),))
        with pytest.raises(OSError, match="No space left") as raised:
            store.put(large)
        assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / NAME))
        assert store.study(large.study) is None
        store.put(study("NODE/20261122-ef"))
    with open_store(tmp_path, NOW) as store:
        assert [one.study for one in store.studies()] == ["NODE/20261122-ab", "NODE/20261122-ef"]


def test_records_fit_into_the_reserved_room(tmp_path: Path) -> None:
    with open_store(tmp_path, NOW) as store:
        files = [tmp_path / NAME, tmp_path / f"{NAME}-wal"]
        sizes = [file.stat().st_size for file in files]
        for number in range(2000):
            store.refuse("NODE/20261122-ab", f"{number:016}")
        assert [file.stat().st_size for file in files] == sizes


def test_a_node_that_runs_for_months_keeps_it_short(tmp_path: Path) -> None:
    with open_store(tmp_path, NOW) as store:
        store.put(study())
        for number in range(50):
            for instance in range(40):
                store.confirm(f"NODE/{number}/1/a", f"1.2.826.0.1.3680043.8.498.{instance}")
            store.forget_confirmations(f"NODE/{number}/1/a")
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 << 20


def test_one_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with open_store(tmp_path, NOW):
        pass
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = (tmp_path / NAME).read_bytes()
    for opened in (open_store(tmp_path, NOW), read_store(tmp_path)):
        with pytest.raises(ConfigError, match="newer version"), opened:
            pass
    assert (tmp_path / NAME).read_bytes() == before


def stored_by_version_1(folder: Path) -> Path:
    """A store as the last program without `fetched` wrote it."""
    file = folder / NAME
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((STORED / "node_v1.sql").read_text())
    return file


def test_one_of_version_1_is_read_as_it_is_and_brought_up_to_date(tmp_path: Path) -> None:
    file = stored_by_version_1(tmp_path)
    before = file.read_bytes()
    with read_store(tmp_path) as store:
        assert store.studies() == [study()]
        assert store.report_moments() == {report().key: 5.0}
    assert file.read_bytes() == before
    with open_store(tmp_path, NOW) as store:
        assert not store.problems
        assert store.studies() == [study()]
        assert store.confirmed(PLACE) == {"1.2.3"}
        assert store.report_moments() == {report().key: 5.0}
        assert store.fetched("NODE/20261122-ab") == ""
        store.put_fetched("NODE/20261122-ab", "digest", NOW)
    with open_store(tmp_path, NOW) as store:
        assert store.fetched("NODE/20261122-ab") == "digest"


def test_a_damaged_one_of_version_1_is_rescued(tmp_path: Path) -> None:
    file = stored_by_version_1(tmp_path)
    with file.open("r+b") as opened:
        opened.seek(-4096, 2)
        opened.write(b"x" * 4096)
    with open_store(tmp_path, NOW) as store:
        assert store.problems
        assert store.fetched("NODE/20261122-ab") == ""
        store.put(study())
        assert store.studies() == [study()]


def test_it_is_read_while_a_node_runs_and_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with open_store(tmp_path / "a", NOW) as store:
        store.put(study())
        with read_store(tmp_path / "a") as records:
            assert records.studies() == [study()]
        shutil.copytree(tmp_path / "a", tmp_path / "killed")
    with read_store(tmp_path / "killed") as records:
        assert records.studies() == [study()]
    with pytest.raises(ConfigError, match="No node has used folder"), read_store(tmp_path):
        pass


def test_a_disk_without_shared_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = store_module._connection
    where = "?mode=rw&vfs=unix-dotfile"
    monkeypatch.setattr(store_module, "_connection", lambda path: connect(path, where))
    with pytest.raises(ConfigError, match="has no shared memory"), open_store(tmp_path, NOW):
        pass


def test_rows_with_fewer_columns_are_rescued(tmp_path: Path) -> None:
    store_module._rescue(stored_by_version_1(tmp_path))
    with open_store(tmp_path, NOW) as store:
        assert store.studies() == [study()]
