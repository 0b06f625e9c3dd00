"""One patch on the CPU by this program and by all that a user could run instead.

    PYTHONPATH=tests python tests/benchmarks/cpu_against_rivals.py
        [--networks "ResNet,CUT"] [--ways "PyTorch eager,OpenVINO"] [--cores 0,1] [--rounds 3]
        [--output FILE.json]

Each way runs in a process of its own, the ways in turn, as often as there are rounds; rows are
medians of all runs. ONNX Runtime and OpenVINO get the exported network as it is. Peak memory is
that of the whole process. Errors are relative L2 to PyTorch in float32, so PyTorch has none.
"""

import argparse
import json
import os
import pickle
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

RESULT = Path(__file__).parent / "results" / "cpu_against_rivals.json"
PATCHES = {"ResNet": 64, "CUT": 64, "U-Net": 96, "DynUNet": 96}
WAYS = (
    "PyTorch eager",
    "PyTorch compile",
    "ONNX Runtime",
    "OpenVINO",
    "this program fp32",
    "PyTorch bf16",
    "OpenVINO bf16",
    "this program bf16",
)
SECONDS, FEWEST = 2.0, 3
"""Seconds, and fewest runs, measured in one process, after one run that compiles and one that warms
up.
"""

Run = Callable[[FloatArray], FloatArray]


def module_of(name: str) -> Any:
    """ResNet and CUT: ngf 32, 9 blocks. U-Net: width 32, 5 levels. DynUNet: 32 to 320 channels."""
    import torch
    from support import torch_generators, torch_variants

    torch.manual_seed(0)
    match name:
        case "ResNet":
            module = torch_generators.padded_resnet(width=32, blocks=9)
        case "CUT":
            module = torch_variants.anti_aliased(width=32, blocks=9)
        case "U-Net":
            module = torch_generators.UNet(1, 1, 5, 32)
        case _:
            from monai.networks import nets

            widths, norm = [32, 64, 128, 256, 320], ("INSTANCE", {"affine": True})
            kernels, strides, ups = [3] * 5, [1, 2, 2, 2, 2], [2] * 4
            module = nets.DynUNet(3, 1, 1, kernels, strides, ups, filters=widths, norm_name=norm)
    return torch_generators.trained(module).eval()


def imported(name: str, folder: Path) -> Network:
    from support.onnx_networks import exported

    from cuda_cyclegan.engine.importing.onnx_file import read_onnx
    from cuda_cyclegan.engine.importing.operators.converter import convert_graph

    path = exported(module_of(name), folder / f"{name}.onnx", extent=32)
    return convert_graph(read_onnx(path), None).network


def pytorch(name: str, way: str) -> Run:
    import torch

    module, kind = module_of(name), torch.float32
    layout = {}
    if way == "PyTorch bf16":
        kind, layout = torch.bfloat16, {"memory_format": torch.channels_last_3d}
        module = module.to(kind, **layout)
    if way == "PyTorch compile":
        module = torch.compile(module)
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def run(patch: FloatArray) -> FloatArray:
        with torch.inference_mode():
            return module(torch.from_numpy(patch).to(kind, **layout)).float().numpy()

    return run


def onnxruntime(made: Network, _way: str) -> Run:
    import onnxruntime

    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    options = onnxruntime.SessionOptions()
    # By default it takes all cores of the machine, whatever this process may use.
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(
        to_onnx(made).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    [source] = session.get_inputs()
    return lambda patch: session.run(None, {source.name: patch})[0]


def openvino(made: Network, way: str) -> Run:
    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx
    from cuda_cyclegan.engine.cpu.openvino import openvino as package

    core = package().Core()
    hint = "bf16" if way.endswith("bf16") else "f32"
    model = core.read_model(to_onnx(made).SerializeToString())
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint})
    return lambda patch: compiled(patch)[0]


