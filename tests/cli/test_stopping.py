"""Ctrl-C and SIGTERM at chosen places: nothing half-written, and the next run does the rest."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from support.io_files import unpacked
from support.processes import started
from support.standing import SAVING, STANDS, standing
from support.waiting import ENOUGH, wait_for
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app

STUDIES = 6
COMMAND = [sys.executable, "-m", "cuda_cyclegan", "translate"]
DROPPING = """
import importlib, signal, sys, time, weakref
lines = importlib.import_module("cuda_cyclegan.cli.render.progress_lines")
study_run = importlib.import_module("cuda_cyclegan.pipelines.study.translator")
infer, handle = study_run.translate_array, lines.PlainLines.__call__
calls = iter(range(9))
class Thing: pass
def stand(*arguments, **named):
    if next(calls):
        time.sleep(600)
    return infer(*arguments, **named)
def drop(*arguments):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
def interrupted(self, event):
    handle(self, event)
    if type(event).__name__ == "StudyDone":
        lines.PlainLines.__call__ = handle
        drop()
study_run.translate_array, lines.PlainLines.__call__ = stand, interrupted
importlib.import_module("cuda_cyclegan.cli.app").main()
"""
"""The command, but a signal comes after the first study, where Python drops exceptions; the second
study stands still."""

OPENING = ("cuda_cyclegan.pipelines.run.networks", "open_generator")
INFERRING = ("cuda_cyclegan.pipelines.study.translator", "translate_array")
SEARCHING = ("cuda_cyclegan.io.discovery", "without_directory")
WRITING = ("cuda_cyclegan.io.files.streams", "write_voxels")


class Folders:
    """Small studies that take some hundredths of a second each."""

    def __init__(self, root: Path, running: ExitStack) -> None:
        self._running = running
        self.inputs, self.output = root / "scans", root / "results"
        self.report = root / "report.json"
        self.model = tiny_model(root / "model.safetensors")
        for index in range(STUDIES):
            scan(self.inputs / f"{index}.nii.gz", index, (24, 20, 20))

    def start(self) -> "subprocess.Popen[str]":
        return self._open([*COMMAND, *self._arguments()])

    def start_and_stand(
        self, place: tuple[str, str], call: int, patience: float = 1, command: str = "translate"
    ) -> "subprocess.Popen[str]":
        """A run that waits at a place in the program, which all studies before it have left behind.

        patience: seconds that it waits for results to get stored once it is stopped.
        """
        line = standing(place, call, command, *self._arguments(command), patience=patience)
        process = self._open(line)
        before = [f"[{call - 1}/{STUDIES}] "] if call > 1 else []
        wait_for(process, STANDS, *before)
        return process

    def start_and_drop(self) -> "subprocess.Popen[str]":
        return self._open([sys.executable, "-c", DROPPING, "translate", *self._arguments()])

    def finish(self) -> dict[str, int]:
        """Run to the end; how many studies came to what in this run."""
        self.report.unlink(missing_ok=True)
        done = CliRunner().invoke(app, ["translate", *self._arguments()])
        assert done.exit_code == 0, done.output
        return json.loads(self.report.read_text())["totals"]

    def made(self) -> dict[str, bytes]:
        return {path.name: unpacked(path) for path in sorted(self.output.glob("*.nii.gz"))}

    def parts(self) -> list[Path]:
        return [path for path in self.output.rglob("*") if path.name.endswith(".part")]

    def _arguments(self, command: str = "translate") -> list[str]:
        if command == "discover":
            return [str(self.inputs)]
        paths = [self.inputs, "--model", self.model, "--output", self.output]
        report = ["--report", str(self.report)] if command == "translate" else []
        return [*map(str, paths), *report]

    def _open(self, command: list[str]) -> "subprocess.Popen[str]":
        return self._running.enter_context(
            started(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        )


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    with ExitStack() as running:
        yield Folders(tmp_path, running)


@pytest.mark.process
@pytest.mark.parametrize(
    ("place", "number", "status"),
    [
        (INFERRING, signal.SIGINT, 130),
        (WRITING, signal.SIGTERM, 143),
        pytest.param(INFERRING, signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
    ids=["Ctrl-C while inferring", "SIGTERM while writing", "terminal closed"],
)
def test_a_signal_stops_in_order_and_the_next_run_does_the_rest(
    folders: Folders, place: tuple[str, str], number: signal.Signals, status: int
) -> None:
    process = folders.start_and_stand(place, 3)
    if place == WRITING:
        assert len(folders.parts()) == 1
    process.send_signal(number)
    out, errors = process.communicate()
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    reported = re.search(
        r"Stopped with 2 of 6 studies done; to continue:\n  cuda-cyclegan (.+)", errors
    )
    assert reported is not None
    assert reported[1].startswith("translate ")
    assert "2 translated" in out
    assert set(folders.made()) == {"0.nii.gz", "1.nii.gz"}
    assert folders.parts() == []

    report = json.loads(folders.report.read_text())
    assert report["interrupted"] is True
    totals = report["totals"]
    assert totals["translated"] == 2
    assert totals["interrupted"] >= 1
    assert totals["interrupted"] + totals["not_reached"] == 4

    totals = folders.finish()
    assert (totals["up_to_date"], totals["translated"]) == (2, 4)


@pytest.mark.slow
def test_a_signal_whose_exception_python_drops_stops_the_run_nevertheless(
    folders: Folders,
) -> None:
    process = folders.start_and_drop()
    _, errors = process.communicate()
    assert process.returncode == 143, errors
    assert "Stopped with" in errors
    assert "ignored" not in errors
    assert folders.parts() == []
    assert folders.finish()["up_to_date"] == 1


@pytest.mark.process
def test_a_result_that_is_being_written_at_a_signal_is_kept(folders: Folders) -> None:
    process = folders.start_and_stand(WRITING, 3, patience=600)
    process.send_signal(signal.SIGTERM)
    wait_for(process, SAVING)
    process.communicate("go on\n")
    assert process.returncode == 143
    assert {"0.nii.gz", "1.nii.gz", "2.nii.gz"} <= set(folders.made())
    assert json.loads(folders.report.read_text())["totals"]["translated"] == len(folders.made())
    assert folders.parts() == []


@pytest.mark.process
def test_a_second_signal_does_not_wait_for_the_disk(folders: Folders) -> None:
    process = folders.start_and_stand(WRITING, 3, patience=600)
    process.send_signal(signal.SIGINT)
    wait_for(process, SAVING)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=ENOUGH)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "2 translated" in out
    assert set(folders.made()) == {"0.nii.gz", "1.nii.gz"}
    assert folders.parts() == []
    assert folders.finish()["translated"] == 4


@pytest.mark.slow
def test_a_signal_before_the_first_study_is_reported_without_a_traceback(folders: Folders) -> None:
    process = folders.start_and_stand(OPENING, 1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert "Traceback" not in errors
    assert "Stopped" in errors


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "number", "status"),
    [
        ("discover", signal.SIGINT, 130),
        ("plan", signal.SIGTERM, 143),
        ("submit", signal.SIGHUP, 129),
    ],
)
def test_a_search_that_is_stopped_reports_it(
    folders: Folders, command: str, number: signal.Signals, status: int
) -> None:
    process = folders.start_and_stand(SEARCHING, 1, command=command)
    process.send_signal(number)
    out, errors = process.communicate()
    assert (process.returncode, out, errors) == (status, "", "Stopped.\n")


@pytest.mark.process
def test_two_runs_at_once_do_not_share_a_folder(folders: Folders) -> None:
    first = folders.start_and_stand(INFERRING, 1)
    second = folders.start()
    _, errors = second.communicate()
    first.kill()
    first.communicate()
    assert second.returncode == 2
    assert "Another run is writing to" in errors
    assert folders.finish()["translated"] == STUDIES


@pytest.mark.process
def test_a_part_that_a_killed_run_left_is_removed(folders: Folders) -> None:
    process = folders.start_and_stand(WRITING, 1)
    process.kill()
    process.communicate()
    assert len(folders.parts()) == 1
    assert folders.finish()["translated"] == STUDIES
    assert folders.parts() == []
