"""A volume far larger than the device memory it may use, through the command.

    PYTHONPATH=tests python tests/benchmarks/huge_volume.py

1024x1024x800 int16, uncompressed: by patches and at once with a limit of 4 GiB, each several times,
as a first run may search for plans; and at once without a limit, which must give the same bytes.
Each run finds an empty folder, as it takes half a second to put a result in the place of another.
Device bytes are those of the card, less what was in use before and less what a process takes that
has done no more than open cuDNN.
"""

import filecmp
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
from support.bench_batches import WINDOW, tissue, write_model
from support.bench_command import Observed, device_bytes, keep, options, translate

nibabel: Any = _nibabel
SLICES = 8
"""Slices of distinct noise, which repeats along k."""

HOLD_A_CONTEXT = """
import sys, time
from cuda_cyclegan.engine.cuda.driver import Context, Stream
from cuda_cyclegan.engine.cuda.cudnn import Cudnn
with Context(0), Stream() as stream, Cudnn(stream):
    print("open", flush=True)
    sys.stdin.readline()
"""


def make_scan(path: Path, shape: tuple[int, int, int]) -> Path:
    """A NIfTI file of int16 voxels, written slice by slice."""
    path.parent.mkdir()
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header.set_xyzt_units("mm")
    header.set_sform(np.eye(4), 1)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    block = np.asfortranarray(tissue((*shape[:2], SLICES), 0))
    with path.open("wb") as file:
        file.write(header.binaryblock + bytes(4))
        for first in range(0, shape[2], SLICES):
            ramp = np.int16(first % 400 - 200)
            slices = (block + ramp)[:, :, : shape[2] - first]
            file.write(slices.tobytes(order="F"))
    return path


def context_bytes() -> int:
    """Return the memory of a process that only has a context and a cuDNN handle; 0 if it opens
    none.
    """
    before = device_bytes()
    if not before:
        return 0
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_CONTEXT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    is_open = holder.stdout.readline() == "open\n"
    taken = device_bytes() - before if is_open else 0
    holder.communicate("\n")
    return taken


def measured(run: Observed, context: int) -> dict[str, Any]:
    [row] = run.report["studies"]
    peak = max(sample.device for sample in run.samples) - run.device_before
    return {
        "seconds": round(run.seconds, 2),
        "stages": {name: round(seconds, 2) for name, seconds in row["stages"].items()},
        "tiles": row["tiles"],
        "device_bytes": peak,
        "device_bytes_less_context": peak - context,
        "host_bytes": max(sample.resident for sample in run.samples),
        "host_bytes_by_voxel": max(s.resident for s in run.samples) / row["voxels"],
        "timeline": run.marks[0],
    }


def main() -> None:
    parser = options("huge_volume", __doc__)
    parser.set_defaults(shape=(1024, 1024, 800))
    parser.add_argument("--vram-limit", default="4GiB")
    parser.add_argument("--overlap", type=float, default=0.25)
    parser.add_argument("--runs", type=int, default=2)
    asked = parser.parse_args()
    begin, context = time.perf_counter(), context_bytes()
    limit, at_once = ["--vram-limit", asked.vram_limit], ["--inference", "volume"]
    by_patches = ["--inference", "patches", "--overlap", str(asked.overlap)]
    ways = {
        "patches": [*by_patches, *limit],
        "volume": [*at_once, *limit],
        "volume without a limit": at_once,
    }
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        model = write_model(
            folder / "model.safetensors", asked.width, asked.blocks, asked.patch, WINDOW
        )
        scan = make_scan(folder / "scans" / "huge.nii", asked.shape)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for name, chosen in ways.items():
            for _ in range(asked.runs if chosen[-2:] == limit else 1):
                common = ["--device", asked.device]
                shutil.rmtree(folder / name, ignore_errors=True)
                run = translate(scan.parent, model, folder / name, *common, *chosen)
                runs[name].append(measured(run, context))
                print(name, runs[name][-1]["seconds"], runs[name][-1]["stages"], flush=True)
        made = [folder / name / scan.name for name in ways if "volume" in name]
        is_same = filecmp.cmp(*made, shallow=False)
        fastest = {name: min(run["seconds"] for run in runs[name]) for name in ways}
        record: dict[str, Any] = {
            "what": (__doc__ or "").splitlines()[0],
            "volume": asked.shape,
            "file_bytes": scan.stat().st_size,
            "patch": asked.patch,
            "overlap": asked.overlap,
            "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
            "vram_limit": asked.vram_limit,
            "context_bytes": context,
            "runs": runs,
            "volume_by_patches": round(fastest["volume"] / fastest["patches"], 3),
            "same_bytes_at_both_limits": is_same,
            "seconds_in_all": round(time.perf_counter() - begin, 1),
        }
    keep(record, asked.output)
    if not is_same:
        raise SystemExit("the limit changed the result")


if __name__ == "__main__":
    main()
