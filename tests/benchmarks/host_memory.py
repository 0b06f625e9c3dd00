"""Peak host memory of the chain volume, prepare, translate, finish, each case in a fresh process.

Run from the repository's root: ``python tests/benchmarks/host_memory.py``. A copying stand-in takes
the generator's place, so that the figure is that of everything around it.
"""

import json
import platform
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np

from cuda_cyclegan.engine.architectures import ResNetSpec
from cuda_cyclegan.engine.card import ModelCard, Provenance, Reference, Window
from cuda_cyclegan.engine.graph import INPUT, FloatArray, Graph, Node, Tanh
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.inference import translate_array
from cuda_cyclegan.pipelines.preparation import finish, prepare
from cuda_cyclegan.pipelines.tiling import tile

SHAPE = (512, 512, 400)
PATCH = (128, 128, 128)
BYTES_A_VOXEL = 16
ALLOWANCE = 300_000_000
RESULT = Path(__file__).parent / "results" / "host_memory.json"
CASES = {
    "own spacing, axes SPL": (0.8, "SPL"),
    "own spacing, axes RAS": (0.8, "RAS"),
    "0.8 mm to 1.0 mm, axes SPL": (1.0, "SPL"),
    "0.8 mm to 1.0 mm, axes RAS": (1.0, "RAS"),
}


class CopyingGenerator:
    """Hands a copy of each patch back."""

    graph = Graph(1, (Node("tanh", Tanh(), (INPUT,)),))
    device = "none"

    def __call__(self, patches: FloatArray) -> FloatArray:
        return patches.copy()


def card(spacing: float, axes: str) -> ModelCard:
    window = Window(-1024, 3071)
    return ModelCard(
        name="stand-in",
        architecture=ResNetSpec(1, 1, 8, 1),
        source="CT",
        target="CT",
        input_channels=("CT",),
        output_channels=("CT",),
        axes=axes,
        spacing=(spacing, spacing, spacing),
        patch=PATCH,
        intensity_in=window,
        intensity_out=window,
        small_volume_padding="edge",
        provenance=Provenance("none", "", "none", "benchmark"),
        reference=Reference("", "", "cuda-cyclegan"),
    )


def study() -> Volume:
    """A 16-bit volume, filled row by row so that making it costs no more than it holds."""
    voxels = np.empty(SHAPE, np.int16, order="F")
    random = np.random.default_rng(0)
    for k in range(SHAPE[2]):
        voxels[:, :, k] = random.integers(-1024, 3071, SHAPE[:2], np.int16, endpoint=True)
    return Volume(voxels, np.diag([0.8, 0.8, 0.8, 1.0]), None, "nifti")


def run(spacing: float, axes: str) -> dict[str, object]:
    of = card(spacing, axes)
    seconds: dict[str, float] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    volume = study()
    start = time.perf_counter()
    prepared = prepare(volume, of)
    seconds["prepare"] = time.perf_counter() - start
    del volume
    _, depth, height, width = prepared.array.shape
    tiling = tile((depth, height, width), PATCH, 0.25, (4, 4, 4))
    translated = translate_array(
        prepared.array, CopyingGenerator(), tiling, "gaussian", "edge", lambda: None
    )
    seconds["blend"] = translated.blend_seconds
    start = time.perf_counter()
    result = finish(prepared, translated.array, of)
    seconds["finish"] = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "peak_bytes": peak,
        "bytes_before_the_volume": before,
        "seconds": {stage: round(spent, 2) for stage, spent in seconds.items()},
        "prepared": [depth, height, width],
        "tiles": len(tiling),
        "stored_as": result.voxels.dtype.name,
    }


def main() -> int:
    voxels = int(np.prod(SHAPE))
    bound = BYTES_A_VOXEL * voxels + ALLOWANCE
    cases: dict[str, dict[str, object]] = {}
    for name, (spacing, axes) in CASES.items():
        command = [sys.executable, __file__, str(spacing), axes]
        cases[name] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    report = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "volume": list(SHAPE),
        "patch": list(PATCH),
        "bound_bytes": bound,
        "cases": cases,
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    peaks = {name: int(str(case["peak_bytes"])) for name, case in cases.items()}
    for name, peak in peaks.items():
        verdict = "within" if peak <= bound else "ABOVE"
        print(
            f"{name}: peak {peak / 1e6:.0f} MB, {verdict} {bound / 1e6:.0f} MB "
            f"({(peak - ALLOWANCE) / voxels:.1f} B a voxel + 300 MB)  {cases[name]['seconds']}"
        )
    return 0 if all(peak <= bound for peak in peaks.values()) else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(float(sys.argv[1]), sys.argv[2])))
    else:
        sys.exit(main())
