"""Results whose folder, or the record of it, was moved, renamed or replaced."""

import shutil
from pathlib import Path

import pytest
from support.batch_world import (
    identity_model,
    killed_before_the_record,
    recorded,
    scan,
    tiny_model,
)
from support.dicom_pacs import orthanc, receiver, send_folder
from support.dicom_phantoms import Phantom
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.pipelines.results.manifest import Manifest


class World:
    """Two scans, a model, and where results go."""

    def __init__(self, root: Path) -> None:
        self.root, self.output = root, root / "out"
        self.record = root / ".out.cuda-cyclegan"
        self.model = tiny_model(root / "model.safetensors")
        for name in "ab":
            scan(root / "in" / f"{name}.nii", ord(name))

    def translate(self, output: Path | None = None, *options: str) -> Result:
        words = [self.root / "in", "--model", self.model, "--output", output or self.output]
        return CliRunner().invoke(app, ["translate", *map(str, words), "--device", "cpu", *options])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(done: Result, why: str) -> bool:
    """Whether both studies failed, for this reason."""
    reported = " ".join(done.output.split())
    return done.exit_code == 1 and all(f"/{name}.nii {why}" in reported for name in "ab")


def test_the_output_folder_holds_results_only(world: World) -> None:
    assert world.translate().exit_code == 0
    assert set(contents(world.output)) == {"a.nii", "b.nii"}
    assert "2 up to date" in world.translate().output


def test_a_folder_that_was_moved_with_its_record_goes_on(world: World) -> None:
    world.translate()
    moved = world.root / "archive" / "2026"
    moved.parent.mkdir()
    world.output.rename(moved)
    world.record.rename(moved.with_name(".2026.cuda-cyclegan"))
    assert "2 up to date" in world.translate(moved).output


def test_a_folder_that_was_renamed_without_its_record_is_left_as_it_is(world: World) -> None:
    world.translate()
    moved = world.root / "moved"
    world.output.rename(moved)
    before = contents(moved)
    done = world.translate(moved)
    assert refused(done, "was not written by this program")
    reported = " ".join(done.output.split())
    assert f"There is no record of the files in {moved}, so none" in reported
    assert f"next to it to {world.root / '.moved.cuda-cyclegan'}" in reported
    assert contents(moved) == before

    shutil.rmtree(world.root / ".moved.cuda-cyclegan")  # as the message says
    world.record.rename(world.root / ".moved.cuda-cyclegan")
    assert "2 up to date" in world.translate(moved).output


def test_a_folder_that_was_removed_without_its_record_is_made_again(world: World) -> None:
    world.translate()
    before = contents(world.output)
    shutil.rmtree(world.output)
    again = world.translate()
    assert again.exit_code == 0
    assert "its result was deleted" in again.output
    assert contents(world.output) == before


def test_files_in_a_folder_of_the_same_name_are_not_taken_for_results(world: World) -> None:
    world.translate()
    world.output.rename(world.root / "old")
    world.output.mkdir()
    for name in "ab":
        (world.output / f"{name}.nii").write_text(f"somebody's {name}")
    assert refused(world.translate(None, "--overlap", "0.5"), "was changed after this program")
    assert contents(world.output) == {f"{n}.nii": f"somebody's {n}".encode() for n in "ab"}


@pytest.fixture
def killed_world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A run was killed when its first result was in place, before that was on record."""
    with killed_before_the_record(monkeypatch):
        world.translate()
    assert {row["status"] for row in recorded(world.output)} == {"writing"}
    [made] = contents(world.output)
    assert made == "a.nii"
    return world


def test_result_left_by_a_killed_run_is_made_again(killed_world: World) -> None:
    done = killed_world.translate()
    assert done.exit_code == 0, done.output
    assert "an earlier run was stopped while writing it" in done.output


@pytest.mark.parametrize("record", ["beside", "inside"])
def test_file_that_replaced_that_of_a_killed_run_is_somebody_elses(
    killed_world: World, record: str
) -> None:
    world = killed_world
    shutil.rmtree(world.output)
    world.output.mkdir()
    if record == "inside":
        world.record.rename(world.output / ".cuda-cyclegan")
    (world.output / "a.nii").write_text("somebody's only copy")
    done = world.translate()
    assert done.exit_code == 1
    assert "a.nii was not written by this program" in " ".join(done.output.split())
    assert (world.output / "a.nii").read_text() == "somebody's only copy"
    assert (world.output / "b.nii").is_file()


def test_an_older_result_is_still_ours_after_a_kill_before_its_successor_was_in_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says "writing", and the older result stands."""
    world.translate()
    append = Manifest.append

    def dies(self: Manifest, entry: "object") -> None:
        append(self, entry)  # type: ignore[arg-type]
        if getattr(entry, "status", "") == "writing":
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "append", dies)
        world.translate(None, "--overlap", "0.5")
    assert recorded(world.output)[-1]["status"] == "writing"
    done = world.translate(None, "--overlap", "0.5")
    assert done.exit_code == 0, done.output


def test_a_record_among_the_scans_changes_nothing(world: World) -> None:
    """Results below the folder of the scans leave their record there too."""
    first = world.translate(world.root / "in" / "out", "--report", str(world.root / "1.json"))
    again = world.translate(world.root / "in" / "out")
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert (world.root / "in" / ".out.cuda-cyclegan" / "manifest.jsonl").is_file()
    assert "2 up to date" in again.output


class TestSending:
    @pytest.fixture
    def results(self, tmp_path: Path) -> Path:
        for name in ("first", "2nd"):
            Phantom("MR", series=f"1.2.3.{len(name)}", intercept=0.0).write(tmp_path / "in" / name)
        model = identity_model(tmp_path / "model.safetensors")
        words = [tmp_path / "in", "--model", model, "--output", tmp_path / "results"]
        done = CliRunner().invoke(app, ["translate", *map(str, words)])
        assert done.exit_code == 0, done.output
        assert "contains the record" not in done.output
        return tmp_path / "results"

    @pytest.mark.slow
    def test_storescu_sends_a_folder_of_results_as_it_is(
        self, results: Path, tmp_path: Path
    ) -> None:
        made = len(list(results.rglob("*.dcm")))
        with receiver(tmp_path / "received") as port:
            send_folder(results, port)
        assert len(list((tmp_path / "received").iterdir())) == made > 0

    @pytest.mark.slow
    def test_orthanc_takes_a_folder_of_results_as_it_is(
        self, results: Path, tmp_path: Path
    ) -> None:
        with orthanc(tmp_path / "pacs") as pacs:
            send_folder(results, pacs.dicom_port)
            stored = [n for series in pacs.series_by_study().values() for n in series.values()]
        assert sum(stored) == len(list(results.rglob("*.dcm"))) > 0


def test_a_record_inside_is_reported_where_results_are_dicom(tmp_path: Path) -> None:
    Phantom("MR", intercept=0.0).write(tmp_path / "in" / "mr")
    record = tmp_path / "results" / ".cuda-cyclegan"
    record.mkdir(parents=True)
    model = identity_model(tmp_path / "model.safetensors")
    words = [tmp_path / "in", "--model", model, "--output", tmp_path / "results"]
    reported = CliRunner().invoke(app, ["translate", *map(str, words)]).output
    assert f"contains the record of the results, {record}, too; exclude it when" in " ".join(
        reported.split()
    )
    nifti = CliRunner().invoke(app, ["translate", *map(str, words), "--format", "nifti"]).output
    assert "contains the record" not in " ".join(nifti.split())
