"""An output folder that goes away under a run: said so, and nothing to repair for the next run."""

import json
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.pipelines import decisions

STUDIES = 6
IN_INFERENCE = ("cuda_cyclegan.pipelines.study.translator", "translate_array")
IN_WRITING = ("cuda_cyclegan.io.files.streams", "write_voxels")
BEFORE_RECORDING = ("cuda_cyclegan.pipelines.results.storing", "files_at")
AT_THE_END = ("cuda_cyclegan.pipelines.translate", "run_batch")
WAYS = ("moved", "removed", "replaced", "without its manifest")


class Folders:
    def __init__(self, root: Path) -> None:
        self.root, self.output = root, root / "results"
        self.moved = root / "results.moved"
        self.report = root / "report.json"
        tiny_model(root / "model.safetensors")
        for index in range(STUDIES):
            scan(root / "scans" / f"{index}.nii", index)

    def run(self) -> Result:
        paths = [self.root / "scans", "--model", self.root / "model.safetensors"]
        paths += ["--output", self.output, "--report", self.report]
        return CliRunner().invoke(app, ["translate", "--device", "cpu", *map(str, paths)])

    def run_and_lose(
        self, place: tuple[str, str], call: int, how: str, when: str = "before"
    ) -> Result:
        """The command, but its output folder goes away at the nth call of some function."""
        module, name = resolve_name(place[0]), place[1]
        with pytest.MonkeyPatch.context() as patch:
            real = getattr(module, name)
            patch.setattr(module, name, _losing(real, lambda: self._lose(how), call, when))
            return self.run()

    def _lose(self, how: str) -> None:
        if how == "without its manifest":
            shutil.rmtree(self.root / ".results.cuda-cyclegan")
            return
        self.output.rename(self.moved)
        if how == "removed":
            shutil.rmtree(self.moved, ignore_errors=True)  # somebody may be writing in it
        if how == "replaced":
            self.output.mkdir()

    def assert_complete(self) -> None:
        done = self.run()
        assert done.exit_code == 0, done.output
        made = sorted(path.name for path in self.output.iterdir() if path.suffix)
        assert made == [f"{index}.nii" for index in range(STUDIES)]


def _losing(
    real: Callable[..., Any], lose: Callable[[], None], call: int, when: str
) -> Callable[..., Any]:
    calls = count(1)

    def losing(*arguments: Any, **named: Any) -> Any:
        is_call = next(calls) == call  # of several threads, exactly one has this number
        if when == "before" and is_call:
            lose()
        result = real(*arguments, **named)
        if when == "after" and is_call:
            lose()
        return result

    return losing


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def assert_lost(folders: Folders, done: Result, *, fewest: int = 1) -> None:
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.stderr
    assert "space" not in done.stderr
    report = json.loads(folders.report.read_text())
    failed = [row for row in report["studies"] if row["status"] == "failed"]
    assert len(failed) == report["totals"]["failed"] >= fewest
    assert {row["class"] for row in failed} == {"write"}, failed
    assert all("moved or removed" in row["reason"] for row in failed), failed


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("place", [IN_INFERENCE, IN_WRITING, BEFORE_RECORDING])
def test_a_folder_that_goes_away_under_a_run(
    folders: Folders, place: tuple[str, str], how: str
) -> None:
    assert_lost(folders, folders.run_and_lose(place, 3, how), fewest=STUDIES)
    if how == "moved":
        assert not folders.output.exists(), "a folder that was moved was made again"
    if how != "without its manifest":
        folders.assert_complete()


@pytest.mark.parametrize("place", [IN_INFERENCE, IN_WRITING, BEFORE_RECORDING])
def test_a_folder_that_is_put_back_holds_what_it_held(
    folders: Folders, place: tuple[str, str]
) -> None:
    assert_lost(folders, folders.run_and_lose(place, 3, "moved"))
    folders.moved.rename(folders.output)
    kept = (folders.output / "0.nii").stat()
    folders.assert_complete()
    assert (folders.output / "0.nii").stat() == kept
    assert list(folders.output.glob("*.part")) == []


@pytest.mark.parametrize("how", WAYS)
def test_a_folder_that_goes_away_after_the_last_study(folders: Folders, how: str) -> None:
    assert_lost(folders, folders.run_and_lose(AT_THE_END, 1, how, "after"), fewest=STUDIES)


@pytest.mark.slow
def test_a_folder_that_goes_away_under_two_workers(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes away at the third line of the manifest, which the process that they share
    writes.
    """
    place = ("cuda_cyclegan.pipelines.results.manifest.Manifest", "append")
    two = tuple(Device("cpu", "fp32", ("fp32",), None, index) for index in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "choose_devices", lambda *_: two)
        assert_lost(folders, folders.run_and_lose(place, 3, "moved"))
    folders.assert_complete()
    shutil.rmtree(folders.output)
    folders.moved.rename(folders.output)
    folders.assert_complete()
