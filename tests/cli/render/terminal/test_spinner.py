"""A sign of life where nothing else is printed for a while."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

from cuda_cyclegan.cli.render.terminal import spinner as sign
from cuda_cyclegan.cli.render.terminal.spinner import spinner

SLOW = """
import importlib, sys, time
place, name = sys.argv[1:3]
del sys.argv[1:3]
module = importlib.import_module(place)
real = getattr(module, name)
def slow(*arguments, **named):
    time.sleep(1.4)
    return real(*arguments, **named)
setattr(module, name, slow)
importlib.import_module("cuda_cyclegan.cli.app").main()
"""
"""The command, but a function takes long."""


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def screen_for_errors(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """To be called by the test itself, as pytest puts its own capture in place before it."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def seen(screen: Screen, words: str) -> bool:
    end = time.monotonic() + 20
    while words not in screen.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return words in screen.getvalue()


def test_it_appears_on_a_terminal_and_takes_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_for_errors(monkeypatch)
    monkeypatch.setattr(sign, "PATIENCE", 0.0)
    with spinner("Looking for studies") as rename:
        assert seen(screen, "Looking for studies")
        rename("Reading scans")
        assert seen(screen, "Reading scans")
    assert sys.stderr is screen
    written = screen.getvalue()
    time.sleep(0.3)
    assert screen.getvalue() == written


def test_what_is_done_at_once_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_for_errors(monkeypatch)
    with spinner("Looking for studies"):
        pass
    assert screen.getvalue() == ""


def test_a_log_gets_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign, "PATIENCE", 0.0)
    with spinner("Looking for studies"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        ("discover", ("cuda_cyclegan.io.discovery", "discover"), "Looking for studies"),
        ("plan", ("cuda_cyclegan.pipelines.dry_run", "read_study"), "1 of 2 studies"),
        ("bench", ("cuda_cyclegan.pipelines.bench.measurement", "noise"), "Measuring"),
    ],
)
def test_no_command_is_silent_for_two_seconds(
    tmp_path: Path, command: str, place: tuple[str, str], words: str
) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    for name in "ab":
        scan(tmp_path / "in" / f"{name}.nii")
    arguments = {
        "discover": [tmp_path / "in"],
        "plan": [tmp_path / "in", "--model", model, "--output", tmp_path / "out"],
        "bench": ["--model", model, "--device", "cpu", "--seconds", "0.01"],
    }[command]
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, *place, command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        out, _ = process.communicate()
        shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0
    assert words in shown
    assert words.encode() not in out