def measure(way: str, name: str, folder: Path) -> dict[str, Any]:
    """Seconds of each run, the error, and peak bytes of this process."""
    from cuda_cyclegan.engine.cpu.openvino import open_openvino_generator

    made: Network = pickle.loads((folder / f"{name}.pickle").read_bytes())
    patch = np.load(folder / f"{name}.npy")
    begin = perf_counter()
    if way.startswith("this"):
        opened = open_openvino_generator(made, "bf16" if way.endswith("bf16") else "fp32")
        run: Run = opened.__enter__()
    else:
        kind = way.partition(" ")[0]
        run = (
            pytorch(name, way)
            if kind == "PyTorch"
            else {"ONNX": onnxruntime, "OpenVINO": openvino}[kind](made, way)
        )
    output = run(patch)
    opening = perf_counter() - begin
    run(patch)
    spent = list[float]()
    while len(spent) < FEWEST or sum(spent) < SECONDS:
        begin = perf_counter()
        run(patch)
        spent.append(perf_counter() - begin)
    expected = folder / f"{name} expected.npy"
    if way == WAYS[0]:
        np.save(expected, output)
    status = Path("/proc/self/status").read_text()
    [peak] = (int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line)
    error = relative_error(output, np.load(expected))
    return {"seconds": spent, "first": opening, "error": error, "peak_bytes": peak}


def processor() -> Mapping[str, Any]:
    """Return the processor's name and the instructions that count here."""
    text = Path("/proc/cpuinfo").read_text()
    [flags, *_] = (line for line in text.splitlines() if line.startswith("flags"))
    names = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    [model, *_] = (line for line in text.splitlines() if line.startswith("model name"))
    return {
        "name": model.partition(":")[2].strip(),
        "machine": platform.machine(),
        "features": [name for name in names if name in flags.split()],
        "cores": sorted(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(PATCHES))
    parser.add_argument("--ways", default=",".join(WAYS), help="PyTorch eager is always first")
    parser.add_argument("--cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        way, name, folder = arguments.one
        print(json.dumps(measure(way, name, Path(folder))))
        return
    if arguments.cores:
        os.sched_setaffinity(0, {int(core) for core in arguments.cores.split(",")})
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "versions": {name: version(name) for name in ("torch", "onnxruntime", "openvino")},
        "networks": {},
    }
    with TemporaryDirectory() as folder:
        for name in arguments.networks.split(","):
            record["networks"][name] = compare(
                name, arguments.ways.split(","), Path(folder), arguments.rounds
            )
            arguments.output.write_text(json.dumps(record, indent=2) + "\n")


def compare(name: str, ways: Sequence[str], folder: Path, rounds: int) -> dict[str, Any]:
    """Rows of one network by way, which are run in turn."""
    extent = PATCHES[name]
    random = np.random.default_rng(0)
    np.save(folder / f"{name}.npy", random.uniform(-1, 1, (1, 1, *[extent] * 3)).astype(np.float32))
    (folder / f"{name}.pickle").write_bytes(pickle.dumps(imported(name, folder)))
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            command = [sys.executable, __file__, "--one", way, name, str(folder)]
            reported = subprocess.run(command, capture_output=True, text=True, check=False)
            if reported.returncode:
                print(name, way, reported.stderr.splitlines()[-1:], flush=True)
            else:
                runs[way].append(json.loads(reported.stdout.splitlines()[-1]))
    rows = dict[str, Any]()
    for way, measured in runs.items():
        if measured:
            rows[way] = {
                "median": median(spent for run in measured for spent in run["seconds"]),
                "least": min(spent for run in measured for spent in run["seconds"]),
                "first": median(run["first"] for run in measured),
                "error": measured[0]["error"],
                "peak_bytes": max(run["peak_bytes"] for run in measured),
            }
            print(name, way, rows[way], flush=True)
    return {"extent": extent, "ways": rows}


if __name__ == "__main__":
    main()
