"""From the command to the first result on a card: the first start, which tunes, and later ones.

    PYTHONPATH=tests python tests/benchmarks/start_time.py [--result FILE.json]

One volume of one 128^3 tile, a 9-block ResNet of width 32, fp16. A start is a whole process:
interpreter, imports, model, CUDA context, plans, weights, the tile, and the result on disk.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from support.bench_batches import tissue, write_model

from cuda_cyclegan.engine.probe.cards import cuda_devices

STARTS = 5
RESULT = Path(__file__).parent / "results" / "start_time.json"


def start(root: Path, *options: str) -> dict[str, Any]:
    report = root / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(root / "scan.nii")]
    command += ["--model", str(root / "model.safetensors"), "--output", str(root / "out")]
    command += ["--patch", "128,128,128", "--overwrite", "--report", str(report), *options]
    begin = time.perf_counter()
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    [study] = json.loads(report.read_text())["studies"]
    return {"seconds": round(seconds, 3), "told": done.stderr, "stages": study["stages"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--tune-seconds", type=float, default=60)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "model.safetensors", 32, 9, (128, 128, 128))
        scan = nibabel.Nifti1Image(tissue((128, 128, 128), 0), np.eye(4))
        scan.to_filename(root / "scan.nii")
        first = start(root, "--device", "cuda:0", "--tune-seconds", str(asked.tune_seconds))
        later = [start(root, "--device", "cuda:0") for _ in range(STARTS)]
    if "Tuning" not in first["told"] or any("Tuning" in one["told"] for one in later):
        raise SystemExit("only the first start should have tuned")
    seconds = sorted(one["seconds"] for one in later)
    [card, *_] = cuda_devices()
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "card": card.name,
        "driver": card.driver,
        "first_start": first["seconds"],
        "later_starts": seconds,
        "median": statistics.median(seconds),
        "stages": later[-1]["stages"],
    }
    asked.result.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


main()
