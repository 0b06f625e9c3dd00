"""A CT beside an MR for a model of T1: every command passes it over, with the way to take it."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from support.batch_world import scan
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.settings import TranslateOptions

REASON = "its modality is CT, and the model translates T1 (MR)"


@pytest.fixture
def ward(tmp_path: Path) -> QueueWorld:
    """A CT and an MR of one patient, and a model of T1."""
    world = QueueWorld(tmp_path)
    Phantom("CT").write(world.inputs / "ct")
    Phantom("MR", series="1.2.3.4.5.7", number=4).write(world.inputs / "mr")
    return world


def folders(world: QueueWorld) -> set[str]:
    return {path.parent.parent.name for path in world.output.rglob("*.dcm")}


def test_translate_passes_the_ct_over_and_writes_nothing_of_it(ward: QueueWorld) -> None:
    report = ward.folder / "r.json"
    done = ward.command("translate", "--report", str(report))
    assert done.exit_code == 0
    assert f"{REASON}; use --any-contrast to include it" in done.stdout
    assert folders(ward) == {"mr"}
    assert not (ward.output / "ct").exists()
    reported = json.loads(report.read_text())
    assert [Path(row["name"]).parts[0] for row in reported["studies"]] == ["mr"]
    [skip] = reported["skipped"]
    assert skip["kind"] == "modality"


def test_slices_of_a_ct_that_are_named_are_refused(ward: QueueWorld) -> None:
    slices = sorted(map(str, (ward.inputs / "ct").iterdir()))
    done = ward.run("translate", *slices, "-m", str(ward.model), "-o", str(ward.output))
    assert done.exit_code == 1
    assert f"unsupported: {REASON}; use --any-contrast to include it" in done.stderr
    assert not list(ward.output.rglob("*.dcm"))


def test_any_modality_translates_it_and_reports_it(ward: QueueWorld) -> None:
    done = ward.command("translate", "--any-modality")
    assert done.exit_code == 0
    assert f"{REASON}; it is included as requested" in done.stdout
    assert folders(ward) == {"ct", "mr"}
    kept = ward.command("translate")
    assert kept.exit_code == 0
    assert REASON in kept.stdout
    assert folders(ward) == {"ct", "mr"}


def test_plan_reports_it(ward: QueueWorld) -> None:
    done = ward.command("plan", "--strict")
    assert done.exit_code == 0
    [line] = [line for line in done.stdout.splitlines() if line.startswith("skipped: ")]
    assert REASON in line
    assert "2 to translate" in ward.command("plan", "--any-modality").stdout


def test_discover_says_it_of_a_model_and_only_then(ward: QueueWorld) -> None:
    assert REASON not in ward.command("discover").output
    reported = ward.command("discover", "--model", str(ward.model))
    assert reported.exit_code == 0
    assert REASON in reported.stdout
    assert "1 to translate, 1 skipped" in reported.stdout
    found = json.loads(ward.command("discover", "--model", str(ward.model), "--json").stdout)
    assert {series["modality"]: series["verdict"] for series in found["series"]} == {
        "CT": "skipped",
        "MR": "taken",
    }


def test_submit_queues_the_other_alone(ward: QueueWorld) -> None:
    paths = [str(ward.inputs), "--model", str(ward.model), "--output", str(ward.output)]
    done = ward.run("submit", *paths)
    assert done.exit_code == 0
    assert REASON in done.stderr
    ward.work()
    assert folders(ward) == {"mr"}
    batch = ward.submit("--any-modality")
    assert len(ward.jobs(batch)) == 2
    ward.work()
    assert folders(ward) == {"ct", "mr"}


@pytest.mark.slow
def test_a_watch_says_it_of_what_arrives(ward: QueueWorld) -> None:
    process = ward.watch()
    stream = process.stderr
    assert stream
    try:
        said = iter(stream.readline, "")
        assert any(REASON in line for line in said)
    finally:
        ward.close()


def test_a_worker_refuses_what_an_older_program_has_queued(ward: QueueWorld) -> None:
    files = tuple(sorted(map(str, (ward.inputs / "ct").iterdir())))
    digest = sha256(ward.model.read_bytes()).hexdigest()
    options = TranslateOptions(patch=(16, 16, 16), overlap=0.25, blend="gaussian")
    job = StudyJob("ct/a", files, str(ward.output), str(ward.model), digest, options)
    assert "any_modality" not in json.loads(job.to_json())
    with open_queue(queue_place(ward.queue), create=True) as queue:
        batch = queue.submit([job], SchedulingClass("normal")).batch
    ward.work()
    [ended] = ward.jobs(batch)
    assert ended["state"] == "failed"
    assert REASON in ended["reason"]
    assert not list(ward.output.rglob("*.dcm"))


def test_without_a_modality_the_class_of_the_object_shows(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    Phantom("CT").write(world.inputs, lambda data, _: data.pop("Modality"))
    assert REASON in world.command("plan").stderr


def test_the_sidecar_of_a_file_shows_its_contrast(tmp_path: Path) -> None:
    world = QueueWorld(tmp_path)
    world.scans(2)
    (world.inputs / "000.json").write_text('{"Modality": "CT"}')
    scan(world.inputs / "002_T1w.nii")
    (world.inputs / "002_T1w.json").write_text('{"Modality": "CT"}')
    said = "its JSON sidecar states CT (Modality), and the model translates T1 (MR)"
    for command in ("plan", "translate"):
        done = world.command(command)
        assert done.exit_code == 0
        for name in ("000.nii", "002_T1w.nii"):
            assert f"{name}: {said}; use --any-contrast to include it" in done.stdout
