"""Error of `plan`: seconds that it shows, and seconds that the batch then takes.

    PYTHONPATH=tests python tests/benchmarks/planned_seconds.py [--result FILE.json]

A card that was tuned by one batch tells the time of others: of more studies, of larger ones, of
another kind of file, of another precision. 9-block ResNet of width 32, 128^3 patches.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import nibabel
import numpy as np
from support.bench_batches import tissue, write_model

from cuda_cyclegan.engine.probe.gpus import cuda_devices

RESULT = Path(__file__).parent / "results" / "planned_seconds.json"


@dataclass(frozen=True)
class Batch:
    """Batch of `count` studies of a shape, in files of a suffix."""

    name: str
    count: int
    shape: tuple[int, int, int] = (256, 256, 180)
    suffix: str = ".nii.gz"


LEARNT = (Batch("learnt", 6), Batch("learnt, unpacked", 6, suffix=".nii"))
FORETOLD = (
    Batch("the same again", 6),
    Batch("more", 16),
    Batch("larger", 4, (320, 320, 240)),
    Batch("unpacked", 12, suffix=".nii"),
    Batch("one", 1),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "model.safetensors", 32, 9, (128, 128, 128))
        for batch in LEARNT:
            _run(root, batch, "translate")
        rows = [_compared(root, batch) for batch in FORETOLD]
    [card, *_] = cuda_devices()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": card.name,
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
    }
    asked.result.write_text(json.dumps(content, indent=1) + "\n")


def _compared(root: Path, batch: Batch) -> dict[str, object]:
    reported = _run(root, batch, "plan")
    found = re.search(r"Total time: ([\d.]+)", reported)
    if found is None:
        raise SystemExit(reported)
    (root / "report.json").unlink(missing_ok=True)
    _run(root, batch, "translate", "--report", str(root / "report.json"))
    took = float(json.loads((root / "report.json").read_text())["seconds"])
    planned = float(found[1])
    row = {"batch": batch.name, "planned": planned, "took": round(took, 3)}
    row["ratio"] = round(planned / took, 3)
    print(row, [line for line in reported.splitlines() if "GPU memory" in line], flush=True)
    return row


def _run(root: Path, batch: Batch, command: str, *options: str) -> str:
    scans = root / "scans"
    shutil.rmtree(scans, ignore_errors=True)
    scans.mkdir()
    for number, voxels in enumerate(_volumes(batch)):
        nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(scans / f"{number}{batch.suffix}")
    words = [sys.executable, "-m", "cuda_cyclegan", command, str(scans), "--overwrite"]
    words += ["--model", str(root / "model.safetensors"), "--output", str(root / "out")]
    words += ["--device", "cuda:0", "--patch", "128,128,128", "--tune", "quick", *options]
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout


def _volumes(batch: Batch) -> Iterator["np.ndarray"]:
    few = [tissue(batch.shape, seed) for seed in range(min(batch.count, 2))]
    return (few[number % len(few)] for number in range(batch.count))


main()
