"""Results below an input folder are not taken for scans, and what it costs to tell them."""

import os
import shutil
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.io.choice import EVERYTHING
from cuda_cyclegan.pipelines.jobs.queue.location import VARIABLE
from cuda_cyclegan.pipelines.results.earlier_results import discover_scans
from cuda_cyclegan.pipelines.results.manifest import VERSION
from cuda_cyclegan.pipelines.results.record_folder import NAME, found_record


class Folders:
    """Scans, and results of an earlier run below them."""

    def __init__(self, root: Path) -> None:
        self.scans, self.model = root / "scans", tiny_model(root / "model.safetensors")
        scan(self.scans / "a.nii")
        scan(self.scans / "b" / "b.nii", 1)
        self.earlier = self.scans / "results"
        assert "2 translated" in self.translate(self.scans, to=self.earlier).stdout

    def translate(self, *inputs: Path | str, to: Path, command: str = "translate") -> Result:
        paths = [*inputs, "--model", self.model, "--output", to]
        queue = {VARIABLE: str(to.parent / "private" / "queue.db")}
        return CliRunner().invoke(app, [command, *map(str, paths)], env=queue)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_second_run_into_another_folder_takes_the_scans_alone(
    folders: Folders, tmp_path: Path
) -> None:
    run = folders.translate(folders.scans, to=folders.scans / "others")
    assert "2 studies" in run.stdout
    assert run.stdout.count("skipped: ") == 2
    planned = folders.translate(folders.scans, to=tmp_path / "new", command="plan")
    assert "2 to translate" in planned.stdout
    assert "skipped: 4 files or series, " in planned.stdout
    assert "it is a synthetic image, written by this program" in planned.stdout
    queued = folders.translate(folders.scans, to=tmp_path / "new", command="submit")
    assert "2 studies queued" in queued.stderr
    found = CliRunner().invoke(app, ["discover", str(folders.scans)])
    assert "2 to translate, 4 skipped" in found.stdout


def test_results_of_a_newer_version_are_not_translated_again(
    folders: Folders, tmp_path: Path
) -> None:
    record = found_record(folders.earlier)
    assert record
    with (record / NAME).open("ab") as file:
        file.write(b'{"version": %d}\n' % (VERSION + 1))
    run = folders.translate(folders.scans, to=tmp_path / "new")
    assert run.exit_code == 2
    assert "was written by a newer version of cuda-cyclegan; update this one." in run.stderr
    assert not (tmp_path / "new").exists()


def test_results_are_translated_for_who_asks_for_it(folders: Folders, tmp_path: Path) -> None:
    for name, inputs, studies in (
        ("folder", folders.earlier, 2),
        ("file", folders.earlier / "a.nii", 1),
        ("below", folders.earlier / "b", 1),
    ):
        refused = folders.translate(inputs, to=tmp_path / name)
        assert refused.exit_code == (1 if inputs.is_file() else 3)
        assert "written by this program; use --allow-synthetic to include it" in refused.stderr
        done = folders.translate(inputs, "--allow-synthetic", to=tmp_path / name)
        assert f"{studies} translated" in done.stdout


def test_file_of_a_user_in_the_place_of_a_result_is_a_scan(
    folders: Folders, tmp_path: Path
) -> None:
    scan(folders.earlier / "a.nii", 7)
    shutil.copy(folders.scans / "a.nii", folders.earlier / "mine.nii")
    assert "4 translated" in folders.translate(folders.scans, to=tmp_path / "out").stdout


@pytest.mark.parametrize("output", [None, "results"])
def test_folders_in_folders_need_no_real_path_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | None
) -> None:
    """A real path looks at all folders around it; of each folder of a chain that is their square,
    and takes seconds where folders lie hundreds deep.
    """
    realpath, results = os.path.realpath, tmp_path / output if output else None
    asked: list[object] = []

    def counted(path: "os.PathLike[str] | str", **options: bool) -> str:
        asked.append(path)
        return realpath(path, **options)

    def asked_for(depth: int) -> int:
        inputs = tmp_path / str(depth)
        deepest = inputs.joinpath(*["d"] * depth)
        deepest.mkdir(parents=True)
        (deepest / "a.nii").touch()
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr("os.path.realpath", counted)
            found = discover_scans([inputs], results, EVERYTHING)
        assert len(found.studies) == 1
        return len(asked)

    assert asked_for(60) == asked_for(6)
