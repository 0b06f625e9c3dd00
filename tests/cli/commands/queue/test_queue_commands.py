"""submit, worker and jobs together, from what is queued to what is stored."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from support.batch_world import scan, tiny_model
from support.dicom_phantoms import PATIENT, PATIENT_ID, Phantom
from support.queue_world import QueueWorld

pydicom: Any = _pydicom


@pytest.mark.process
def test_a_batch_from_submission_to_summary(world: QueueWorld) -> None:
    world.scans(3)
    (world.inputs / "empty.nii").touch()
    batch = world.submit("--name", "afternoon", "--preview")
    assert "afternoon" in world.did("jobs")
    world.work()
    assert world.made() == {"000.nii", "001.nii", "002.nii"}
    assert (world.output / "000.nii.preview.png").exists()
    listed = world.did("jobs", batch)
    assert "4 jobs: 3 done, 1 failed" in listed
    assert "No worker is running" not in listed, "and none is needed"
    assert "failed: empty.nii: unreadable: " in listed
    summary = world.run("jobs", "summary", batch)
    assert summary.exit_code == 1
    assert "3 translated, 1 failed" in summary.stdout
    assert "empty.nii" in summary.stderr
    summary = world.run("jobs", "summary", world.submit("--overwrite"))
    assert "4 studies in 0.00 s: 4 open" in summary.stdout
    assert "No worker is running; start 'cuda-cyclegan worker' to run the jobs" in world.did("jobs")

    scan(world.inputs / "empty.nii")
    assert "1 job queued again" in world.did("jobs", "retry", batch)
    world.work()
    assert world.run("jobs", "summary", batch).exit_code == 0
    assert "4 translated" in world.did("jobs", "summary", batch)


def test_a_job_may_have_one_named_file_as_its_result_beside_the_scan(world: QueueWorld) -> None:
    world.scans(1)
    source, target = world.inputs / "000.nii", world.inputs / "made.nii.gz"
    paths = ["--model", str(world.model), "--output", str(target)]
    batch = world.did("submit", str(source), *paths).strip()
    world.work()
    assert [job["state"] for job in world.jobs(batch)] == ["done"]
    assert target.is_file()


def test_a_result_equals_that_of_translate_and_is_kept_afterwards(world: QueueWorld) -> None:
    world.scans(2)
    paths = [str(world.inputs), "--model", str(world.model), "--output"]
    world.did("translate", *paths, str(world.folder / "direct"))
    world.submit()
    world.work()
    for name in world.made():
        direct = (world.folder / "direct" / name).read_bytes()
        assert (world.output / name).read_bytes() == direct
    assert "2 up to date" in world.did("translate", *paths, str(world.output))
    batch = world.submit()
    world.work()
    assert {job["result"]["status"] for job in world.jobs(batch)} == {"up to date"}


def test_inputs_and_models_that_went_away_fail_alone(world: QueueWorld) -> None:
    world.scans(2)
    batch = world.submit()
    (world.inputs / "000.nii").unlink()
    world.work()
    gone, done = world.jobs(batch)
    assert (gone["state"], done["state"]) == ("failed", "done")
    assert "does not exist" in gone["reason"]

    scan(world.inputs / "000.nii")
    world.did("jobs", "retry", batch)
    tiny_model(world.model, seed=1)
    world.work()
    assert "has changed since the job was submitted" in world.jobs(batch)[0]["reason"]
    world.did("jobs", "retry", batch)
    world.model.unlink()
    world.work()
    assert world.jobs(batch)[0]["state"] == "failed"


def test_a_closed_window_keeps_jobs_and_a_pause_all(world: QueueWorld) -> None:
    now = datetime.now()
    opens, closes = now + timedelta(hours=2), now + timedelta(hours=3)
    world.scans(2)
    later = world.submit("--window", f"{opens:%H:%M}-{closes:%H:%M}")
    world.work()
    assert {job["state"] for job in world.jobs(later)} == {"queued"}
    assert f"waiting for the window {opens:%H:%M}" in world.did("jobs", later)
    world.did("jobs", "cancel", later)
    batch = world.submit()
    world.did("jobs", "pause")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"queued"}
    assert "Paused" in world.did("jobs")
    world.did("jobs", "resume")
    world.work()
    assert {job["state"] for job in world.jobs(batch)} == {"done"}


def test_a_job_keeps_private_elements_if_its_submission_asked(world: QueueWorld) -> None:
    Phantom("MR").write(world.inputs / "mr")
    world.submit("--keep-private-tags")
    world.work()
    for path in world.output.rglob("*.dcm"):
        assert pydicom.dcmread(path).private_block(0x0019, "MAKER")[1].value == "secret"
    assert len(list(world.output.rglob("*.dcm"))) == 12


def test_a_job_makes_a_series_anew_whose_model_has_other_words_now(world: QueueWorld) -> None:
    Phantom("MR").write(world.inputs / "mr")
    world.submit()
    world.work()
    edited = world.folder / "edited.safetensors"
    world.did("model", "edit", str(world.model), "--output", str(edited), "--target", "CT")
    world.model = edited
    for status in ("translated", "up to date"):
        batch = world.submit()
        world.work()
        [job] = world.jobs(batch)
        assert (job["state"], job["result"]["status"]) == ("done", status)
    assert {pydicom.dcmread(path).Modality for path in world.output.rglob("*.dcm")} == {"CT"}


def test_job_records_name_no_patient(world: QueueWorld) -> None:
    phantom = Phantom("MR")
    phantom.write(world.inputs / "mr")
    batch = world.submit()
    world.work()
    reported = world.did("jobs", batch, "--json") + world.did("jobs", "summary", batch)
    files = [path for path in Path(world.queue).parent.rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in files)
    for secret in (*PATIENT.split("^"), PATIENT_ID, phantom.study, phantom.series, "Roe"):
        assert secret not in reported
        assert secret.encode() not in stored
