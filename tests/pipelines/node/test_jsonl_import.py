"""The records of a node that kept them in JSONL move into its store, once and as a whole."""

import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cuda_cyclegan.cli.render.node import status_json
from cuda_cyclegan.pipelines.node.folder import release, status_of
from cuda_cyclegan.pipelines.node.records import ReportKey
from cuda_cyclegan.pipelines.node.store import NAME, NodeStore, open_store, read_store

FIXTURE = Path(__file__).parents[2] / "fixtures" / "node_jsonl"
STATUS = (FIXTURE / "status.json").read_text().rstrip("\n")
NOW = float((FIXTURE / "moment").read_text())
OPEN = {"70c2e614bbd8fabc", "991b83a34f95c218", "d2235b5486194942"}
RELEASED = "NODE/20261126-991b83a34f95c218"
IMAGE = {RELEASED: {"373e880dff0b8394"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(FIXTURE / "node", tmp_path / "node")


def status(folder: Path) -> str:
    """What a node says of itself, with times as of the fixture, which was made in UTC."""
    found = status_json(status_of(folder), None).replace(str(folder), "@NODE@")
    return re.sub(r"\d{4}-\d\d-\d\dT[^\"]+", in_utc, found)


def in_utc(time: re.Match[str]) -> str:
    return datetime.fromisoformat(time[0]).astimezone(UTC).isoformat()


def check(store: NodeStore) -> None:
    """See that a store has what the fixture has."""
    gaps = store.gaps()
    assert {name.partition("-")[2] for name in gaps.open} == OPEN
    assert gaps.refused.keys() == gaps.open
    assert gaps.refused.items() >= IMAGE.items()
    assert [name for name in store.names() if store.is_released(name)] == [RELEASED]
    keys = list(store.report_moments())
    assert keys == [ReportKey("NODE", "SENDER", f"1.2.3.{number}") for number in (4, 5)]
    reports = [store.report(key) for key in keys]
    assert [len(one.commitment.referenced) for one in reports if one] == [12, 2]
    assert [one.moment for one in reports if one] == [NOW, NOW]
    assert list(store.confirmations().values()) == [4]


def test_the_status_is_the_same_before_and_after(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert status(folder) == STATUS
    (folder / "node.lock").unlink()  # asking whether a node runs has made it
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for _ in range(2):
        with open_store(folder, NOW) as store:
            assert store.problems == []
            check(store)
        assert status(folder) == STATUS


def test_imported_files_are_kept_aside_and_not_read_again(folder: Path) -> None:
    old = {path.name: path.read_bytes() for path in folder.glob("reports/*")}
    old["ledger.jsonl"] = (folder / "ledger.jsonl").read_bytes()
    with open_store(folder, NOW):
        pass
    aside = folder / "imported"
    kept = {path.name: path.read_bytes() for path in aside.rglob("*") if path.is_file()}
    assert kept == old
    assert {path.name for path in folder.iterdir()} == {NAME, "imported", "inbox", "ledger.jsonl"}
    assert {path.suffix for path in folder.glob("inbox/*/*/*")} == {".dcm"}
    # Earlier versions refuse a ledger of a newer version.
    assert (folder / "ledger.jsonl").read_text() == '{"version": 2, "moved_to": "node.db"}\n'
    (folder / NAME).unlink()
    with open_store(folder, NOW) as store:
        assert store.studies() == []


class Kill(BaseException):
    """End of the process at a step."""


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process instead of the n-th step that changes the disk."""
    steps = iter(range(1000))

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                raise Kill
            return do(*arguments, **options)

        return counted

    for name in ("replace", "unlink", "mkdir", "touch", "write_bytes", "chmod"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


@pytest.mark.slow
def test_an_import_that_a_kill_interrupts_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        folder = shutil.copytree(FIXTURE / "node", tmp_path / f"{step}")
        try:
            with monkeypatch.context() as patched:
                killed_at(patched, step)
                with open_store(folder, NOW):
                    break
        except Kill:
            assert status(folder) == STATUS
            with open_store(folder, NOW) as store:
                check(store)
            assert status(folder) == STATUS
        step += 1
    assert step > 15


def test_a_study_is_released_before_its_records_are_imported(folder: Path) -> None:
    found = release(folder, "NODE/20261126-d2235b5486194942")
    assert found == ["NODE/20261126-d2235b5486194942"]
    with read_store(folder) as store:
        assert {name for name in store.names() if store.is_released(name)} == {RELEASED, *found}


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\xff\xfe", b'{"version": 1, "study": 7}'])
def test_damage_is_reported_and_the_rest_imported(folder: Path, damage: bytes) -> None:
    ledger, reports = folder / "ledger.jsonl", sorted(folder.glob("reports/*"))
    first, *rest = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join([damage + b"\n", *rest, b'{"version"']))
    reports[0].write_bytes(b"{")
    with open_store(folder, NOW) as store:
        of_ledger, of_report = store.problems
        assert len(store.report_moments()) == 1
        assert len(store.studies()) == 9
    assert f"{ledger} was damaged: 1 of its lines" in of_ledger
    assert of_report == f"{reports[0].name} is damaged; a report of storage commitment is lost"
    assert first


def test_the_last_line_of_a_killed_node_may_be_cut_off(folder: Path) -> None:
    ledger = folder / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-10])
    with open_store(folder, NOW) as store:
        assert store.problems == []
