"""Module on PYTHONPATH: a worker process that opens a scan named deadly.nii is killed."""

import os
import signal
import sys


def _dies_of_it(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and str(arguments[0]).endswith("deadly.nii"):
        os.kill(os.getpid(), signal.SIGKILL)


if any("run.process" in word for word in sys.orig_argv):
    sys.addaudithook(_dies_of_it)
