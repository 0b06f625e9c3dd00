"""Networks of other families, imported from ONNX, against PyTorch: parity, and speed on one card.

    PYTHONPATH=tests python tests/benchmarks/imported_networks.py [--networks DynUNet,CUT]

Each is exported by PyTorch, imported, and compared with the module it came from: on the CPU on
patches of 64^3, on the card in fp32 on the same and in fp16 on 128^3. torch.compile takes a minute
and more for one network, most of it on the host, so all are compiled side by side, each in a
process of its own, once ours are measured; then each is timed while the others wait.
"""

import argparse
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.engine_against_pytorch import exact, versions
from monai.networks import nets
from support import torch_generators, torch_variants
from support.onnx_networks import exported, pix2pix_hd
from torch import nn

from cuda_cyclegan.engine.benchmark import gpu as cuda_bench
from cuda_cyclegan.engine.benchmark import pytorch as torch_bench
from cuda_cyclegan.engine.benchmark.alternatives import EAGER_HALF, MODES, Mode
from cuda_cyclegan.engine.benchmark.measurement import Budget, Latency
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.graph_analysis import flops
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import SearchSettings
from cuda_cyclegan.pipelines.bench.layers import grouped

RESULT = Path(__file__).parent / "results" / "imported_networks.json"
PATCH, SMALL = (128, 128, 128), (64, 64, 64)
INPUTS = 4
OURS = "cuda-cyclegan fp16"
SLOWEST = 12
"""Groups of steps that are reported of each network."""

TUNED = 8.0
"""Seconds in which plans are looked for."""

EXPORTED = 32
"""Extent of the patch that the exporter follows; the files take any other."""

[COMPILED] = (mode for mode in MODES if mode.name.startswith("compile max-autotune half"))
_NORM = ("INSTANCE", {"affine": True})
NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "DynUNet": lambda: nets.DynUNet(
        3, 1, 1, [3] * 5, [1, 2, 2, 2, 2], [2] * 4, filters=[32, 64, 128, 256, 320], norm_name=_NORM
    ),
    "CUT": lambda: torch_variants.anti_aliased(width=32, blocks=9),
    "BasicUNet": lambda: nets.BasicUNet(3, 1, 1),
    "UNet of residual units": lambda: nets.UNet(
        3, 1, 1, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2
    ),
    "SegResNet": lambda: nets.SegResNet(3, 16, 1, 1),
    "AutoEncoder": lambda: nets.AutoEncoder(
        3, 1, 1, (32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2
    ),
    "pix2pixHD": lambda: pix2pix_hd(32, 3, 9),
    "AttentionUnet": lambda: nets.AttentionUnet(3, 1, 1, (32, 64, 128, 256), (2, 2, 2)),
    "U-Net 32": lambda: torch_generators.UNet(1, 1, 5, 32),
    "U-Net 64": lambda: torch_generators.UNet(1, 1, 5, 64),
    "U-Net 32 x 4": lambda: torch_generators.UNet(1, 1, 5, 32),
    "U-Net 64 x 4": lambda: torch_generators.UNet(1, 1, 5, 64),
}
"""The last four: the nested U-Net of the CycleGAN repositories, of 5 levels, by width and batch."""


def main() -> None:
    arguments = _arguments()
    budget = Budget(arguments.seconds)
    if arguments.compiled:
        compile_and_wait(arguments.compiled, budget)
        return
    names = arguments.networks.split(",")
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": versions(),
        "patch": PATCH,
        "networks": {},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        on_gpu = torch.cuda.is_available()
        imported = {name: imported_network(name, folder) for name in names}
        for name in names:
            error = cpu_error(module_of(name), imported[name])
            print(f"{name}: CPU fp32 error {error:.1e}", flush=True)
            record["networks"][name] = {"errors": {"CPU fp32": error}}
        if on_gpu:
            torch.zeros(1, device="cuda")  # cuDNN does not outlive the context it was first used in
            record["card"] = torch.cuda.get_device_name()
            for name in names:
                measure(name, imported[name], budget, folder, record["networks"][name])
                arguments.output.write_text(json.dumps(record, indent=2) + "\n")
            limit = time.monotonic() + arguments.compile_limit
            compilers = {name: stack.enter_context(compiler(name)) for name in names}
            wait_for(compilers, limit)
            for name, process in compilers.items():
                compare(name, process, record["networks"][name])
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")


def module_of(name: str) -> nn.Module:
    """A network of the size that its users train, with weights that show when one is misplaced."""
    torch.manual_seed(0)
    return torch_generators.trained(NETWORKS[name]()).eval()


def batch_of(name: str) -> int:
    """Patches of one launch."""
    return 4 if name.endswith(" x 4") else 1


def imported_network(name: str, folder: Path) -> Network:
    path = exported(module_of(name), folder / f"{name}.onnx", extent=EXPORTED)
    return convert_graph(read_onnx(path), None).network


def noise(extents: tuple[int, int, int], batch: int = 1) -> FloatArray:
    shape = (batch, 1, *extents)
    return np.random.default_rng(1).uniform(-1, 0.8, shape).astype(np.float32)


