"""`model calibrate`, and scans that are unlike the reference set: noted, or refused if asked."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.calibration_scans import SHAPE, calibrated_model, head, inverted, reference_set, save
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

from cuda_cyclegan.engine.model.calibration import DEVIATIONS
from cuda_cyclegan.engine.model.model_file import load_model

NOTE = "it differs from the 6 scans of the model's calibration set: "


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    """A scan as expected and an inverted one, and a model that knows what to expect."""
    made = QueueWorld(tmp_path)
    made.model = calibrated_model(tmp_path)
    save(made.inputs / "good.nii", head(7))
    save(made.inputs / "inverted.nii", inverted(head(7)))
    return made


def test_a_calibrated_model_has_the_weights_and_the_results_of_before(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    save(world.inputs / "good.nii", head(7))
    assert world.command("translate").exit_code == 0
    target = tmp_path / "calibrated.safetensors"
    reported = world.did(
        "model",
        *("calibrate", str(world.model), "--output", str(target)),
        *("--scans", str(reference_set(tmp_path / "reference"))),
    )
    assert "Calibrated with 6 scans" in reported
    before, after = load_model(world.model), load_model(target)
    assert after.card.expected is not None
    assert after.card.expected.studies == 6
    for name, weight in before.network.weights.items():
        assert after.network.weights[name].tobytes() == weight.tobytes()
    world.model = target
    assert "1 up to date" in world.command("translate").stdout
    assert "spacing along W, mm" in world.did("model", "inspect", str(target))


def test_an_unlike_scan_is_noted_and_translated(world: QueueWorld) -> None:
    report = world.folder / "r.json"
    done = world.command("translate", "--report", str(report))
    assert done.exit_code == 0
    assert f"note: inverted.nii: {NOTE}" in done.stdout
    rows = {row["name"]: row for row in json.loads(report.read_text())["studies"]}
    assert not any(NOTE in note for note in rows["good.nii"]["notes"])
    assert any(note.startswith(NOTE) for note in rows["inverted.nii"]["notes"])
    assert world.made() == {"good.nii", "inverted.nii"}


def test_the_distance_from_the_reference_set_puts_planted_scans_last(world: QueueWorld) -> None:
    """Each by another figure: intensities turned over, a head cut in half, and thick slices."""
    save(world.inputs / "half.nii", head(8)[:12])
    save(world.inputs / "thick.nii", head(9), 1.0, 1.0, 3.0)
    save(world.inputs / "other.nii", head(10))
    report = world.folder / "r.json"
    assert world.command("translate", "--report", str(report)).exit_code == 0
    far = {
        row["name"].removesuffix(".nii"): row["measures"]["distance"]
        for row in json.loads(report.read_text())["studies"]
    }
    assert max(far["good"], far["other"]) < DEVIATIONS
    assert min(far["inverted"], far["half"], far["thick"]) > DEVIATIONS
    page = world.folder / "r.html"
    world.did("report", str(report), "--html", str(page))
    data = page.read_text().split('id="page-data">')[1].split("</script>")[0]
    shown = {study["name"]: study["flagged"] for study in json.loads(data)["studies"]}
    assert "distance" in shown["thick.nii"]
    assert "distance" not in shown["good.nii"]


def test_a_strict_run_fails_it_alone(world: QueueWorld) -> None:
    report = world.folder / "r.json"
    done = world.command("translate", "--strict-input", "--report", str(report))
    assert done.exit_code == 1
    assert world.made() == {"good.nii"}
    rows = {row["name"]: row for row in json.loads(report.read_text())["studies"]}
    row = rows["inverted.nii"]
    assert (row["status"], row["class"], row["failed_in"]) == ("failed", "preparation", "prepare")
    assert NOTE in row["reason"]
    assert "omit --strict-input" in done.stderr


def test_plan_shows_both(world: QueueWorld) -> None:
    done = world.command("plan")
    assert done.exit_code == 0
    assert f"note: inverted.nii: {NOTE}" in done.stdout
    done = world.command("plan", "--strict", "--strict-input")
    assert done.exit_code == 1
    assert "would fail: inverted.nii" in done.stdout


@pytest.mark.parametrize("command", ["translate", "plan", "submit"])
def test_strict_input_needs_a_calibration(tmp_path: Path, command: str) -> None:
    """Without one, a scan that is named unlike would be translated as if it had been compared."""
    world = QueueWorld(tmp_path)
    done = world.command(command, "--strict-input")
    assert done.exit_code == 2
    assert "was not calibrated, so --strict-input could reject no scan" in done.stderr


def test_a_job_notes_or_refuses_too(world: QueueWorld) -> None:
    batch = world.submit("--strict-input")
    world.work()
    states = {Path(job["study"]).name: job["state"] for job in world.jobs(batch)}
    assert states == {"good.nii": "done", "inverted.nii": "failed"}
    batch = world.submit()
    world.work()
    [job] = [one for one in world.jobs(batch) if one["study"] == "inverted.nii"]
    assert job["state"] == "done"
    assert any(note.startswith(NOTE) for note in job["result"]["notes"])


def test_results_that_are_there_are_not_made_again_for_it(world: QueueWorld) -> None:
    assert world.command("translate").exit_code == 0
    assert "2 up to date" in world.command("translate", "--strict-input").stdout


def test_copies_of_a_scan_count_once(tmp_path: Path) -> None:
    """Thirteen copies have no spread: any other scan would be unlike them."""
    world = QueueWorld(tmp_path)
    target, scans = tmp_path / "new.safetensors", reference_set(tmp_path / "set", 5)
    first, *_ = sorted(scans.iterdir())
    for number in range(8):
        shutil.copy(first, scans / f"z{number}{first.suffix}")
    done = world.run(
        *("model", "calibrate", str(world.model), "--output", str(target)), "--scans", str(scans)
    )
    assert done.exit_code == 1
    assert "Calibrated with 5 scans" in done.stdout
    assert f"z7.nii: unsupported: It is a copy of {first.name}, and each scan counts once" in (
        done.stderr
    )
    assert load_model(target).card.results is None


def test_too_few_scans_make_no_calibration(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    target = tmp_path / "new.safetensors"
    words = ["model", "calibrate", str(world.model), "--output", str(target)]
    done = world.run(*words, "--scans", str(reference_set(tmp_path / "few", 4)))
    assert done.exit_code == 2
    assert "at least 5 scans" in done.stderr
    assert not target.exists()
    assert world.run(*words, "--scans", str(world.model)).exit_code == 3


def test_a_scan_that_cannot_be_taken_is_left_out_and_reported(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    folder = reference_set(tmp_path / "reference")
    (folder / "damaged.nii").write_bytes(b"not a scan at all " * 40)
    save(folder / "several.nii", np.zeros((*SHAPE, 3), np.int16))
    Phantom("CT").write(folder / "ct")
    target = tmp_path / "new.safetensors"
    words = ["model", "calibrate", str(world.model), "--output", str(target)]
    done = world.run(*words, "--scans", str(folder))
    assert done.exit_code == 1
    assert "skipped: damaged.nii: unreadable" in done.stderr
    assert "its modality is CT" in done.stderr
    assert "but only one can be used here; save one as a separate file." in done.stderr
    assert "--volume" not in done.stderr, "which the command does not have"
    card = load_model(target).card
    assert card.expected is not None
    assert card.expected.studies == 6


def test_results_are_judged_by_those_of_the_set(tmp_path: Path) -> None:
    """The report and the summary of the jobs show it; one result alone is enough."""
    world = QueueWorld(tmp_path)
    world.model = calibrated_model(tmp_path, 12)
    card = load_model(world.model).card
    assert card.results is not None
    assert card.results.studies == 12
    assert "results that others are compared with" in world.did(
        "model", "inspect", str(world.model)
    )
    save(world.inputs / "good.nii", head(13))
    save(world.inputs / "noise.nii", np.random.default_rng(1).integers(0, 900, SHAPE, np.int16))
    report = world.folder / "r.json"
    done = world.command("translate", "--report", str(report), "--fail-on-suspicious")
    assert done.exit_code == 1
    found = {
        row["name"]: {one["measure"] for one in row["suspicion"]["findings"]}
        for row in json.loads(report.read_text())["studies"]
    }
    # No limit for any batch is on the detail, and two results are no group.
    assert "detail" in found["noise.nii"]
    assert "detail" not in found["good.nii"]
    batch = world.submit("--overwrite")
    world.work()
    [line] = [each for each in world.did("jobs", "summary", batch).splitlines() if "detail" in each]
    assert "noise.nii: its result is suspicious: " in line


def test_a_set_of_few_scans_has_no_usual_results(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    folder = reference_set(tmp_path / "reference")
    target = tmp_path / "new.safetensors"
    words = ["model", "calibrate", str(world.model), "--output", str(target)]
    done = world.run(*words, "--scans", str(folder))
    assert done.exit_code == 0
    assert "fewer than 12 results" in done.stderr
    assert load_model(target).card.results is None
