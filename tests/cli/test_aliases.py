"""Scans that are there under several names: each name gets its result, and one is computed."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.batch_world import identity_model, recorded, scan, tiny_model
from support.dicom_phantoms import Phantom
from support.watched_calls import watch_calls
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.run.study_run import StudyRun

pydicom: Any = _pydicom


def translate(
    world: Path, *inputs: Path, model: Path | None = None, command: str = "translate"
) -> Result:
    model = model or tiny_model(world / "model.safetensors")
    words = [command, *inputs, "--model", model, "--output", world / "out", "--device", "cpu"]
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> "Counter[str]":
    """Count how often the network was called for each study."""
    counts = Counter[str]()
    infer = StudyRun.infer

    def counted(self: StudyRun, *networks: Any) -> None:
        counts[self.name] += not self.is_over
        infer(self, *networks)

    monkeypatch.setattr(StudyRun, "infer", counted)
    return counts


def manifest(world: Path) -> dict[str, Any]:
    return {row["output"]: row for row in recorded(world / "out")}


@pytest.mark.parametrize("link", ["hard", "symbolic", "folder"])
def test_each_name_gets_its_result_and_one_is_computed(
    tmp_path: Path, link: str, computed: "Counter[str]"
) -> None:
    first = scan(tmp_path / "in" / "2024" / "a.nii.gz")
    latest = tmp_path / "in" / "latest"
    if link == "folder":
        latest.symlink_to("2024")
    else:
        latest.mkdir()
        make = os.link if link == "hard" else os.symlink
        make(first, latest / "a.nii.gz")
    done = translate(tmp_path, tmp_path / "in")
    assert done.exit_code == 0, done.output
    made = [tmp_path / "out" / name / "a.nii.gz" for name in ("2024", "latest")]
    assert made[0].read_bytes() == made[1].read_bytes()
    assert computed == {"2024/a.nii.gz": 1}
    assert "latest/a.nii.gz: it is the same scan as 2024/a.nii.gz" in " ".join(done.output.split())
    entries = manifest(tmp_path)
    assert {row["status"] for row in entries.values()} == {"written"}
    assert (
        entries["latest/a.nii.gz"]["inputs"][0]["sha256"]
        == entries["2024/a.nii.gz"]["inputs"][0]["sha256"]
    )
    again = translate(tmp_path, tmp_path / "in")
    assert "2 up to date" in again.output


def test_names_given_one_by_one_are_all_taken(tmp_path: Path) -> None:
    first = scan(tmp_path / "a" / "x.nii")
    second, third = tmp_path / "b" / "y.nii", tmp_path / "c.nii"
    second.parent.mkdir()
    os.link(first, second)
    third.symlink_to(first)
    assert translate(tmp_path, first, second, third).exit_code == 0
    made = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.nii")}
    assert made == {"a/x.nii", "b/y.nii", "c.nii"}


def test_a_name_that_comes_later_is_made_alone(tmp_path: Path, computed: "Counter[str]") -> None:
    first = scan(tmp_path / "in" / "a.nii")
    assert translate(tmp_path, tmp_path / "in").exit_code == 0
    os.link(first, tmp_path / "in" / "b.nii")
    assert translate(tmp_path, tmp_path / "in").exit_code == 0
    assert computed == {"a.nii": 1, "b.nii": 1}
    assert (tmp_path / "out" / "b.nii").read_bytes() == (tmp_path / "out" / "a.nii").read_bytes()


def test_the_fate_of_a_bad_scan_is_that_of_all_its_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.nii").write_bytes(b"not a scan" * 100)
    os.link(tmp_path / "in" / "a.nii", tmp_path / "in" / "b.nii")
    done = translate(tmp_path, tmp_path / "in")
    assert done.exit_code == 1
    assert done.stderr.count("unreadable: ") >= 2
    assert "2 failed" in done.output


def test_another_name_that_cannot_be_stored_fails_alone(tmp_path: Path) -> None:
    first = scan(tmp_path / "in" / "a.nii")
    os.link(first, tmp_path / "in" / "b.nii")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.nii").write_text("somebody else's")
    done = translate(tmp_path, tmp_path / "in")
    assert done.exit_code == 1
    assert (tmp_path / "out" / "a.nii").is_file()
    assert (tmp_path / "out" / "b.nii").read_text() == "somebody else's"


def test_name_is_stored_though_the_first_name_of_its_scan_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.link(scan(tmp_path / "in" / "a.nii"), tmp_path / "in" / "b.nii")

    def first_fails(number: int) -> None:
        if number == 0:
            raise OSError(28, "No space left on device")

    watch_calls(monkeypatch, "write", first_fails, where=storing)
    done = translate(tmp_path, tmp_path / "in")
    assert done.exit_code == 1
    assert "1 failed" in done.output
    assert [path.name for path in (tmp_path / "out").glob("*.nii")] == ["b.nii"]


def test_a_dry_run_counts_the_network_once(tmp_path: Path) -> None:
    os.link(scan(tmp_path / "in" / "a.nii"), tmp_path / "in" / "b.nii")
    plan = translate(tmp_path, tmp_path / "in", command="plan")
    assert plan.exit_code == 0, plan.output
    assert "2 studies: 2 to translate" in plan.output


@pytest.mark.parametrize("how", ["links", "copies"])
def test_a_series_in_two_folders_is_two_inputs(
    tmp_path: Path, how: str, computed: "Counter[str]"
) -> None:
    """The sources are the same instances in both folders, and so are the results."""
    for path in Phantom("MR", intercept=0.0).write(tmp_path / "in" / "monday" / "mr"):
        again = tmp_path / "in" / "tuesday" / "mr" / path.name
        again.parent.mkdir(parents=True, exist_ok=True)
        if how == "links":
            os.link(path, again)
        else:
            again.write_bytes(path.read_bytes())
    model = identity_model(tmp_path / "model.safetensors")
    done = translate(tmp_path, tmp_path / "in", model=model)
    assert done.exit_code == 0, done.output
    assert sum(computed.values()) == (1 if how == "links" else 2)
    uids = [
        {pydicom.dcmread(path).SOPInstanceUID for path in (tmp_path / "out" / day).rglob("*.dcm")}
        for day in ("monday", "tuesday")
    ]
    assert len(uids[0]) == 12
    assert uids[0] == uids[1]
