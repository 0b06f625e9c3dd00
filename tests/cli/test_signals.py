"""Stop signals that arrive where Python cannot pass an exception on, or more than once."""

import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from support.batch_world import scan, tiny_model
from support.processes import started
from support.waiting import ENOUGH

from cuda_cyclegan.cli import signals
from cuda_cyclegan.cli.errors import errors_reported
from cuda_cyclegan.cli.signals import stop_signals

LONG = ENOUGH  # seconds; only a stop that is lost lets so much pass


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need long between two signals."""
    monkeypatch.setattr(signals, "PATIENCE_SECONDS", ENOUGH)


class Thing:
    pass


def in_a_callback(act: Callable[[], object]) -> None:
    thing = Thing()
    kept = weakref.ref(thing, lambda _: act())
    del thing
    assert kept() is None


def in_a_finalizer(act: Callable[[], object]) -> None:
    class Finalized:
        def __del__(self) -> None:
            act()

    Finalized()


def in_two(act: Callable[[], object]) -> None:
    in_a_finalizer(lambda: (in_a_callback(act), time.sleep(LONG)))


@pytest.mark.parametrize("again", [signals.AGAIN_SECONDS, 1e-6], ids=["later", "at once"])
@pytest.mark.parametrize("place", [in_a_callback, in_a_finalizer, in_two])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_that_python_drops_comes_again(
    again: float,
    place: Callable[[Callable[[], object]], None],
    number: signal.Signals,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal comes immediately, as on a machine so busy that the first callback has not
    returned.
    """
    monkeypatch.setattr(signals, "AGAIN_SECONDS", again)

    def run() -> None:
        with stop_signals():
            place(lambda: signal.raise_signal(number))
            time.sleep(LONG)
            raise AssertionError("the stop is lost")

    with pytest.raises(typer.Exit) as left:
        run()
    assert left.value.exit_code == status
    assert capsys.readouterr().err == "Stopped.\n"


def test_other_errors_that_python_drops_are_reported_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: dropped.append(lost.exc_type))
    with stop_signals():
        in_a_callback(lambda: 1 // 0)
    assert dropped == [ZeroDivisionError]


def test_nothing_comes_after_the_end() -> None:
    before = signal.getsignal(signal.SIGALRM), sys.unraisablehook
    with stop_signals():
        in_a_callback(lambda: signal.raise_signal(signal.SIGTERM))
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert (signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("second", STOPPING)
def test_a_second_signal_does_not_disturb_the_cleaning_up_of_the_first(
    second: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned: list[str] = []

    def run() -> None:
        with stop_signals():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(second)
                cleaned.append("all")

    with pytest.raises(typer.Exit) as left:
        run()
    assert cleaned == ["all"]
    assert left.value.exit_code == 143
    assert capsys.readouterr().err == "Stopped.\n"


@pytest.mark.parametrize("second", STOPPING)
def test_a_second_signal_while_the_first_is_reported_of(
    second: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def interrupted(line: str, _: object) -> None:
        signal.raise_signal(second)
        said.append(line)

    def run() -> None:
        with stop_signals():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(signals, "print_line", interrupted)
    with pytest.raises(typer.Exit) as left:
        run()
    assert said == ["Stopped."]
    assert left.value.exit_code == 130


def test_second_signal_where_it_is_welcome_comes_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard = 0

    def run() -> None:
        nonlocal heard
        with stop_signals() as stop, stop.again():
            for _ in range(4):
                try:
                    signal.raise_signal(signal.SIGINT)
                except KeyboardInterrupt:
                    heard += 1

    run()
    assert heard == 2
    assert capsys.readouterr().err == ""


def test_a_stop_that_was_lost_in_a_library_is_raised_again() -> None:
    stop = signals.Stop()
    stop.check()
    with pytest.raises(KeyboardInterrupt):
        stop.handle(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        stop.check()


def give_back_twice(is_hit: bool) -> None:
    lock = threading.Lock()
    with lock:
        lock.release()
        if is_hit:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("is_hit", [True, False])
def test_a_stop_that_hits_a_lock(is_hit: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Python gives back a lock that it does not hold any more, which is an error of its own."""
    with pytest.raises(typer.Exit) as left, stop_signals(), errors_reported(verbose=False):
        give_back_twice(is_hit)
    said = capsys.readouterr().err
    if is_hit:
        assert (left.value.exit_code, said) == (130, "Stopped.\n")
    else:
        assert left.value.exit_code == 1
        assert "release unlocked lock" in said


def test_second_request_after_a_while_does_not_wait_for_what_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, left = iter([0.0, ENOUGH - 0.1, ENOUGH + 0.1]), list[int]()
    clock = SimpleNamespace(monotonic=lambda: next(now))  # for nobody else in this process
    monkeypatch.setattr(signals, "time", clock)
    monkeypatch.setattr(signals.os, "_exit", left.append)
    stop = signals.Stop()
    with pytest.raises(KeyboardInterrupt):
        stop.handle(signal.SIGTERM, None)
    stop.handle(signal.SIGTERM, None)
    assert left == []
    with pytest.raises(KeyboardInterrupt):  # as this process was not ended after all
        stop.handle(signal.SIGTERM, None)
    assert left == [143]


PATIENT = f"""
import runpy
from cuda_cyclegan.cli import signals
signals.PATIENCE_SECONDS = {ENOUGH}
runpy.run_module("cuda_cyclegan", run_name="__main__", alter_sys=True)
"""
"""The command, for which a busy machine may need long to clean up."""


MANY = 1000
"""Signals of a hail; one that has no end keeps the command from ending, too."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["watch", "translate"])
def test_a_hail_of_signals_shows_no_traceback(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    for index in range(20):
        scan(tmp_path / "in" / f"{index}.nii", index)
    (tmp_path / "own").mkdir(mode=0o700)
    model = tiny_model(tmp_path / "model.safetensors")
    arguments = [command, tmp_path / "in", "--model", model, "--output", tmp_path / "out"]
    arguments += ["--queue", tmp_path / "own" / "queue.db"] if command == "watch" else []
    command_line = [sys.executable, "-c", PATIENT, *map(str, arguments)]
    with started(
        command_line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        first = process.stderr.readline()
        for _ in range(MANY):
            process.send_signal(number)
            time.sleep(0.0005)
        _, said = process.communicate(timeout=ENOUGH)
    assert process.returncode in (128 + number, -number), said
    assert "Stopped" in said, first + said
    assert "Traceback" not in said
    assert "rror" not in said
    assert "ignored" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_any_command_runs_shows_no_traceback(number: signal.Signals) -> None:
    program = f"""
import importlib, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
start = importlib.import_module("cuda_cyclegan.__main__")
app = importlib.import_module("cuda_cyclegan.cli.app")
app.replace_streams = lambda: signal.raise_signal({int(number)})
start.main()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-number, "")


STALLING = """
import os, sys, time
print("importing", file=sys.stderr, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "start",
    [["-m", "cuda_cyclegan"], ["-c", "from cuda_cyclegan.__main__ import main; main()"]],
    ids=["as a module", "by its name"],
)
def test_ctrl_c_during_the_first_imports_shows_no_traceback(
    tmp_path: Path, start: list[str]
) -> None:
    (tmp_path / "typer.py").write_text(STALLING)
    with started(
        [sys.executable, *start],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stderr.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, reported = process.communicate(timeout=ENOUGH)
    assert (process.returncode, reported) == (-signal.SIGINT, "")
