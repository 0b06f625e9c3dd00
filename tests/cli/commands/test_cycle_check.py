"""`translate --cycle-check`: its figures wherever a study is reported, and their marks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from support.batch_world import recorded, with_card
from support.calibration_scans import head, inverted, reference_set, save
from support.dicom_phantoms import Phantom
from support.model_pair import random_model
from support.pages import json_in
from support.queue_world import QueueWorld
from support.result_marks import read_mark
from typer.testing import Result

from cuda_cyclegan.engine.devices import choose_device
from cuda_cyclegan.engine.model.calibration import CycleReference, Typical
from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.model.model_file import load_model

WIDE = Window(0.0, 2000.0)


class PairWorld(QueueWorld):
    """A queue's world with a pair of models."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reported = ""
        random_model(self.model, window=WIDE)
        self.back = random_model(folder / "back.safetensors", "T2", "T1", 1, window=WIDE)

    def calibration(self, *options: str) -> Result:
        reference = reference_set(self.folder / "reference")
        return self.run(
            *("model", "calibrate", str(self.model), "--scans", str(reference)),
            *("--output", str(self.folder / "calibrated.safetensors"), *options),
        )

    def calibrate(self, *options: str) -> str:
        done = self.calibration("--cycle", str(self.back), *options)
        assert done.exit_code == 0, done.stderr
        self.model = self.folder / "calibrated.safetensors"
        return done.stdout

    def limit_between(self, errors: list[float]) -> None:
        """Let the model know a reference set by which the larger of two errors is marked."""
        back = load_model(self.back)
        limit = sum(errors) / 2 / 1000  # which is what 1 of network intensity is with WIDE
        known = CycleReference(back.identity, 9, Typical(limit, 0.0), 1.0)
        with_card(self.model, cycle=known)

    def previews(self) -> dict[str, int]:
        """Return the heights of the previews: a marked one has a line more."""
        found: dict[str, int] = {}
        for file in self.output.glob("*.preview.png"):
            with Image.open(file) as picture:
                found[file.name.removesuffix(".preview.png")] = picture.height
        return found

    def planned(self, *options: str) -> list[str]:
        paths = [str(self.inputs), "--model", str(self.model), "--output", str(self.output)]
        return ["plan", *paths, *options]

    def checked(self, *options: str) -> dict[str, dict[str, Any]]:
        report = self.folder / "report.json"
        asked = ("--cycle-check", str(self.back), "--report", str(report), *options)
        done = self.command("translate", *asked)
        assert done.exit_code == 0, done.output
        self.reported = done.stdout
        return {row["name"]: row for row in json.loads(report.read_text())["studies"]}


@pytest.fixture
def world(tmp_path: Path) -> PairWorld:
    made = PairWorld(tmp_path)
    save(made.inputs / "good.nii", head(2))
    save(made.inputs / "inverted.nii", inverted(head(2)))
    return made


def errors(rows: dict[str, dict[str, Any]]) -> list[float]:
    return [rows[name]["cycle"]["error"] for name in sorted(rows)]


def marks(rows: dict[str, dict[str, Any]]) -> list[bool]:
    return [rows[name]["cycle"]["marked"] for name in sorted(rows)]


def test_a_study_beyond_the_limit_is_marked_everywhere(world: PairWorld) -> None:
    found = errors(world.checked())
    world.limit_between(found)
    (world.folder / "report.json").unlink()
    rows = world.checked("--preview", "--overwrite")
    assert marks(rows) == [error == max(found) for error in found]
    assert json.loads((world.folder / "report.json").read_text())["totals"]["cycle_marked"] == 1
    good, marked = sorted(rows, key=lambda name: rows[name]["cycle"]["error"])
    lines = {line.split()[0]: line for line in world.reported.splitlines() if ".nii " in line}
    assert " !" in lines[marked]
    assert " !" not in lines[good]
    assert any("beyond" in note for note in rows[marked]["notes"])
    assert not any("beyond" in note for note in rows[good]["notes"])
    assert "a low error does not prove" in " ".join(world.reported.split())
    assert world.previews()[marked] > world.previews()[good]


def test_a_preview_drawn_later_is_marked_too(world: PairWorld) -> None:
    world.limit_between(errors(world.checked()))
    (world.folder / "report.json").unlink()
    rows = world.checked("--preview")
    assert {row["status"] for row in rows.values()} == {"up to date"}
    good, marked = sorted(rows, key=lambda name: rows[name]["cycle"]["error"])
    assert world.previews()[marked] > world.previews()[good]