def cpu_error(module: nn.Module, network: Network) -> float:
    """Relative L2 of the imported network on the CPU."""
    with torch.inference_mode():
        expected = module(torch.from_numpy(noise(SMALL))).numpy()
    with open_cpu_generator(network) as generator:
        return relative_error(generator(noise(SMALL)), expected)


def compiler(name: str) -> "subprocess.Popen[str]":
    """A process that compiles a network and tells when it has."""
    words = [sys.executable, __file__, "--compiled", name]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def compile_and_wait(name: str, budget: Budget) -> None:
    """Compile in that process, and time when requested."""
    inputs = [torch.rand((batch_of(name), 1, *PATCH), device="cuda") * 2 - 1 for _ in range(INPUTS)]
    begin = time.monotonic()
    with torch_bench.running(COMPILED, module_of(name), inputs[0]) as run:
        print(f"{name}: compiled in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        print("compiled", flush=True)
        if sys.stdin.readline():
            layout = torch.channels_last_3d
            halves = [patches.half().contiguous(memory_format=layout) for patches in inputs]
            runs = [lambda p=patches: run(p) for patches in halves]
            print(json.dumps(asdict(Latency.of(torch_bench.seconds_on_gpu(runs, budget)))))


def wait_for(compilers: "Mapping[str, subprocess.Popen[str]]", limit: float) -> None:
    """Wait until all have compiled or the limit is over; those that have not are ended."""
    left = dict(compilers)
    while left and time.monotonic() < limit:
        time.sleep(0.2)
        left = {name: one for name, one in left.items() if not _has_told(one)}
    for name, process in left.items():
        print(f"{name}: not compiled in time", flush=True)
        process.kill()
        process.wait()


def _has_told(process: "subprocess.Popen[str]") -> bool:
    return process.poll() is not None or bool(select.select([process.stdout], [], [], 0)[0])


def compare(name: str, process: "subprocess.Popen[str]", row: dict[str, Any]) -> None:
    """Time a compiled network, and put what ours takes beside it; nothing if it did not compile."""
    reported, _ = process.communicate("now\n") if process.poll() is None else ("", "")
    *_, last = reported.splitlines() or [""]
    if not last.startswith("{"):
        return
    seconds: dict[str, float] = row["seconds"]
    seconds[COMPILED.name] = json.loads(last)["median"]
    row["ours / compiled"] = seconds[OURS] / seconds[COMPILED.name]
    print(f"{name}: compiled {seconds[COMPILED.name] * 1e3:.2f} ms, {row['ours / compiled']:.3f}")


def measure(name: str, network: Network, budget: Budget, cache: Path, row: dict[str, Any]) -> None:
    """One network on the card, alone; fills its row."""
    patches, module = noise(PATCH, batch_of(name)), module_of(name)
    inputs = [torch.from_numpy(patches).cuda()]
    row["seconds"], errors = {}, row["errors"]
    seconds: dict[str, float] = row["seconds"]
    seconds[EAGER_HALF.name] = eager_seconds(EAGER_HALF, module, inputs, budget)
    options = CudaOptions(cache=cache, search=SearchSettings("full", TUNED))
    made: list[FloatArray] = []
    found = cuda_bench.measure_on_gpu(network, options, len(patches), patches, budget, made.append)
    seconds[OURS] = found.latency.median
    errors["card fp16"] = relative_error(made[0], exact(module, inputs[0]))
    errors["card fp32"] = gpu_error(module, network, cache)
    row["flops"] = flops(network.graph, PATCH)
    row["steps"] = [
        {
            "what": group.name,
            "plan": group.plan,
            "seconds": group.seconds,
            "flops": group.flops,
            "bytes": group.bytes,
        }
        for group in grouped(found.layers)[:SLOWEST]
    ]
    if found.ceilings is not None:
        row["ceilings"] = asdict(found.ceilings)
    shown = {key: f"{value * 1e3:.2f} ms" for key, value in seconds.items()}
    print(name, shown, errors, flush=True)
    for group in row["steps"]:
        print(f"    {group['seconds'] * 1e6:8.0f} us  {group['what']}  [{group['plan']}]")


def eager_seconds(
    mode: Mode, module: nn.Module, inputs: list[torch.Tensor], budget: Budget
) -> float:
    return torch_bench.measure(mode, module, inputs, budget).latency.median


def gpu_error(module: nn.Module, network: Network, cache: Path) -> float:
    """Relative L2 of the imported network in fp32 on the card."""
    options = CudaOptions("fp32", cache=cache, search=SearchSettings("off"))
    expected = exact(module, torch.from_numpy(noise(SMALL)).cuda())
    with open_cuda_generator(network, options, SMALL) as generator:
        return relative_error(generator(noise(SMALL)), expected)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each")
    parser.add_argument("--compile-limit", type=float, default=600.0, help="seconds for all")
    parser.add_argument("--compiled", metavar="NAME", help="compile this and wait for a line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
