"""Stop signals that arrive where Python cannot pass an exception on."""

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest
import typer

from cuda_cyclegan.cli.signals import stop_signals

LONG = 10.0  # seconds; only a stop that is lost lets so much pass


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


@pytest.mark.parametrize("place", [in_a_callback, in_a_finalizer, in_two])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_that_python_drops_comes_again(
    place: Callable[[Callable[[], object]], None],
    number: signal.Signals,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run() -> None:
        with stop_signals():
            place(lambda: signal.raise_signal(number))
            time.sleep(LONG)

    begin = time.monotonic()
    with pytest.raises(typer.Exit) as left:
        run()
    assert left.value.exit_code == status
    assert capsys.readouterr().err == "Stopped.\n"
    assert time.monotonic() - begin < LONG / 2


def test_other_errors_that_python_drops_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
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