def test_the_page_flags_what_is_beyond_its_limit(world: PairWorld) -> None:
    rows = world.checked()
    world.limit_between(errors(rows))
    (world.folder / "report.json").unlink()
    world.checked("--overwrite")
    good, marked = sorted(rows, key=lambda name: rows[name]["cycle"]["error"])
    page = world.folder / "page.html"
    world.did("report", str(world.folder / "report.json"), "--html", str(page))
    text = page.read_text()
    assert "not quality" in text
    flags = {study["name"]: study["flagged"] for study in json_in(text)["studies"]}
    assert {name: "cycle" in flags[name] for name in flags} == {marked: True, good: False}


def test_without_a_calibration_nothing_is_marked(world: PairWorld) -> None:
    rows = world.checked()
    assert all(row["cycle"]["limit"] is None for row in rows.values())
    assert not any(row["cycle"]["marked"] for row in rows.values())
    assert "cycle" in world.reported.splitlines()[0]


def test_nothing_is_computed_again_but_what_is_asked_for(world: PairWorld) -> None:
    assert world.command("translate").exit_code == 0
    assert not any("cycle" in line for line in recorded(world.output))
    rows = world.checked()
    assert {row["due"] for row in rows.values()} == {"its cycle error is requested"}
    first = {name: row["cycle"] for name, row in rows.items()}
    kept = world.checked()
    assert {row["status"] for row in kept.values()} == {"translated"}  # as the report goes on
    assert "2 up to date" in world.reported
    assert {name: row["cycle"] for name, row in kept.items()} == first
    assert "2 up to date" in world.command("translate").stdout
    (world.folder / "report.json").unlink()
    kept = world.checked()
    assert {row["status"] for row in kept.values()} == {"up to date"}
    assert {name: row["cycle"] for name, row in kept.items()} == first


def test_a_report_that_goes_on_shows_what_the_record_knows(world: PairWorld) -> None:
    report = world.folder / "report.json"
    assert world.command("translate", "--report", str(report)).exit_code == 0
    assert world.command("translate", "--cycle-check", str(world.back)).exit_code == 0
    assert all(row["cycle"] for row in world.checked().values())


def test_another_way_back_is_another_error(world: PairWorld) -> None:
    world.checked()
    (world.folder / "report.json").unlink()
    random_model(world.back, "T2", "T1", 2, window=WIDE)
    assert {row["status"] for row in world.checked().values()} == {"translated"}


def test_a_later_calibration_judges_what_is_there(world: PairWorld) -> None:
    found = errors(world.checked())
    (world.folder / "report.json").unlink()
    world.limit_between(found)
    rows = world.checked()
    assert {row["status"] for row in rows.values()} == {"up to date"}
    assert marks(rows) == [error == max(found) for error in found]


def test_a_calibration_learns_mean_and_deviation_of_the_errors(world: PairWorld) -> None:
    world.calibrate()
    world.inputs, world.output = world.folder / "reference", world.folder / "of the reference"
    found = [error / 1000 for error in errors(world.checked())]
    card = load_model(world.model).card
    assert card.cycle is not None
    assert card.cycle.error.mean == pytest.approx(np.mean(found))
    assert card.cycle.error.sd == pytest.approx(np.std(found, ddof=1))
    assert card.cycle.studies == 6


def test_a_job_has_the_figures_of_a_run(world: PairWorld) -> None:
    expected = {name: row["cycle"]["error"] for name, row in world.checked().items()}
    for file in world.output.glob("*.nii"):
        file.unlink()
    batch = world.submit("--cycle-check", str(world.back))
    world.work()
    jobs = {job["study"]: job for job in world.jobs(batch)}
    assert {job["state"] for job in jobs.values()} == {"done"}
    assert {name: job["result"]["cycle"]["error"] for name, job in jobs.items()} == expected
    assert "cycle" in world.did("jobs", "summary", batch)
    again = world.submit("--cycle-check", str(world.back))
    world.work()
    assert set(world.states(again)) == {"done"}


def test_a_job_of_a_way_back_that_changed_fails_alone(world: PairWorld) -> None:
    batch = world.submit("--cycle-check", str(world.back))
    random_model(world.back, "T2", "T1", 5, window=WIDE)
    world.work()
    for job in world.jobs(batch):
        assert job["state"] == "failed"
        assert "has changed since the job was submitted" in job["reason"]
    assert not world.made()


