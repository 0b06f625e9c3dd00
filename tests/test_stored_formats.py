"""Files that the program of commit 18c316e4 wrote stay readable: a renamed field would lose work.

tests/fixtures/stored_formats/make.py made them.
"""

import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support import queue_postgres
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.cuda.tuning.cache import (
    NOTHING,
    Candidate,
    TuningCache,
    TuningResult,
    key_of,
)
from cuda_cyclegan.pipelines.jobs import worker
from cuda_cyclegan.pipelines.jobs.events import WorkerSettings
from cuda_cyclegan.pipelines.jobs.queue import liveness
from cuda_cyclegan.pipelines.jobs.queue.job import StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place

nibabel: Any = _nibabel
STORED = Path(__file__).parent / "fixtures" / "stored_formats"
MODIFIED_NS = 1_700_000_000_000_000_000
MODELS = ("reflect", "stored", "sampling", "calibrated")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored files as if the earlier version had written them here."""
    root = tmp_path / "root"
    shutil.copytree(STORED, root, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in root.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".sql", ".toml"):
            text = path.read_text().replace("@ROOT@", str(root))
            path.write_text(text.replace("@HOST@", platform.node()))
    for path in [*(root / "in").rglob("*"), root / "in"]:
        os.utime(path, ns=(MODIFIED_NS, MODIFIED_NS))
    home = tmp_path / "home"
    for kind, place in {"CACHE": home / "cache", "CONFIG": home / "config"}.items():
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(place))
    monkeypatch.chdir(root)
    return root


def run(line: str) -> Result:
    """Run a command in the folder of the stored files, whose path may have spaces."""
    here = str(Path.cwd().parent)
    words = line.replace(here, "@HERE@").split()
    return CliRunner().invoke(app, [word.replace("@HERE@", here) for word in words])


def without_mark(file: Path) -> tuple[bytes, bytes]:
    """Return header and voxels of a result, without the text that marks it as synthetic."""
    image = nibabel.load(file)
    image.header["descrip"], image.header["vox_offset"] = b"", 0
    return image.header.binaryblock, image.dataobj.get_unscaled().tobytes()


def did(line: str, status: int = 0) -> str:
    done = run(line)
    assert done.exit_code == status, done.output
    return done.stdout


def translate(root: Path, scan: str, model: str, output: str, options: str = "") -> str:
    return (
        f"translate {root}/in/{scan} --model {root}/models/{model}.safetensors "
        f"--output {root}/{output} --device cpu {options}"
    )


@pytest.fixture(params=["SQLite", pytest.param("PostgreSQL", marks=pytest.mark.slow)])
def queue(root: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield what `--queue` takes: the stored rows in a database."""
    if request.param == "SQLite":
        yield str(_sqlite(root))
        return
    if not queue_postgres.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with queue_postgres.server() as server:
        server.restore((root / "queue_postgres.sql").read_text())
        yield server.url


def _sqlite(root: Path) -> Path:
    """A file of this user's alone."""
    folder = root / "queue"
    folder.mkdir(mode=0o700)
    file = folder / "jobs.db"
    file.touch(mode=0o600)
    with sqlite3.connect(file) as database:
        database.executescript((root / "queue.sql").read_text())
    database.close()
    return file


def batches(queue: str) -> dict[str, str]:
    """Batches by the names that they were given."""
    found = json.loads(did(f"jobs --json --queue {queue}"))["batches"]
    return {batch["name"]: batch["batch"] for batch in found}


def jobs(queue: str) -> dict[str, dict[str, Any]]:
    """The one job of each batch."""
    named = batches(queue).items()
    shown = {name: json.loads(did(f"jobs show {at} --json --queue {queue}")) for name, at in named}
    return {name: found["jobs"][0] for name, found in shown.items()}


