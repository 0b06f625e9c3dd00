"""An output folder that goes away under a run: said so, and nothing to repair for the next run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

STUDIES = 6
LOSING = """
import importlib, os, pkgutil, shutil, sys
place, name, call, how, when, workers = sys.argv[1:7]
output = sys.argv[sys.argv.index("--output") + 1]
del sys.argv[1:7]
from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.pipelines import decisions
if workers == "2":
    devices = tuple(Device("cpu", "fp32", ("fp32",), None, index) for index in range(2))
    assert hasattr(decisions, "choose_devices"), "a name that nobody asks would change nothing"
    decisions.choose_devices = lambda *_: devices
def lose():
    if how == "without its manifest":
        shutil.rmtree(os.path.join(os.path.dirname(output), ".results.cuda-cyclegan"))
        return
    os.rename(output, output + ".moved")
    if how == "removed":
        shutil.rmtree(output + ".moved", ignore_errors=True)  # somebody may be writing in it
    if how == "replaced":
        os.mkdir(output)
import pkgutil
module, remaining = pkgutil.resolve_name(place), int(call)
real = getattr(module, name)
def losing(*arguments, **named):
    global remaining
    remaining -= 1
    if when == "before" and remaining == 0:
        lose()
    result = real(*arguments, **named)
    if when == "after" and remaining == 0:
        lose()
    return result
setattr(module, name, losing)
importlib.import_module("cuda_cyclegan.cli.app").main()
"""
"""The command, but its output folder goes away at the nth call of some function."""

IN_INFERENCE = ("cuda_cyclegan.pipelines.study.translation", "translate_array")
IN_WRITING = ("cuda_cyclegan.io.formats.nifti_writing", "write_voxels")
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

    def run(
        self,
        place: tuple[str, str] = ("os", "nothing"),
        call: int = 0,
        how: str = "",
        when: str = "before",
        workers: int = 1,
    ) -> "subprocess.CompletedProcess[str]":
        start = [sys.executable, "-c", LOSING, *place, str(call), how, when, str(workers)]
        if place[0] == "os":
            start = [sys.executable, "-m", "cuda_cyclegan"]
        paths = [self.root / "scans", "--model", self.root / "model.safetensors"]
        paths += ["--output", self.output, "--report", self.report]
        arguments = ["translate", "--device", "cpu", *map(str, paths)]
        return subprocess.run([*start, *arguments], capture_output=True, text=True, check=False)

    def assert_complete(self) -> None:
        done = self.run()
        assert done.returncode == 0, done.stderr
        made = sorted(path.name for path in self.output.iterdir() if path.suffix)
        assert made == [f"{index}.nii" for index in range(STUDIES)]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def assert_lost(
    folders: Folders, done: "subprocess.CompletedProcess[str]", *, fewest: int = 1
) -> None:
    assert done.returncode == 1, done.stderr
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
    assert_lost(folders, folders.run(place, 3, how), fewest=STUDIES)
    if how == "moved":
        assert not folders.output.exists(), "a folder that was moved was made again"
    if how != "without its manifest":
        folders.assert_complete()


@pytest.mark.parametrize("place", [IN_INFERENCE, IN_WRITING, BEFORE_RECORDING])
def test_a_folder_that_is_put_back_holds_what_it_held(
    folders: Folders, place: tuple[str, str]
) -> None:
    assert_lost(folders, folders.run(place, 3, "moved"))
    folders.moved.rename(folders.output)
    kept = (folders.output / "0.nii").stat()
    folders.assert_complete()
    assert (folders.output / "0.nii").stat() == kept
    assert list(folders.output.glob("*.part")) == []


@pytest.mark.parametrize("how", WAYS)
def test_a_folder_that_goes_away_after_the_last_study(folders: Folders, how: str) -> None:
    assert_lost(folders, folders.run(AT_THE_END, 1, how, "after"), fewest=STUDIES)


def test_a_folder_that_goes_away_under_two_workers(folders: Folders) -> None:
    """It does so at the third line of the manifest, which the process that they share writes."""
    place = ("cuda_cyclegan.pipelines.results.manifest.Manifest", "append")
    assert_lost(folders, folders.run(place, 3, "moved", workers=2))
    folders.assert_complete()
    shutil.rmtree(folders.output)
    folders.moved.rename(folders.output)
    folders.assert_complete()
