"""Timeline of each process of a whole command, on one GPU and on several.

    PYTHONPATH=tests python tests/benchmarks/start_timeline.py [--devices cuda:0 cuda:0,1]

Studies of 256x256x180 in .nii.gz, a 9-block ResNet of width 32, patches of 128^3, whose plans an
earlier start has measured. The devices take turns; the timeline is of the run of each whose seconds
are the median. Seconds count from the start of the command.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low

from support.bench_batches import make_scans, write_model
from support.bench_command import extents, keep
from support.bench_marks import marked, read_marks

RESULT = Path(__file__).parent / "results" / "start_timeline.json"


@dataclass(frozen=True)
class Run:
    """A command. marks: of each process, in the order of their starts."""

    seconds: float
    marks: list[dict[str, float]]


def run(root: Path, devices: str, *options: str) -> Run:
    marks = root / "marks"
    marks.unlink(missing_ok=True)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(root / "scans"), "--quiet"]
    command += ["--model", str(root / "model.safetensors"), "--output", str(root / "out")]
    command += ["--overwrite", "--device", devices, *options]
    environment = {
        **marked(marks),
        "XDG_CACHE_HOME": str(root / "cache"),
        "PYTHONPYCACHEPREFIX": str(root / "compiled"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    return Run(round(seconds, 3), read_marks(marks, begin))


def table(runs: dict[str, Run]) -> list[str]:
    """A line a mark, a column a process; in brackets how many seconds the command took."""
    columns = [
        (f"{devices} ({one.seconds}) {number or 'first'}", marks)
        for devices, one in runs.items()
        for number, marks in enumerate(one.marks)
    ]
    known = {what: None for _, marks in columns for what in marks}
    ordered = sorted(known, key=lambda what: max(marks.get(what, 0) for _, marks in columns))
    lines = [" | ".join(["", *(title for title, _ in columns)])]
    return lines + [
        " | ".join(
            [what, *(f"{marks[what]:.2f}" if what in marks else "-" for _, marks in columns)]
        )
        for what in ordered
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:0,1"])
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--shape", type=extents, default=(256, 256, 180))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--patch", type=extents, default=(128, 128, 128))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tune-seconds", type=float, default=60)
    parser.add_argument("--folder", type=Path, help="of an earlier call, or new; kept")
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        root = asked.folder or Path(made)
        root.mkdir(exist_ok=True)
        if not (root / "scans").exists():
            write_model(root / "model.safetensors", asked.width, 9, asked.patch)
            make_scans(root / "scans", asked.studies, asked.shape, ".nii.gz")
        options = ["--patch", ",".join(map(str, asked.patch))]
        options += ["--tune-seconds", str(asked.tune_seconds)]
        for devices in asked.devices:  # tunes, and compiles what only workers load
            run(root, devices, *options)
        turns = [
            {devices: run(root, devices, *options) for devices in asked.devices}
            for _ in range(asked.runs)
        ]
    seconds = {devices: [turn[devices].seconds for turn in turns] for devices in asked.devices}
    middle = {
        devices: next(turn[devices] for turn in turns if turn[devices].seconds == median_low(all_))
        for devices, all_ in seconds.items()
    }
    for line in table(middle):
        print(line, flush=True)
    print(json.dumps(seconds), flush=True)
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "moment": datetime.now(UTC).isoformat(timespec="seconds"),
            "studies": asked.studies,
            "volume": asked.shape,
            "seconds": seconds,
            "timelines": {devices: one.marks for devices, one in middle.items()},
        },
        asked.result,
    )


if __name__ == "__main__":
    main()
