"""A volume far larger than the device memory it may use, through the command.

    PYTHONPATH=tests python tests/benchmarks/huge_volume.py

1024x1024x800 int16, uncompressed, with a limit of 4 GiB and without one; the two results must be
equal up to the arithmetic's rounding. Device bytes are those of the card, less what was in use
before and less what a process takes that has done no more than open cuDNN.
"""

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
"""Of distinct noise, which repeats along k."""

TOLERANCE = 5e-3
"""Relative L2 difference of two ways to compute the same in fp16."""

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
    """What a process takes that only has a context and a cuDNN handle; 0 if it opens none."""
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
        "seconds": round(run.seconds, 1),
        "stages": row["stages"],
        "tiles": row["tiles"],
        "device_bytes": peak,
        "device_bytes_less_context": peak - context,
        "host_bytes": max(sample.resident for sample in run.samples),
        "host_bytes_by_voxel": max(s.resident for s in run.samples) / row["voxels"],
    }


def difference(one: Path, other: Path) -> dict[str, float]:
    """Of two results, slab by slab, in network intensities."""
    a, b = (np.asanyarray(nibabel.load(path).dataobj) for path in (one, other))
    if a.dtype != b.dtype or a.shape != b.shape:
        raise SystemExit(f"{a.dtype} {a.shape} is not {b.dtype} {b.shape}")
    square = size = 0.0
    equal, largest = 0, 0
    for first in range(0, a.shape[2], SLICES):
        mine, other_ = (v[:, :, first : first + SLICES].astype(np.float32) for v in (a, b))
        apart = mine - other_
        square += float(np.square(apart).sum(dtype=np.float64))
        size += float(np.square(mine).sum(dtype=np.float64))
        equal += int((apart == 0).sum())
        largest = max(largest, int(np.abs(apart).max()))
    return {
        "relative_error": (square / size) ** 0.5,
        "equal_share": equal / a.size,
        "largest_steps": largest,
    }


def main() -> None:
    parser = options("huge_volume", __doc__)
    parser.set_defaults(shape=(1024, 1024, 800))
    parser.add_argument("--vram-limit", default="4GiB")
    parser.add_argument("--overlap", type=float, default=0.25)
    asked = parser.parse_args()
    begin, context = time.perf_counter(), context_bytes()
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder = Path(root)
        model = write_model(
            folder / "model.safetensors", asked.width, asked.blocks, asked.patch, WINDOW
        )
        scan = make_scan(folder / "scans" / "huge.nii", asked.shape)
        common = ["--device", asked.device, "--overlap", str(asked.overlap)]
        limit = ["--vram-limit", asked.vram_limit]
        limited = translate(scan.parent, model, folder / "limited", *common, *limit)
        free = translate(scan.parent, model, folder / "free", *common)
        apart = difference(folder / "limited" / scan.name, folder / "free" / scan.name)
        record: dict[str, Any] = {
            "what": (__doc__ or "").splitlines()[0],
            "volume": asked.shape,
            "file_bytes": scan.stat().st_size,
            "patch": asked.patch,
            "overlap": asked.overlap,
            "network": f"ResNet of width {asked.width} with {asked.blocks} blocks",
            "vram_limit": asked.vram_limit,
            "context_bytes": context,
            "limited": measured(limited, context),
            "without_limit": measured(free, context),
            "limited_against_without": apart,
            "seconds_in_all": round(time.perf_counter() - begin, 1),
        }
    keep(record, asked.output)
    if apart["relative_error"] > TOLERANCE:
        raise SystemExit("the limit changed the result")


if __name__ == "__main__":
    main()