def work(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what is left, in this process, which does not wait for one that died long ago."""
    monkeypatch.setattr(liveness, "DEAD_SECONDS", 0.0)
    settings = WorkerSettings(until_empty=True)
    assert worker.work(queue_place(queue), "cpu", settings, lambda _: None) == "empty"


def test_a_queue_shows_its_jobs_in_every_state(queue: str) -> None:
    found = jobs(queue)
    assert {name: job["state"] for name, job in found.items()} == {
        "done": "done",
        "failed": "failed",
        "given-up": "given up",
        "running": "running",
        "cancelled": "cancelled",
        "waiting": "waiting",
        "queued": "queued",
        "queued-series": "queued",
        "queued-options": "queued",
    }
    assert found["done"]["result"]["status"] == "translated"
    assert found["done"]["result"]["voxels"] == 12 * 10 * 9
    assert "empty.nii is empty" in found["failed"]["reason"]
    assert found["queued-options"]["priority"] == "urgent"
    assert found["waiting"]["priority"] == "low"
    assert found["waiting"]["not_before"]
    assert found["running"]["study"] == "large-2.nii"
    named = batches(queue)
    assert "1 translated" in did(f"jobs summary {named['done']} --queue {queue}")
    summary = run(f"jobs summary {named['failed']} --queue {queue}")
    assert (summary.exit_code, "empty.nii: unreadable" in summary.stderr) == (1, True)


def test_a_worker_does_the_jobs_that_are_left_as_they_were_asked_for(
    root: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(queue, monkeypatch)
    states = {name: job["state"] for name, job in jobs(queue).items()}
    names = ("queued", "queued-series", "queued-options", "running")
    assert {states[name] for name in names} == {"done"}
    assert states["waiting"] == "waiting"
    made = root / "queued"
    again, before = (without_mark(file / "b.nii.gz") for file in (made / "queued", root / "out"))
    assert again == before
    assert (made / "running" / "large-2.nii").exists()

    options = "--precision fp32 --patch 16,12,20 --overlap 0.5 --blend linear"
    did(translate(root, "b.nii.gz", "reflect", "direct", options))
    direct = (root / "direct" / "b.nii.gz").read_bytes()
    assert (made / "queued-options" / "b.nii.gz").read_bytes() == direct
    assert direct != (root / "out" / "b.nii.gz").read_bytes()
    assert (made / "queued-options" / "b.nii.gz.preview.png").exists()
    result = jobs(queue)["queued-options"]["result"]
    assert result["seams"] if "seams" in result else result["seam_score"]


@pytest.mark.slow
def test_jobs_that_ended_can_be_queued_again(
    root: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = batches(queue)
    for name in ("given-up", "cancelled"):
        assert "1 job queued again" in did(f"jobs retry {named[name]} --queue {queue}")
    work(queue, monkeypatch)
    assert {jobs(queue)[name]["state"] for name in ("given-up", "cancelled")} == {"done"}
    assert (root / "queued" / "given-up" / "large-1.nii").exists()


def test_results_of_a_manifest_are_up_to_date(root: Path) -> None:
    again = did(translate(root, "a.nii", "reflect", "out", f"{root}/in/b.nii.gz --seam-score"))
    assert "2 up to date" in again
    for name in ("stored", "sampling"):
        assert "1 up to date" in did(translate(root, "a.nii", name, f"out/{name}"))


def maps_line(root: Path, options: str = "") -> str:
    """The command that made the folder with maps."""
    back = f"--cycle-check {root}/models/stored.safetensors --cycle-map"
    options += f" --verify 1 --spread 2 --any-modality {back}"
    return translate(root, "a.nii", "calibrated", "maps", f"{root}/in/series {options}")


def test_maps_of_a_manifest_are_up_to_date(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (root / "maps").rglob("*")}
    assert "2 up to date" in did(maps_line(root))
    assert {path: path.stat().st_mtime_ns for path in (root / "maps").rglob("*")} == before


def test_a_batch_that_was_killed_is_resumed(root: Path) -> None:
    manifest = root / ".maps.cuda-cyclegan" / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    entry = json.loads(lines.pop())
    assert entry["status"] == "written"
    folder = root / "maps" / entry["output"]
    states = {folder: entry["outputs"]}
    states |= {Path(f"{folder}.map-{one['kind']}"): one["files"] for one in entry["maps"]}
    for place, files in states.items():
        for file in files:  # what a killed run left is recognised by its time, which Git changes
            os.utime(place / file["name"], ns=(file["modified_ns"],) * 2)
    manifest.write_text("".join(lines))
    line = maps_line(root, f"--report {root}/reports/maps.json")
    assert "1 translated, 1 up to date" in did(line)
    report = json.loads((root / "reports" / "maps.json").read_text())
    assert (report["runs"], report["totals"]["translated"]) == (2, 2)


def test_results_stay_up_to_date_when_the_words_of_a_model_change(root: Path) -> None:
    model = root / "models" / "reflect.safetensors"
    did(f"model edit {model} --output {root}/models/edited.safetensors --licence MIT")
    assert "1 up to date" in did(translate(root, "a.nii", "edited", "out"))


@pytest.mark.slow
def test_a_worker_keeps_results_of_a_manifest(root: Path) -> None:
    line = translate(root, "a.nii", "stored", "out/stored").replace("translate", "submit", 1)
    batch = did(f"{line.replace('--device cpu', '')} --queue {root}/new.db").strip()
    did(f"worker --queue {root}/new.db --device cpu --until-empty")
    shown = json.loads(did(f"jobs show {batch} --json --queue {root}/new.db"))
    assert [job["result"]["status"] for job in shown["jobs"]] == ["up to date"]


def test_a_result_is_due_again_when_what_the_manifest_says_has_changed(root: Path) -> None:
    line = translate(root, "a.nii", "reflect", "out", "--report report.json")
    did(line + " --overlap 0.5")
    [study] = json.loads((root / "report.json").read_text())["studies"]
    assert "settings" in study["due"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_what_it_was(root: Path, name: str) -> None:
    model = root / "models" / f"{name}.safetensors"
    did(f"model verify {model}")
    reported = json.loads(did(f"model inspect {model} --json"))
    meant = json.loads((root / "models" / f"{name}.json").read_text())
    reported.pop("bf16_error")  # of this processor
    meant.pop("bf16_error", None)
    assert reported == meant
    if name == "calibrated":
        return
    output = "out" if name == "reflect" else f"out/{name}"
    did(translate(root, "a.nii", name, "again"))
    files = root / "again" / "a.nii", root / output / "a.nii"
    (again, _), (before, _) = map(without_mark, files)
    assert again == before
    # The CPU's norms are exact since, so values differ in rounding.
    again, before = (nibabel.load(file).get_fdata() for file in files)
    assert np.allclose(again, before, rtol=0, atol=3e-5)


def test_reports_are_read(root: Path) -> None:
    first, second = root / "reports" / "first.json", root / "reports" / "second.json"
    assert "1 translated, 1 failed" in did(f"report {first}")
    reported = did(f"report {second}")
    assert "1 translated, 1 up to date, 1 failed" in reported
    assert "a.nii" in did(f"report {first} {second}")
    did(f"report {first} {second} --html {root}/page.html")
    page = (root / "page.html").read_text()
    assert "empty.nii" in page
    assert did(f"report {root}/reports/preview.json --html {root}/pictures.html")


@pytest.mark.parametrize("name", ["first", "preview", "maps"])
def test_a_report_of_today_says_all_that_it_said(root: Path, name: str) -> None:
    options = f"--seam-score --overwrite --report {root}/new.json"
    line = maps_line(root, options) if name == "maps" else ""
    did(line or translate(root, "a.nii", "reflect", "new", f"--preview {options}"))
    stored = json.loads((root / "reports" / f"{name}.json").read_text())
    now = json.loads((root / "new.json").read_text())
    assert set(places(stored)) <= set(places(now))
    assert stored["schema"] == now["schema"]


@pytest.mark.slow
def test_a_benchmark_of_today_says_all_that_it_said(root: Path) -> None:
    small = "--device cpu --ngf 4 --blocks 1 --patch 16,16,16 --seconds 0.01"
    did(f"bench {small} --json {root}/bench.json")
    stored = json.loads((root / "reports" / "bench.json").read_text())
    now = json.loads((root / "bench.json").read_text())
    assert set(places(stored)) <= set(places(now))
    assert stored["schema"] == now["schema"]


def places(value: Any, place: str = "") -> Iterator[str]:
    """The names of all fields, with those of the objects around them."""
    match value:
        case dict():
            for key, inner in value.items():
                yield f"{place}{key}"
                yield from places(inner, f"{place}{key}/")
        case list():
            for inner in value:
                yield from places(inner, place)
        case _:
            pass


def test_a_report_is_gone_on_with(root: Path) -> None:
    report = root / "reports" / "first.json"
    line = translate(root, "a.nii", "reflect", "out", f"--seam-score --report {report}")
    assert "1 up to date" in did(line)
    now = json.loads(report.read_text())
    assert (now["runs"], [row["status"] for row in now["studies"]]) == (2, ["translated"])


def test_rates_foretell_seconds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = translate(root, "large-1.nii", "reflect", "new").replace("translate", "plan", 1)
    assert "Total time: known after" in did(line)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache-home"))
    shutil.copytree(root / "cache", root / "cache-home" / "cuda-cyclegan")
    assert re.search(r"Total time: \d", did(line))


def test_tuning_results_of_0_2_0_are_measured_again(root: Path) -> None:
    """Their file has another name: a newer version neither reads nor changes it."""
    ones = (1, 1, 1)
    shape = ConvShape(1, (8, 8, 8), 8, (8, 8, 8), 8, (3, 3, 3), ones, ones, ones, "fp16")
    identity = {"card": "NVIDIA H200", "driver": "12080", "cudnn": "91002", "precision": "fp16"}
    [stored] = (root / "cache").glob("plans-*.json")
    before = stored.read_bytes()
    cache = TuningCache(root / "cache", identity)
    assert cache.get(key_of(shape)) == NOTHING
    cache.put(key_of(shape), TuningResult("full", 0, (Candidate("eng0", 0, 10.5),)))
    assert stored.read_bytes() == before


JOBS = json.loads((STORED / "jobs.json").read_text())


@pytest.mark.parametrize("name", JOBS)
def test_jobs_keys_and_fingerprints_are_those_of_0_2_0(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option away from its default; another key would repeat work, as would a fingerprint."""
    monkeypatch.chdir(tmp_path)
    Path("scan.nii").write_bytes(b"scan")
    os.utime("scan.nii", ns=(MODIFIED_NS, MODIFIED_NS))
    stored = JOBS[name]
    job = StudyJob.from_json(stored["job"])
    assert job.to_json() == stored["job"]
    assert job.key() == stored["key"]
    options = replace(job.options, precision=job.options.precision or "fp32").resolved()
    assert options.fingerprint() == stored["fingerprint"]


@pytest.mark.parametrize("place", ["named", "user"])
def test_a_config_file_is_obeyed(
    root: Path, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "configured" / "cuda-cyclegan"
    folder.mkdir(parents=True)
    shutil.copy(root / "config" / "cuda-cyclegan.toml", folder)
    if place == "user":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    named = f"--config {folder}/cuda-cyclegan.toml " if place == "named" else ""
    did(named + translate(root, "a.nii", "reflect", "new", f"--report {root}/report.json"))
    report = json.loads((root / "report.json").read_text())
    settings = report["settings"]
    assert (settings["overlap"], settings["blend"]) == (0.5, "linear")
    assert (settings["patch"], settings["precision"]) == ([16, 12, 20], "fp32")
    [study] = report["studies"]
    assert study["preview"]
    assert study["seam_score"]
    line = translate(root, "a.nii", "reflect", "other").replace("translate", "submit", 1)
    batch = did(named + line.replace("--device cpu", "")).strip()
    shown = json.loads(did(f"jobs show {batch} --json --queue {root}/configured.db"))
    assert [job["priority"] for job in shown["jobs"]] == ["urgent"]
