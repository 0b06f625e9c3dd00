"""The command against MONAI, torch.compile in half precision and nibabel, on the same files.

    PYTHONPATH=tests python tests/benchmarks/batch_against_monai.py

Both have a process of their own and the same 18 patches of 128^3 a study: at an overlap of 0.5 the
two place them alike on 256x256x180, and neither needs more than at 0.25. MONAI reads, computes and
writes study after study; its rate leaves out start-up, compilation and a warm-up, and the command's
rate is taken between studies in the middle of its batch. Intensities go through a fixed window.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from support.bench_batches import DISTINCT, WINDOW, make_scans, write_model
from support.bench_command import keep, options, translate

from cuda_cyclegan.engine.model.reference import relative_error

TOLERANCE = 5e-3
"""Relative L2 error within which two results of fp16 are equal."""


def intensities(path: Path) -> "np.ndarray[Any, Any]":
    """Network intensities of a result."""
    image: Any = nibabel.load(path)
    return np.asarray(image.dataobj, np.float64) / WINDOW.high


def run_monai(asked: Any, folder: Path, scans: Path, results: Path) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("monai_batch.py"))]
    for name, value in {
        "scans": scans,
        "model": folder / "model.safetensors",
        "results": results,
        "device": asked.device,
        "studies": asked.monai_studies,
        "width": asked.width,
        "blocks": asked.blocks,
        "patches-at-once": asked.patches_at_once,
        "patch": "x".join(map(str, asked.patch)),
        "overlap": asked.overlap,
        "radius": WINDOW.high,
        **({} if asked.compile == "off" else {"compile": asked.compile}),
    }.items():
        command += [f"--{name}", str(value)]
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    reported = json.loads(done.stdout.splitlines()[-1])
    return {**reported, "process_seconds": time.perf_counter() - begin}


def compared(asked: Any, folder: Path, suffix: str) -> dict[str, Any]:
    scans, ours, theirs = (folder / f"{name}{suffix}" for name in ("scans", "ours", "theirs"))
    made = make_scans(scans, asked.studies, asked.shape, suffix)
    patch = ",".join(map(str, asked.patch))
    options = ["--device", asked.device, "--patch", patch, "--overlap", str(asked.overlap)]
    model = folder / "model.safetensors"
    warm = make_scans(folder / f"warm{suffix}", 1, asked.shape, suffix)[0].parent
    translate(warm, model, folder / f"warmed{suffix}", *options)
    run = translate(scans, model, ours, *options)
    monai = run_monai(asked, folder, scans, theirs)
    errors = [
        relative_error(intensities(ours / path.name), intensities(theirs / path.name))
        for path in made[: min(DISTINCT, asked.monai_studies)]
    ]
    exact = np.load(theirs / "exact.npy")
    own_rate = 60 * run.steady(asked.edge)
    their_rate = 60 * monai["studies"] / monai["seconds"]["loop"]
    return {
        "studies_a_minute": round(own_rate, 1),
        "studies_a_minute_monai": round(their_rate, 1),
        "times_faster": round(own_rate / their_rate, 2),
        "whole_process_seconds": round(run.seconds, 2),
        "stages": run.report["totals"]["stages"],
        "use": run.report["use"],
        "tiles_a_study": run.report["studies"][0]["tiles"],
        "monai": monai,
        "error_against_monai": max(errors),
        "error_against_fp32": relative_error(intensities(ours / made[0].name), exact),
        "error_against_fp32_monai": relative_error(intensities(theirs / made[0].name), exact),
        "spread_of_result": float(exact.std()),
    }


def main() -> None:
    parser = options("batch_against_monai", __doc__)
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--edge", type=int, default=6, help="studies left out at both ends")
    parser.add_argument("--monai-studies", type=int, default=8)
    parser.add_argument("--overlap", type=float, default=0.5)
    parser.add_argument("--compile", default="default", help="mode of torch.compile, or off")
    parser.add_argument("--patches-at-once", type=int, default=1, help="for MONAI")
    parser.add_argument("--suffixes", nargs="+", default=[".nii.gz"])
    asked = parser.parse_args()
    record: dict[str, Any] = {
        "what": (__doc__ or "").splitlines()[0],
        "volume": asked.shape,
        "patch": asked.patch,
        "overlap": asked.overlap,
        "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
        "torch_compile": asked.compile,
        "targets": {"times_faster": ">= 8", "error_against_monai": f"<= {TOLERANCE}"},
    }
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        write_model(folder / "model.safetensors", asked.width, asked.blocks, asked.patch, WINDOW)
        for suffix in asked.suffixes:
            record[suffix] = compared(asked, folder, suffix)
    keep(record, asked.output)
    for suffix in asked.suffixes:
        if record[suffix]["error_against_monai"] > TOLERANCE:
            raise SystemExit("the results differ by more than the tolerance of fp16")


if __name__ == "__main__":
    main()
