"""Timeline of the sample's command on the CPU, and of the same command of another version.

    PYTHONPATH=tests python tests/benchmarks/start_on_cpu.py [--against FOLDER] [--rounds 9]
        [--output FILE.json]

FOLDER contains a clone of the other version named cuda_cyclegan. The versions take turns, the first
turn only fills caches. A mark's seconds are the fewest of all turns: other programs on the machine
only delay it. Processor time is that of the whole command.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cpu_against_rivals import processor
from support.bench_command import keep
from support.bench_marks import marked, read_marks

RESULT = Path(__file__).parent / "results" / "start_on_cpu.json"
ROOT = Path(__file__).parents[2]
THIS = "this version"
END = "command over"


def run(root: Path, packages: Path) -> tuple[dict[str, float], float]:
    """Return the seconds at each mark of a command, and its processor time."""
    marks, sample = root / "marks", ROOT / "sample_data"
    marks.unlink(missing_ok=True)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(sample), "--quiet"]
    command += ["--model", str(sample / "model.safetensors"), "--device", "cpu"]
    command += ["--output", str(root / "results"), "--overwrite"]
    environment = marked(marks)
    paths = os.pathsep.join([environment["PYTHONPATH"], str(packages)])
    environment |= {
        "PYTHONPATH": paths,
        "XDG_CACHE_HOME": str(root / "cache"),
        "PYTHONPYCACHEPREFIX": str(root / "compiled"),  # modules as pip leaves them
        "PYTHONDONTWRITEBYTECODE": "",
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    [found, *_] = read_marks(marks, begin)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, END: round(seconds, 3)}, spent


def measured(versions: Mapping[str, Path], rounds: int, root: Path) -> dict[str, Any]:
    """Return the fewest seconds of each mark, and the processor times, by version."""
    runs: dict[str, list[tuple[dict[str, float], float]]] = {name: [] for name in versions}
    for turn in range(rounds + 1):
        for name, packages in versions.items():
            made = run(root, packages)
            if turn:
                runs[name].append(made)
    return {
        name: {
            "marks": {mark: min(marks[mark] for marks, _ in each) for mark in each[0][0]},
            "cpu_seconds": round(min(spent for _, spent in each), 2),
            "median_seconds": median(marks[END] for marks, _ in each),
        }
        for name, each in runs.items()
    }


def table(found: Mapping[str, Any]) -> Sequence[str]:
    """Return a line per mark, in the order of this version."""
    marks = sorted(found[THIS]["marks"].items(), key=lambda one: one[1])
    lines = [f"| until | {' | '.join(found)} |", "| --- " * (len(found) + 1) + "|"]
    for mark, _ in marks:
        cells = [f"{each['marks'].get(mark, float('nan')):.2f}" for each in found.values()]
        lines.append(f"| {mark} | {' | '.join(cells)} |")
    spent = " | ".join(f"{each['cpu_seconds']:.2f}" for each in found.values())
    return [*lines, f"| processor time | {spent} |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "this").mkdir()
        (root / "this" / "cuda_cyclegan").symlink_to(ROOT)
        versions = {THIS: root / "this"}
        if asked.against:
            versions["other version"] = asked.against.resolve()
        found = measured(versions, asked.rounds, root)
    keep(
        {"processor": processor(), "rounds": asked.rounds, "versions_of_program": found},
        asked.output,
    )
    for line in table(found):
        print(line, flush=True)


if __name__ == "__main__":
    main()