@pytest.mark.slow
def test_cycle_errors_of_several_devices_equal_those_of_one(
    world: PairWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = world.checked()
    (world.folder / "report.json").unlink()
    pair = choose_device("cpu"), choose_device("onnxruntime:CPU")
    monkeypatch.setattr("cuda_cyclegan.pipelines.decisions.choose_devices", lambda *_: pair)
    shared = world.checked("--overwrite")
    assert errors(shared) == pytest.approx(errors(alone))
    report = json.loads((world.folder / "report.json").read_text())
    assert report["use"]["devices"] == 2


def test_plan_shows_patches_and_memory_of_the_way_back(world: PairWorld) -> None:
    plain = world.did(*world.planned())
    checked = world.did(*world.planned("--cycle-check", str(world.back)))
    assert "Cycle check: 16 patches translated back" in checked
    assert "Cycle check" not in plain
    assert not world.output.exists()


@pytest.mark.parametrize("command", ["translate", "plan", "submit"])
def test_a_model_that_is_no_way_back_is_refused(world: PairWorld, command: str) -> None:
    done = world.command(command, "--cycle-check", str(world.model))
    assert done.exit_code == 2
    assert "is not the reverse model of" in done.stderr
    assert "--cycle-check" in done.stderr
    assert not world.output.exists()


def test_a_dicom_series_is_checked_too(tmp_path: Path) -> None:
    world = PairWorld(tmp_path)
    Phantom("MR").write(world.inputs / "mr")
    [row] = world.checked().values()
    assert row["cycle"]["error"] > 0
    assert np.isfinite(row["cycle"]["error"])


@pytest.mark.process
def test_a_map_of_a_dicom_series_is_a_series_of_its_own(tmp_path: Path) -> None:
    world = PairWorld(tmp_path)
    Phantom("MR").write(world.inputs / "mr")
    [row] = world.checked("--cycle-map").values()
    [folder] = row["maps"]
    assert folder.endswith(".map-cycle")
    [result, shown] = [
        pydicom.dcmread(min(Path(place).rglob("*.dcm"))) for place in (row["output"], folder)
    ]
    assert shown.SeriesInstanceUID != result.SeriesInstanceUID
    assert shown.StudyInstanceUID == result.StudyInstanceUID
    assert shown.Modality == "OT"
    assert "cycle error" in shown.SeriesDescription
    assert "CYCLE" in shown.ImageType


def test_a_map_is_made_once_and_asked_for_later(world: PairWorld) -> None:
    world.checked()
    (world.folder / "report.json").unlink()
    rows = world.checked("--cycle-map", "--preview")
    assert {row["due"] for row in rows.values()} == {"it has no map cycle yet"}
    (world.folder / "report.json").unlink()
    kept = world.checked("--cycle-map", "--preview")
    assert {row["status"] for row in kept.values()} == {"up to date"}
    assert all(Path(row["maps"][0]).is_file() for row in kept.values())


def test_a_map_without_a_check_is_wrong_usage(world: PairWorld) -> None:
    done = world.command("translate", "--cycle-map")
    assert done.exit_code == 2
    assert "--cycle-check" in done.stderr


def test_a_job_makes_the_map_too(world: PairWorld) -> None:
    world.submit("--cycle-check", str(world.back), "--cycle-map")
    world.work()
    assert {"good.map-cycle.nii", "inverted.map-cycle.nii"} <= world.made()
    model = load_model(world.model)
    for name, shows in (("good.nii", None), ("good.map-cycle.nii", "cycle")):
        mark = read_mark(world.output / name)
        assert mark is not None
        assert (mark.source, mark.target, mark.shows) == ("T1", "T2", shows)
        assert (mark.model, mark.model_sha256) == (model.card.words[0], model.sha256[:12])


@pytest.mark.slow
def test_a_calibration_marks_nothing_unless_reported_from_when_on(world: PairWorld) -> None:
    """The demonstration pair's cycle error finds too few spoilt scans to mark them by default."""
    world.calibrate()
    rows = world.checked()
    assert all(row["cycle"]["limit"] is None for row in rows.values())
    assert not any(marks(rows))


@pytest.mark.slow
def test_a_calibration_with_a_limit_marks(world: PairWorld) -> None:
    reported = world.calibrate("--mark-beyond", "1e-3")
    assert "marked above a cycle error of" in reported
    known = load_model(world.model).card.cycle
    assert known is not None
    assert known.limit is not None
    assert known.limit == pytest.approx(known.error.mean + 1e-3 * known.error.sd)
    limit, rows = 1000 * known.limit, world.checked()
    assert marks(rows) == [error > limit for error in errors(rows)]
    assert any(marks(rows))


@pytest.mark.parametrize("beyond", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_wrong_usage(world: PairWorld, beyond: str) -> None:
    done = world.calibration("--cycle", str(world.back), "--mark-beyond", beyond)
    assert done.exit_code == 2
    assert "must be above zero" in done.stderr


def test_a_limit_without_a_way_back_is_wrong_usage(world: PairWorld) -> None:
    done = world.calibration("--mark-beyond", "3")
    assert done.exit_code == 2
    assert "--cycle" in done.stderr


def test_the_calibrated_model_reports_it(world: PairWorld) -> None:
    world.calibrate()
    card = load_model(world.model).card
    assert card.cycle is not None
    assert card.cycle.back == load_model(world.back).identity
    assert card.cycle.studies == 6
    assert "cycle error" in world.did("model", "inspect", str(world.model))
