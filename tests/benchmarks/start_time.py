"""Time from the command to the first result on a GPU: the first start, which tunes, and later ones.

    PYTHONPATH=tests python tests/benchmarks/start_time.py [--result FILE.json] [--folder FOLDER]

One volume of one 128^3 patch, a 9-block ResNet of width 32, fp16. A start is a whole process:
interpreter, imports, model, CUDA context, plans, weights, the patch, and the result on disk. Then
the same command for 20 studies of 256x256x180 in .nii.gz, and where there are two cards, for 30 of
them on one card and on both in turn. Modules are kept compiled, as pip leaves them. FOLDER is new,
and stays; without it there is none.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from support.bench_batches import make_scans, tissue, write_model

from cuda_cyclegan.engine.probe.gpus import cuda_devices

STARTS = 5
BATCHES, STUDIES, SHAPE = 3, 20, (256, 256, 180)
TURNS, SHARED_STUDIES, BOTH = 4, 30, "cuda:0,1"
RESULT = Path(__file__).parent / "results" / "start_time.json"


def start(root: Path, scans: str, *options: str) -> dict[str, Any]:
    report = root / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(root / scans)]
    command += ["--model", str(root / "model.safetensors"), "--output", str(root / "out")]
    command += ["--patch", "128,128,128", "--overwrite", "--report", str(report), *options]
    begin = time.perf_counter()
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(root / "cache"),
        "PYTHONPYCACHEPREFIX": str(root / "compiled"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        "seconds": round(seconds, 3),
        "reported": done.stderr,
        "report": json.loads(report.read_text()),
    }


def on_one_and_on_both(root: Path) -> dict[str, Any]:
    """Seconds of whole commands, in turn; the first on both compiles what only workers load."""
    make_scans(root / "shared", SHARED_STUDIES, SHAPE, ".nii.gz")
    start(root, "shared", "--device", BOTH)
    turns = [
        [start(root, "shared", "--device", device)["seconds"] for device in ("cuda:0", BOTH)]
        for _ in range(TURNS)
    ]
    one, both = (list(seconds) for seconds in zip(*turns, strict=True))
    ratio = statistics.median(both) / statistics.median(one)
    return {"studies": SHARED_STUDIES, "one": one, "both": both, "ratio": round(ratio, 3)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--tune-seconds", type=float, default=60)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with ExitStack() as opened:
        if root := asked.folder:
            root.mkdir()
        else:
            root = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        write_model(root / "model.safetensors", 32, 9, (128, 128, 128))
        scan = nibabel.Nifti1Image(tissue((128, 128, 128), 0), np.eye(4))
        scan.to_filename(root / "scan.nii")
        make_scans(root / "scans", STUDIES, SHAPE, ".nii.gz")
        card = "--device", "cuda:0"
        first = start(root, "scan.nii", *card, "--tune-seconds", str(asked.tune_seconds))
        later = [start(root, "scan.nii", *card) for _ in range(STARTS)]
        batches = [start(root, "scans", *card) for _ in range(BATCHES)]
        shared = on_one_and_on_both(root) if len(cuda_devices()) > 1 else None
    if "Tuning" not in first["reported"] or any("Tuning" in one["reported"] for one in later):
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
        "stages": later[-1]["report"]["studies"][0]["stages"],
        "studies": STUDIES,
        "of_shape": SHAPE,
        "whole_commands": [one["seconds"] for one in batches],
        "whole_command_median": statistics.median(one["seconds"] for one in batches),
        "energy": batches[-1]["report"].get("energy"),
        "two_cards": shared,
        "libraries": batches[-1]["report"]["libraries"],
    }
    asked.result.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


main()
