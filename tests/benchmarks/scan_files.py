"""Read and write a 256^3 int16 .nii.gz with this program and with nibabel's defaults, side by side.

    python tests/benchmarks/scan_files.py [--folder DIR] [--rounds N]

Best of N rounds, the two taking turns. Both write and read the same voxels; the folder defaults to
memory (/dev/shm) where there is one, so that the figures are those of the code and not of a disk.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel
import numpy as np

from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.io.writing import write

RESULT = Path(__file__).parent / "results" / "scan_files.json"
MEMORY_FOLDER = Path("/dev/shm")
Turns = dict[tuple[str, str], Callable[[], object]]


def head_like(extent: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """A smooth ball of tissue with folds and noise in an air background, as int16."""
    i, j, k = np.ogrid[-1 : 1 : extent * 1j, -1 : 1 : extent * 1j, -1 : 1 : extent * 1j]
    radius = np.sqrt(i**2 + (j * 1.2) ** 2 + (k * 1.1) ** 2)
    folds = 1 + 0.25 * np.sin(18 * i + 5 * k) * np.cos(15 * j) * np.sin(12 * k)
    tissue = np.where(radius < 0.85, 900 * np.exp(-radius) * folds, 0)
    noise = np.random.default_rng(0).normal(0, 12, tissue.shape)
    return np.asfortranarray(np.clip(tissue + noise, 0, None).astype(np.int16))


def turns(folder: Path, extent: int) -> Turns:
    theirs, ours = folder / "theirs.nii.gz", folder / "ours.nii.gz"
    image = nibabel.Nifti1Image(head_like(extent), np.diag([1.0, 1.0, 1.0, 1.0]))
    nibabel.save(image, theirs)
    volume = read(Study(PurePosixPath(theirs.name), (theirs,), "nifti"))
    return {
        ("write", "nibabel"): lambda: nibabel.save(image, theirs),
        ("write", "cuda-cyclegan"): lambda: write(volume, ours),
        ("read", "nibabel"): lambda: np.asarray(nibabel.load(theirs).dataobj),
        ("read", "cuda-cyclegan"): lambda: read(Study(PurePosixPath(ours.name), (ours,), "nifti")),
    }


def best_seconds(measured: Turns, rounds: int) -> dict[tuple[str, str], float]:
    best = dict.fromkeys(measured, float("inf"))
    for _ in range(rounds):
        for name, turn in measured.items():
            started = time.perf_counter()
            turn()
            best[name] = min(best[name], time.perf_counter() - started)
    return best


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to write; default memory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--extent", type=int, default=256)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]  # both cores must be free: only our side uses two
    parent = arguments.folder or (MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        best = best_seconds(turns(Path(folder), arguments.extent), arguments.rounds)
        sizes = {path.name: path.stat().st_size for path in Path(folder).iterdir()}
    seconds = {
        side: {task: best[task, side] for task in ("read", "write")}
        for side in ("nibabel", "cuda-cyclegan")
    }
    ratio = sum(seconds["nibabel"].values()) / sum(seconds["cuda-cyclegan"].values())
    for side, tasks in seconds.items():
        print(f"{side:14} read {tasks['read']:.3f} s, write {tasks['write']:.3f} s")
    print(f"read + write is {ratio:.2f} times as fast as nibabel's defaults")
    record = {
        "what": f"{arguments.extent}^3 int16 .nii.gz, best of {arguments.rounds}, seconds",
        "seconds": seconds,
        "times_as_fast": ratio,
        "bytes": sizes,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "load": load},
        "folder": "memory" if parent == MEMORY_FOLDER else "disk",
        "versions": {name: version(name) for name in ("isal", "nibabel", "numpy")}
        | {"python": platform.python_version()},
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
