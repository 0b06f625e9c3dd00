"""The command in a process that stands still at a chosen place until it is released."""

import sys

STANDS = "standing still"
SAVING = "waiting for results to be stored"

_PROGRAM = f"""
import importlib, os, pkgutil, sys, time
place, name, call, patience = sys.argv[1:5]
del sys.argv[1:5]
importlib.import_module("cuda_cyclegan.pipelines.run.batch").PATIENCE = float(patience)
pipeline = importlib.import_module("cuda_cyclegan.pipelines.run.pipeline").StudyPipeline
module, remaining, rest = pkgutil.resolve_name(place), int(call), pipeline.rest
real = getattr(module, name)
def stand(*arguments, **named):
    global remaining
    remaining -= 1
    if remaining == 0:
        os.write(2, b"{STANDS}\\n")
        sys.stdin.readline() or time.sleep(600)
    return real(*arguments, **named)
def resting(*arguments):
    os.write(2, b"{SAVING}\\n")
    return rest(*arguments)
setattr(module, name, stand)
pipeline.rest = resting
importlib.import_module("cuda_cyclegan.cli.app").main()
"""


def standing(
    place: tuple[str, str], call: int, *arguments: str, patience: float = 1.0
) -> list[str]:
    """The command line of a run that stands still at the nth call of a function.

    place: the function's module, or its class as module:Class, and its name. It says STANDS on
    stderr and goes on when it is given a line. patience: seconds that it waits for results to get
    stored once it is stopped, which it says as SAVING.
    """
    return [sys.executable, "-c", _PROGRAM, *place, str(call), str(patience), *arguments]
