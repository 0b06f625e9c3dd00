"""--preview for results that are there: drawn from the files, and nothing is computed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import SimpleITK as _SimpleITK
from PIL import Image
from support.batch_world import scan
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

from cuda_cyclegan.pipelines.results.manifest import load
from cuda_cyclegan.pipelines.run.in_flight import StudyProgress
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

sitk: Any = _SimpleITK
MR = Phantom("MR", intercept=0.0)


def no_network(*_: object, **__: object) -> None:
    raise AssertionError("A network was opened.")


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    made = QueueWorld(tmp_path)
    made.scans(2)
    return made


def pictures(world: QueueWorld) -> dict[str, bytes]:
    found = sorted(world.output.rglob("*.preview.png"))
    return {str(path.relative_to(world.output)): path.read_bytes() for path in found}


def rows(world: QueueWorld, *options: str) -> list[dict[str, Any]]:
    report = world.folder / "r.json"
    report.unlink(missing_ok=True)
    world.command("translate", "--report", str(report), *options)
    return json.loads(report.read_text())["studies"]


def test_preview_of_files_equals_that_of_the_translation(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.command("translate", "--preview").exit_code == 0
    drawn_with_results = pictures(world)
    assert world.command("translate", "--overwrite").exit_code == 0
    assert pictures(world) == {}
    before = {name: entry.outputs for name, entry in load(world.output).items()}
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.networks.open_generator", no_network)
    planned = world.command("plan", "--preview")
    assert "kept, preview drawn" in planned.stdout
    assert (
        "2 up to date, 2 previews to draw from existing files; nothing was written"
    ) in planned.stdout
    done = world.command("translate", "--preview")
    assert done.exit_code == 0, done.output
    assert "2 up to date, 2 previews drawn from existing files" in done.stdout
    assert pictures(world) == drawn_with_results
    after = load(world.output)
    assert {name: entry.outputs[:1] for name, entry in after.items()} == before
    assert "2 up to date\n" in world.command("translate", "--preview").stdout


def test_a_preview_that_says_other_words_of_the_model_is_drawn_anew(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.command("translate", "--preview").exit_code == 0
    before, results = pictures(world), results_of(world)
    other = world.folder / "other.safetensors"
    world.did("model", "edit", str(world.model), "--output", str(other), "--target", "PET")
    world.model = other
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.networks.open_generator", no_network)
    assert "2 up to date\n" in world.command("translate").stdout
    again = world.command("translate", "--preview")
    assert "2 up to date, 2 previews drawn from existing files" in again.stdout, again.output
    after = pictures(world)
    assert after.keys() == before.keys()
    assert all(after[name] != before[name] for name in before)
    assert results_of(world) == results
    assert "2 up to date\n" in world.command("translate", "--preview").stdout
    for name in after:
        (world.output / name).write_bytes(b"a user's own")
    assert (
        "was changed after this program wrote it" in world.command("translate", "--preview").output
    )


def results_of(world: QueueWorld) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(world.output.rglob("*.nii"))}


def test_memory_is_awaited_before_files_are_read(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.command("translate")
    taken: list[int] = []
    take, draw = StudyProgress.take_memory, StudyTranslator.preview_stored

    def takes(self: StudyProgress, foreseen: int) -> None:
        take(self, foreseen)
        taken.append(foreseen)

    def draws(*arguments: Any) -> bytes:
        assert taken.pop() > 0
        return draw(*arguments)

    monkeypatch.setattr(StudyProgress, "take_memory", takes)
    monkeypatch.setattr(StudyTranslator, "preview_stored", draws)
    assert "2 previews drawn" in world.command("translate", "--preview").stdout


def test_the_report_of_the_batch_has_them(world: QueueWorld) -> None:
    report = world.folder / "r.json"
    world.command("translate", "--report", str(report))
    world.command("translate", "--report", str(report), "--preview")
    found = json.loads(report.read_text())
    assert found["totals"]["previews_drawn"] == 2
    assert {(row["status"], Path(row["preview"]).name) for row in found["studies"]} == {
        ("translated", f"{number:03}.nii.preview.png") for number in range(2)
    }


@pytest.mark.slow
@pytest.mark.parametrize("as_", [(), ("--format", "nifti")], ids=["as it is", "as NIfTI"])
def test_series_and_files_of_every_kind(tmp_path: Path, as_: tuple[str, ...]) -> None:
    world = QueueWorld(tmp_path)
    for name in ("a.nii", "b.nii.gz"):
        scan(world.inputs / name)
    for name in ("c.hdr", "d.nrrd", "e.mha", "f.mhd"):
        sitk.WriteImage(sitk.ReadImage(world.inputs / "a.nii"), world.inputs / name)
    MR.write(world.inputs / "mr")
    write_enhanced(replace(MR, series="1.2.3.9"), world.inputs / "enhanced" / "one.dcm")
    assert world.command("translate", "--preview", *as_).exit_code == 0
    drawn_with_results = pictures(world)
    assert len(drawn_with_results) == 8
    for path in world.output.rglob("*.preview.png"):
        path.unlink()
    done = world.command("translate", "--preview", *as_)
    assert "8 up to date, 8 previews drawn from existing files" in done.stdout, done.output
    assert pictures(world) == drawn_with_results


def test_a_preview_that_cannot_be_drawn_fails_alone_and_the_result_stays(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.command("translate")

    def refused(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cuda_cyclegan.pipelines.results.storing._save", refused)
        assert {(row["status"], row["class"]) for row in rows(world, "--preview")} == {
            ("failed", "write")
        }
    assert len(world.made()) == 2
    assert [row["preview_drawn"] for row in rows(world, "--preview")] == [True, True]


def test_a_job_draws_it_too(world: QueueWorld) -> None:
    world.command("translate")
    batch = world.submit("--preview")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"done"}
    assert [job["result"]["drawn"] for job in world.jobs(batch)] == [True, True]
    assert len(pictures(world)) == 2
    for path in world.output.glob("*.png"):
        Image.open(path).verify()


def test_a_result_is_made_without_its_preview_where_that_has_too_long_a_name(
    tmp_path: Path,
) -> None:
    world = QueueWorld(tmp_path)
    scan(world.inputs / f"{'a' * 246}.nii")
    reported = "it has no preview, because the preview's name would be too long for the disk"
    assert reported in unwrapped(world.command("plan", "--preview").stdout)
    [row] = rows(world, "--preview")
    assert (row["status"], row["preview"]) == ("translated", None)
    assert reported in row["notes"]
    [row] = rows(world, "--preview")
    assert (row["status"], row["preview_drawn"]) == ("up to date", False)
    batch = world.submit("--preview", "--overwrite")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"done"}
    assert pictures(world) == {}


def unwrapped(reported: str) -> str:
    return " ".join(reported.split())
