"""A crew that is stopped, or cannot fork, at an awkward moment."""

import subprocess
import sys

STOPPED = """
import signal, sys
from multiprocessing.process import BaseProcess
from cuda_cyclegan.pipelines.jobs.worker.crew import Crew
close = BaseProcess.close
def and_then_a_signal(process):
    close(process)
    signal.raise_signal(signal.SIGTERM)
BaseProcess.close = and_then_a_signal
crew = Crew(sys.exit, ["a reason"], (), (0,), lambda *_: None, print)
signal.signal(signal.SIGTERM, lambda number, _: crew.stop(number))
sys.exit(crew.run())
"""
"""A member fails; the signal comes between its end and its replacement."""


def test_a_signal_while_a_member_is_replaced_stops_the_crew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "15\n")
    assert "Traceback" not in done.stderr


REFUSED = """
import sys
from multiprocessing.context import ForkServerProcess
from cuda_cyclegan.pipelines.jobs.worker.crew import Crew
start, refusals = ForkServerProcess.start, [ConnectionRefusedError(), EOFError()]
def start_at_last(process):
    if refusals:
        raise refusals.pop()
    start(process)
ForkServerProcess.start = start_at_last
sys.exit(Crew(print, ["cpu"], (), (0,), print, print).run())
"""
"""What members are forked from is killed just when one is to be started."""


def test_a_member_that_cannot_be_forked_is_forked_a_little_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "cpu 255\ncpu 255\ncpu\n"), done.stderr
