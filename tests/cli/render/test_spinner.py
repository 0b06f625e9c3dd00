"""A sign of life where nothing else is printed for a while."""

import io
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from support.processes import started
from support.standing import standing
from support.waiting import ENOUGH

from cuda_cyclegan.cli.render import terminal
from cuda_cyclegan.cli.render.terminal import spinner


class Screen(io.StringIO):
    """A terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def shows(self, words: str) -> bool:
        """Whether it comes to show them."""
        with self._written:
            return self._written.wait_for(lambda: words in self.getvalue(), ENOUGH)


def screen_for_errors(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return a screen for standard error; called by the test itself, as pytest installs its own
    capture before it.
    """
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_it_appears_on_a_terminal_and_takes_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_for_errors(monkeypatch)
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    threads = threading.enumerate()
    with spinner("Searching for studies") as rename:
        assert screen.shows("Searching for studies")
        rename("Reading scans")
        assert screen.shows("Reading scans")
    assert sys.stderr is screen
    written = screen.getvalue()
    for thread in set(threading.enumerate()) - set(threads):
        thread.join(ENOUGH)
    assert screen.getvalue() == written


def test_immediate_work_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_for_errors(monkeypatch)
    monkeypatch.setattr(terminal, "PATIENCE", ENOUGH)
    with spinner("Searching for studies"):
        pass
    assert screen.getvalue() == ""


def test_a_log_gets_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    threads = set(threading.enumerate())
    with spinner("Searching for studies"):
        assert set(threading.enumerate()) <= threads, "nobody is there who could write"
    assert capsys.readouterr().err == ""


STEPS = "cuda_cyclegan.pipelines.study.translator:StudyTranslator"


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "place", "call", "words"),
    [
        ("discover", ("cuda_cyclegan.io.discovery", "discover"), 1, "Searching for studies"),
        ("plan", (STEPS, "read"), 2, "1 of 2 studies"),
        pytest.param(
            "bench",
            ("cuda_cyclegan.pipelines.bench.measurement", "noise"),
            1,
            "Measuring",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_no_command_is_silent_for_two_seconds(
    tmp_path: Path, command: str, place: tuple[str, str], call: int, words: str
) -> None:
    """The command stands still until the terminal shows what it does."""
    assert terminal.PATIENCE < 2
    model = tiny_model(tmp_path / "model.safetensors")
    for name in "ab":
        scan(tmp_path / "in" / f"{name}.nii")
    arguments = {
        "discover": [tmp_path / "in"],
        "plan": [tmp_path / "in", "--model", model, "--output", tmp_path / "out"],
        "bench": ["--model", model, "--device", "cpu", "--seconds", "0.01"],
    }[command]
    ours, theirs = os.openpty()
    with started(
        standing(place, call, command, *map(str, arguments)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        while words.encode() not in shown and select.select([ours], [], [], ENOUGH)[0]:
            shown += os.read(ours, 1 << 16)
        out, _ = process.communicate(b"go on\n")
    os.close(ours)
    assert process.returncode == 0
    assert words.encode() in shown
    assert words.encode() not in out
