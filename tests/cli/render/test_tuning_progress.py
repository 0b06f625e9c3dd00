"""The search for plans is seen while it runs, as lines and as a bar."""

import io
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from cuda_cyclegan.cli.commands.queue import worker
from cuda_cyclegan.cli.commands.queue.worker import JobLog, _failure_hook
from cuda_cyclegan.cli.render.progress_bars import LiveProgress
from cuda_cyclegan.cli.render.progress_lines import PlainLines
from cuda_cyclegan.pipelines.events import BatchStarted, DeviceOpened, Remark, Tuning

EVENTS = [
    BatchStarted(()),
    Tuning("convolution 3x3x3, 64 to 64 channels, 1 x 34x34x34", 0.0),
    Tuning("convolution 3x3x3, 64 to 128 channels, 1 x 65x65x65", 0.5),
    Tuning("", 1.0),
    DeviceOpened("NVIDIA H200"),
]


def test_lines_show_its_beginning_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    show = PlainLines(quiet=False, verbose=False)
    for event in EVENTS:
        show(event)
    reported = capsys.readouterr().err.splitlines()
    assert [line for line in reported if "Tuning" in line] == [
        "Tuning: measuring tactics of the convolutions on this GPU (once; --tune sets the level)",
        "Tuning: done and stored for later starts",
    ]
    assert reported[-1] == "Device: NVIDIA H200"


def test_layers_that_are_measured_one_by_one_are_one_tuning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show = PlainLines(quiet=False, verbose=False)
    for event in (*EVENTS, *EVENTS[1:4], *EVENTS[1:4]):
        show(event)
    assert capsys.readouterr().err.count("Tuning: done") == 1


def test_quiet_lines_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    show = PlainLines(quiet=True, verbose=False)
    for event in EVENTS:
        show(event)
    assert capsys.readouterr().err == ""


def test_a_worker_shows_when_it_begins_and_what_it_came_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=iter((1.0, 2.0, 3.5)).__next__))
    log = JobLog(_failure_hook(""))
    for event in EVENTS:
        if isinstance(event, Tuning):
            log.handle("cuda:1", event)
    first, last = capsys.readouterr().err.splitlines()
    assert re.search(r"^\S+ [\d:]+ cuda:1: tuning: measuring tactics of the convolutions", first)
    assert re.search(r" cuda:1: tuning done: 2 tactics stored, 2\.5\d* s$", last)


def test_a_worker_shows_of_a_plan_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    JobLog(_failure_hook("")).handle("cuda:1", Remark("cuDNN plan eng7 is not used on this GPU."))
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("cuda:1: cuDNN plan eng7 is not used on this GPU.")


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_the_convolution_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    console = Console(file=screen, width=100)
    with LiveProgress(console, verbose=False) as live:
        for event in EVENTS[:3]:
            live(event)
        live._progress.refresh()
        seen = screen.getvalue()
        for event in EVENTS[3:]:
            live(event)
    assert "Tuning this GPU (once)" in seen
    assert "64 to 128 channels" in seen
    assert "Tuning: done and stored for later starts" in screen.getvalue()
