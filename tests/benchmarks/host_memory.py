"""Peak host memory of a 512x512x400 study from file to file, each case in a fresh process.

    PYTHONPATH=tests python tests/benchmarks/host_memory.py [--folder DIR]

Everything of the product's path runs (read .nii.gz, prepare, cut, blend, finish, write) except the
network, for which a copying stand-in of 128^3 patches takes the generator's place: what a network
needs depends on the network and the patch, not on the volume. The exit status is 1 above the bound.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel
import numpy as np
from support.batches import batch_here
from support.fake_networks import networks_of
from support.numerics_models import CARD

from cuda_cyclegan.engine.model.intensity_maps import IntensityMap, Percentiles, Window
from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import FloatArray, Tanh
from cuda_cyclegan.io.volume import Study
from cuda_cyclegan.pipelines.host.memory import PeakMeter, available_memory
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe
from cuda_cyclegan.pipelines.results.resume import PlannedStudy
from cuda_cyclegan.pipelines.run.batch import run_batch
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.source import JobKind
from cuda_cyclegan.pipelines.settings import TranslateOptions

SHAPE = (512, 512, 400)
SPACING = 0.8
PATCH = (128, 128, 128)
BYTES_A_VOXEL = 16
ALLOWANCE = 300_000_000
RESULT = Path(__file__).parent / "results" / "host_memory.json"


@dataclass(frozen=True)
class Case:
    """A voxel type and what the model's card says."""

    dtype: str
    intensity: IntensityMap
    axes: str
    spacing: float


CASES = {
    "int16, window, axes SPL": Case("int16", Window(-1024, 3071), "SPL", SPACING),
    "int16, window, axes RAS": Case("int16", Window(-1024, 3071), "RAS", SPACING),
    "int16, percentiles, 0.8 to 1.0 mm": Case("int16", Percentiles(1, 99), "SPL", 1.0),
    "float32, window, axes SPL": Case("float32", Window(-1024, 3071), "SPL", SPACING),
    "float32, percentiles, axes RAS": Case("float32", Percentiles(1, 99), "RAS", SPACING),
    "float32, percentiles, 0.8 to 1.0 mm": Case("float32", Percentiles(1, 99), "SPL", 1.0),
}


class CopyingGenerator:
    """Hands a copy of each patch back."""

    graph = Graph(1, (Node("tanh", Tanh(), (INPUT,)),))
    device = "none"

    def __call__(self, patches: FloatArray) -> FloatArray:
        return patches.copy()


def model_of(case: Case) -> Model:
    card = replace(
        CARD,
        axes=case.axes,
        spacing=(case.spacing, case.spacing, case.spacing),
        patch=PATCH,
        intensity_in=case.intensity,
        intensity_out=case.intensity,
    )
    empty = np.empty(0, np.float32)
    return Model(card, Network(CopyingGenerator.graph, {}), empty, empty, "")


def make_scan(path: Path, dtype: str) -> None:
    """A smooth volume with noise, written slice by slice."""
    i, j = np.ogrid[: SHAPE[0], : SHAPE[1]]
    voxels = np.empty(SHAPE, dtype, order="F")
    random = np.random.default_rng(0)
    for k in range(SHAPE[2]):
        tissue = 900 * np.sin(i / 60) * np.cos(j / 70) * np.sin(k / 50)
        voxels[:, :, k] = tissue + random.integers(-12, 12, SHAPE[:2])
    nibabel.Nifti1Image(voxels, np.diag([SPACING] * 3 + [1.0])).to_filename(path)


def run(case: Case, scan: Path) -> dict[str, Any]:
    """Translate one file in this process, as a batch of one."""
    before = PeakMeter().read().bytes
    output = scan.with_name("translated")
    target = output / scan.name
    target.unlink(missing_ok=True)
    options = TranslateOptions(PATCH, overlap=0.25, blend="gaussian", precision="fp32").resolved()
    study = Study(PurePosixPath(scan.name), (scan,), "nifti")
    with Manifest(output) as manifest:
        model = model_of(case)
        kind = JobKind(model, options, Recipe("", ""))
        planned = PlannedStudy(study, target, "translate", replaces=True)
        concurrency = Concurrency(available_memory() // 2)
        networks = networks_of(CopyingGenerator())
        batch = batch_here(kind, [planned], manifest, networks, concurrency)
        [row] = run_batch([planned], batch, lambda _: None)
    if row.peak_memory is None or row.failure:
        raise RuntimeError(row.failure)
    return {
        "peak_bytes": row.peak_memory.bytes,
        "bytes_before_the_study": before,
        "seconds": {stage: round(spent, 2) for stage, spent in row.stages.items()},
        "tiles": row.tiles,
    }


def measure(folder: Path) -> dict[str, dict[str, Any]]:
    for dtype in sorted({case.dtype for case in CASES.values()}):
        make_scan(folder / f"{dtype}.nii.gz", dtype)
    measured: dict[str, dict[str, Any]] = {}
    for name, case in CASES.items():
        command = [sys.executable, __file__, "--case", name]
        command += ["--scan", str(folder / f"{case.dtype}.nii.gz")]
        run_alone = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        measured[name] = json.loads(run_alone.stdout)
        peak = measured[name]["peak_bytes"]
        a_voxel = (peak - ALLOWANCE) / np.prod(SHAPE)
        print(f"{name}: peak {peak / 1e6:.0f} MB, {a_voxel:.1f} bytes a voxel + 300 MB", flush=True)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to put the scans; default temporary")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--scan", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run(CASES[arguments.case], arguments.scan)))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measured = measure(Path(folder))
    bound = BYTES_A_VOXEL * int(np.prod(SHAPE)) + ALLOWANCE
    record = {
        "what": "peak resident bytes of a study from file to file, copying generator",
        "volume": SHAPE,
        "patch": PATCH,
        "overlap": 0.25,
        "blend": "gaussian",
        "bound_bytes": bound,
        "cases": measured,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("nibabel", "numpy", "SimpleITK")}
        | {"python": platform.python_version()},
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    return 0 if all(case["peak_bytes"] <= bound for case in measured.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
