"""A crew that is stopped at an awkward moment."""

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
crew = Crew(int, ["no number"], (), (0,), lambda *_: None, print)
signal.signal(signal.SIGTERM, lambda number, _: crew.stop(number))
sys.exit(crew.run())
"""
"""A member fails; the signal comes between its end and its replacement."""


def test_a_signal_while_a_member_is_replaced_stops_the_crew() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=60, check=False
    )
    own = [line for line in done.stderr.splitlines() if "crew.py" in line]
    assert (done.returncode, done.stdout, own) == (0, "15\n", [])
