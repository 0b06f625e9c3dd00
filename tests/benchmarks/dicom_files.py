"""DICOM beside its rivals: a scan of 10,000 headers, and a 400-slice CT read and written.

    python tests/benchmarks/dicom_files.py [--folder DIR] [--rounds N]

The slices are 512 x 512 of a head-like phantom under the header of pydicom's CT_small, private
elements and all. Best of N rounds, rivals taking turns; processor seconds beside those on the
clock, as other programs lengthen only these, and how many of them wanted a core. Reading competes
with SimpleITK's series reader; writing with a loop that saves pydicom's data sets as they are,
neither flushing to disk, and once more as the program writes, each file flushed and the folder put
in place whole. The folder defaults to memory (/dev/shm), as the limits are those of the code and
not of a disk.

Each turn runs twice, so that either rival finds the memory that it has just given back. Huge pages,
which NumPy asks for and SimpleITK does not, can cost a virtual machine more than the reading where
its host has yet to provide them: 0.8 s for these 200 MiB, and 0.02 s the second time. With writing
between the readings most rounds paid for that. The program itself uses memory again in a batch.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pydicom as _pydicom
import SimpleITK as _SimpleITK
from pydicom.data import get_testdata_file

from cuda_cyclegan.io.dicom.derived.writing import write_series
from cuda_cyclegan.io.dicom.header_scan import scan
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
sitk: Any = _SimpleITK
RESULT = Path(__file__).parent / "results" / "dicom_files.json"
MEMORY_FOLDER = Path("/dev/shm")
SLICES, EXTENT, HEADERS = 400, 512, 10_000
DERIVATION = Derivation("benchmark", "CT", "CT", "0", "0" * 64, newest_source=0)
Turns = dict[str, Callable[[], object]]
Seconds = dict[str, float]


def make_series(folder: Path) -> list[Path]:
    """Store the series; its files in order."""
    folder.mkdir()
    data = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    j, i = np.mgrid[-1 : 1 : EXTENT * 1j, -1 : 1 : EXTENT * 1j]
    noise = np.random.default_rng(0).normal(0, 20, (EXTENT, EXTENT))
    data.Rows = data.Columns = EXTENT
    paths: list[Path] = []
    for at in range(SLICES):
        radius = np.sqrt(i**2 + j**2 + (at / SLICES - 0.5) ** 2)
        pixels = np.where(radius < 0.8, 1000 + 40 * np.sin(20 * i + at / 9), 0) + noise
        data.SOPInstanceUID = f"{data.SeriesInstanceUID}.{at}"
        data.InstanceNumber = at + 1
        data.ImagePositionPatient = [-100, -100, at * 0.75]
        data.PixelData = pixels.astype(np.int16).tobytes()
        paths.append(folder / f"{at:04}.dcm")
        data.save_as(paths[-1])
    return paths


def contests(folder: Path) -> list[Turns]:
    """Return what is measured, by name; rivals are next to each other."""
    paths = make_series(folder / "in")
    [study] = discover([folder / "in"], None).studies
    volume = read(study)
    datasets = [pydicom.dcmread(path) for path in paths]
    names = [str(path) for path in paths]
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(names)
    headers = (paths * (HEADERS // len(paths) + 1))[:HEADERS]
    return [
        {"scan of 10,000 headers": lambda: scan(headers)},
        {"read, SimpleITK": reader.Execute, "read, cuda-cyclegan": lambda: read(study)},
        {
            "write, pydicom's save loop": lambda: _saved(datasets, _emptied(folder / "theirs")),
            "write, cuda-cyclegan": lambda: write_series(
                volume, _emptied(folder / "ours"), DERIVATION
            ),
            "write whole and flushed, cuda-cyclegan": lambda: write(
                volume, folder / "whole", DERIVATION
            ),
        },
    ]


def measured(turns: Turns, rounds: int) -> tuple[Seconds, Seconds]:
    """The least seconds of each turn: on the clock, and of all cores."""
    clock, cores = dict.fromkeys(turns, float("inf")), dict.fromkeys(turns, float("inf"))
    for _ in range(rounds):
        for name, turn in turns.items():
            for _ in range(2):
                started, busy = time.perf_counter(), time.process_time()
                turn()
                clock[name] = min(clock[name], time.perf_counter() - started)
                cores[name] = min(cores[name], time.process_time() - busy)
    return clock, cores


def _saved(datasets: list[Any], folder: Path) -> None:
    for at, data in enumerate(datasets):
        data.save_as(folder / f"{at:04}.dcm")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _rounded(seconds: Seconds) -> Seconds:
    return {name: round(each, 3) for name, each in seconds.items()}


def _ratio(seconds: Seconds, ours: str, theirs: str) -> float:
    return round(seconds[ours] / seconds[theirs], 2)


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=MEMORY_FOLDER)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    clock, cores = Seconds(), Seconds()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for turns in contests(Path(folder)):
            for best, found in zip((clock, cores), measured(turns, chosen.rounds), strict=True):
                best |= found
    report = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "load": {"before": round(load, 1), "after": round(os.getloadavg()[0], 1)},
        "versions": {name: version(name) for name in ("pydicom", "SimpleITK", "numpy")},
        "folder": "memory" if chosen.folder == MEMORY_FOLDER else "disk",
        "series": [EXTENT, EXTENT, SLICES],
        "best_seconds": _rounded(clock),
        "best_processor_seconds": _rounded(cores),
        "read_by_SimpleITK": _ratio(clock, "read, cuda-cyclegan", "read, SimpleITK"),
        "write_by_save_loop": _ratio(clock, "write, cuda-cyclegan", "write, pydicom's save loop"),
    }
    print(json.dumps(report, indent=2))
    RESULT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
