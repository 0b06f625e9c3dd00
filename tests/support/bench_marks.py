"""Times of the marks of a command's processes, see `start_marks`."""

import os
from pathlib import Path

MARKS = Path(__file__).parent / "start_marks"


def marked(file: Path) -> dict[str, str]:
    """The environment of a command whose processes are to tell in a file how far they are."""
    path = os.pathsep.join([str(MARKS), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "START_MARKS": str(file), "PYTHONPATH": path}


def read_marks(file: Path, begin: float) -> list[dict[str, float]]:
    """Return the marks of each process, in the order of their starts: seconds since `begin` on the
    monotonic clock, by mark.
    """
    processes: dict[str, dict[str, float]] = {}
    for line in file.read_text().splitlines():
        process, what, moment = line.split("\t")
        processes.setdefault(process, {})[what] = round(float(moment) - begin, 3)
    return list(processes.values())
