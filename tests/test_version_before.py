"""Files that version 0.1.0 left are read by this one: a renamed field would lose a user's work.

How each was made stands in tests/fixtures/version_0_1/make.py.
"""

import json
import os
import platform
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support import queue_postgres
from typer.testing import CliRunner, Result

from cuda_cyclegan.cli.app import app
from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.cuda.tuning.cache import Candidate, TuningCache, TuningResult, key_of
from cuda_cyclegan.pipelines.jobs.queue import liveness
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.worker import process
from cuda_cyclegan.pipelines.jobs.worker.messages import WorkerSettings

nibabel: Any = _nibabel
STORED = Path(__file__).parent / "fixtures" / "version_0_1"
MODIFIED_NS = 1_700_000_000_000_000_000
MODELS = ("reflect", "stored", "unet", "sampling")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored files where they would lie if the version before had run here."""
    root = tmp_path / "root"
    shutil.copytree(STORED, root, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in root.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".sql", ".toml"):
            text = path.read_text().replace("@ROOT@", str(root))
            path.write_text(text.replace("@HOST@", platform.node()))
    for path in (root / "in").iterdir():
        os.utime(path, ns=(MODIFIED_NS, MODIFIED_NS))
    home = tmp_path / "home"
    for kind, place in {"CACHE": home / "cache", "CONFIG": home / "config"}.items():
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(place))
    monkeypatch.chdir(root)
    return root


def run(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def without_mark(file: Path) -> tuple[bytes, bytes]:
    """Header and voxels of a result; those of version 0.1 have no mark."""
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
    """What `--queue` takes: the stored rows in a database."""
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
    monkeypatch.setattr(liveness, "GRACE_SECONDS", 0.0)
    settings = WorkerSettings(until_empty=True)
    assert process.work(queue_place(queue), "cpu", settings, lambda _: None) == "empty"


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
    assert {states[name] for name in ("queued", "queued-options", "running")} == {"done"}
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
    again = run(translate(root, "", "reflect", "out", "--seam-score").replace("/in/", "/in"))
    assert again.exit_code == 1
    assert "2 translated, 2 up to date, 1 failed" in again.stdout
    for name in MODELS[1:]:
        line = translate(root, "a.nii", name, f"out/{name}", "--inference patches")
        assert "1 up to date" in did(line)


def test_results_are_made_anew_where_patches_are_no_longer_the_default(root: Path) -> None:
    assert "1 translated" in did(translate(root, "a.nii", "stored", "out/stored"))


def test_results_stay_up_to_date_when_the_words_of_a_model_change(root: Path) -> None:
    model = root / "models" / "reflect.safetensors"
    did(f"model edit {model} --output {root}/models/edited.safetensors --licence MIT")
    again = run(translate(root, "", "edited", "out").replace("/in/", "/in"))
    assert "2 translated, 2 up to date, 1 failed" in again.stdout
    twice = run(translate(root, "", "reflect", "out").replace("/in/", "/in"))
    assert "4 up to date, 1 failed" in twice.stdout


@pytest.mark.slow
def test_a_worker_keeps_results_of_the_version_before(root: Path) -> None:
    line = translate(root, "a.nii", "stored", "out/stored", "--inference patches")
    line = line.replace("translate", "submit", 1)
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
    told = json.loads(did(f"model inspect {model} --json"))
    meant = json.loads((root / "models" / f"{name}.json").read_text())
    assert told.pop("established") == "not recorded"
    told.pop("bf16_error")  # of this processor
    assert told.pop("network")["parameters"] == meant["parameters"]
    assert told == meant
    output = "out" if name == "reflect" else f"out/{name}"
    did(translate(root, "a.nii", name, "again", "--inference patches"))
    files = root / "again" / "a.nii", root / output / "a.nii"
    (again, _), (before, _) = map(without_mark, files)
    assert again == before
    # The CPU's norms are exact since, so values differ in rounding.
    again, before = (nibabel.load(file).get_fdata() for file in files)
    assert np.allclose(again, before, rtol=0, atol=3e-5)


def test_reports_are_read(root: Path) -> None:
    first, second = root / "reports" / "first.json", root / "reports" / "second.json"
    assert "1 translated, 1 failed" in did(f"report {first}")
    told = did(f"report {second}")
    assert "1 translated, 1 up to date, 1 failed" in told
    assert "a.nii" in did(f"report {first} {second}")
    did(f"report {first} {second} --html {root}/page.html")
    page = (root / "page.html").read_text()
    assert "empty.nii" in page
    assert did(f"report {root}/reports/preview.json --html {root}/pictures.html")


def test_a_report_of_today_says_all_that_it_said(root: Path) -> None:
    line = translate(root, "a.nii", "reflect", "new", "--seam-score --report new.json")
    did(line)
    for name in ("first", "preview"):
        stored = json.loads((root / "reports" / f"{name}.json").read_text())
        now = json.loads((root / "new.json").read_text())
        assert set(places(stored)) - set(places(now)) <= {"studies/due"}
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


def test_rates_foretell_seconds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = translate(root, "large-1.nii", "reflect", "new").replace("translate", "plan", 1)
    assert "Seconds in all: not known" in did(line)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache-home"))
    shutil.copytree(root / "cache", root / "cache-home" / "cuda-cyclegan")
    assert re.search(r"Seconds in all: \d", did(line))


def test_measured_plans_are_found(root: Path) -> None:
    ones = (1, 1, 1)
    shape = Convolution(1, (8, 8, 8), 8, (8, 8, 8), 8, (3, 3, 3), ones, ones, ones, "fp16")
    identity = {"card": "NVIDIA H200", "driver": "12080", "cudnn": "91002", "precision": "fp16"}
    cache = TuningCache(root / "cache", identity)
    fast, slow = Candidate("eng0_k2=1", 4096, 10.5), Candidate("own kernel", 0, 30.25)
    assert cache.get(key_of(shape)) == TuningResult("full", 1 << 30, (fast, slow))
    assert cache.time("program of a test") == 12.5


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
