"""Ctrl-C, SIGTERM and kill -9: nothing half-written, and the next run does exactly the rest."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.batch_world import scan, tiny_model

from cuda_cyclegan.pipelines.manifest import FOLDER

STUDIES = 6
COMMAND = [sys.executable, "-m", "cuda_cyclegan", "translate"]


class Folders:
    """Small studies that take some tenths of a second each."""

    def __init__(self, root: Path) -> None:
        self.inputs, self.output = root / "scans", root / "results"
        self.report = root / "report.json"
        self.model = tiny_model(root / "model.safetensors")
        for index in range(STUDIES):
            scan(self.inputs / f"{index}.nii.gz", index, (40, 36, 32))

    def start(self, output: Path | None = None) -> "subprocess.Popen[str]":
        paths = [self.inputs, "--model", self.model, "--output", output or self.output]
        command = [*COMMAND, *map(str, paths), "--report", str(self.report), "--overlap", "0.5"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def finish(self, output: Path | None = None) -> dict[str, int]:
        """Run to the end; how many studies came to what."""
        process = self.start(output)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        return json.loads(self.report.read_text())["totals"]

    def made(self, output: Path | None = None) -> dict[str, bytes]:
        folder = output or self.output
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.nii.gz"))}

    def parts(self) -> list[Path]:
        return [path for path in self.output.rglob("*") if path.name.endswith(".part")]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def wait_for_line(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"the run ended before it said {word!r}")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_a_signal_stops_in_order_and_the_next_run_does_the_rest(
    folders: Folders, number: signal.Signals, status: int
) -> None:
    process = folders.start()
    wait_for_line(process, "[2/6]")
    process.send_signal(number)
    out, errors = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in errors
    told = re.search(r"Stopped with (\d) of 6 studies done; to go on: cuda-cyclegan (.+)", errors)
    assert told is not None
    assert told[2].startswith("translate ")
    done = int(told[1])
    assert 2 <= done < STUDIES
    assert f"{done} translated" in out
    assert len(folders.made()) == done
    assert folders.parts() == []

    report = json.loads(folders.report.read_text())
    assert report["interrupted"] is True
    totals = report["totals"]
    assert totals["translated"] == done
    assert done + totals["interrupted"] + totals["not_reached"] == STUDIES

    totals = folders.finish()
    assert (totals["up_to_date"], totals["translated"]) == (done, STUDIES - done)


def test_a_signal_before_the_first_study_is_told_without_a_traceback(folders: Folders) -> None:
    process = folders.start()
    wait_for_line(process, "Device: ")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert "Stopped" in errors


def test_killed_at_random_moments_the_runs_add_up(folders: Folders, tmp_path: Path) -> None:
    untroubled = tmp_path / "untroubled"
    begin = time.perf_counter()
    folders.finish(untroubled)
    whole_run = time.perf_counter() - begin
    moments = random.Random(7)
    on_record: set[str] = set()
    for _ in range(8):
        process = folders.start()
        try:
            process.communicate(timeout=moments.uniform(0.3, 1.0) * whole_run)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        before, on_record = on_record, recorded(folders.output)
        assert before <= on_record
        complete = folders.made(untroubled)
        assert all(complete[name] == content for name, content in folders.made().items())
        assert on_record <= set(folders.made())

    totals = folders.finish()
    assert totals["up_to_date"] == len(on_record)
    assert totals["translated"] == STUDIES - len(on_record)
    assert folders.made() == folders.made(untroubled)
    assert folders.parts() == []


def recorded(output: Path) -> set[str]:
    """Outputs that the manifest lists as written, by whole lines alone."""
    try:
        content = (output / FOLDER / "manifest.jsonl").read_text()
    except FileNotFoundError:
        return set()
    lines = content[: content.rfind("\n") + 1].splitlines()
    newest = {entry["output"]: entry["status"] for entry in map(json.loads, lines)}
    return {name for name, status in newest.items() if status == "written"}


def test_two_runs_at_once_do_not_share_a_folder(folders: Folders) -> None:
    first = folders.start()
    wait_for_line(first, "Device: ")
    second = folders.start()
    _, errors = second.communicate()
    _, first_errors = first.communicate()
    assert second.returncode == 2
    assert "Another run is writing to" in errors
    assert first.returncode == 0, first_errors
    assert len(folders.made()) == STUDIES


def test_a_part_that_a_killed_run_left_is_removed(folders: Folders) -> None:
    folders.finish()
    program = (
        "import os, pathlib, sys\n"
        "from cuda_cyclegan.io.atomic import whole_file\n"
        "with whole_file(pathlib.Path(sys.argv[1])) as part:\n"
        "    part.write_bytes(b'half')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    target = folders.output / "deep" / "a.nii.gz"
    killed = subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(folders.parts()) == 1
    folders.finish()
    assert folders.parts() == []
    assert list(target.parent.iterdir()) == []
