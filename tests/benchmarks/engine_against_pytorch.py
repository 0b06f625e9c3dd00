"""Times the compiled program and PyTorch's modes on one card, in one process; writes JSON.

python tests/benchmarks/engine_against_pytorch.py --width 32 --output results.json
"""

import argparse
import json
import platform
from collections.abc import Callable
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch
from helpers.gpu_networks import untrained_network
from torch import nn

from cuda_cyclegan.engine.architectures import ResNetSpec, build
from cuda_cyclegan.engine.cuda import CudaGenerator, CudaOptions
from cuda_cyclegan.engine.cuda_probe import cuda_devices
from cuda_cyclegan.engine.plan_search import Search

MIB = 2**20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for last in (False, True):
            layers += [nn.ReflectionPad3d(1), nn.Conv3d(width, width, 3), nn.InstanceNorm3d(width)]
            layers += [] if last else [nn.ReLU(True)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def resnet(width: int, blocks: int) -> nn.Sequential:
    """The generator as its PyTorch implementations write it."""
    layers: list[nn.Module] = [nn.ReflectionPad3d(3), nn.Conv3d(1, width, 7)]
    layers += [nn.InstanceNorm3d(width), nn.ReLU(True)]
    for scale in (1, 2):
        layers += [nn.Conv3d(scale * width, 2 * scale * width, 3, 2, 1)]
        layers += [nn.InstanceNorm3d(2 * scale * width), nn.ReLU(True)]
    layers += [Block(4 * width) for _ in range(blocks)]
    for scale in (4, 2):
        layers += [nn.ConvTranspose3d(scale * width, scale * width // 2, 3, 2, 1, 1)]
        layers += [nn.InstanceNorm3d(scale * width // 2), nn.ReLU(True)]
    layers += [nn.ReflectionPad3d(3), nn.Conv3d(width, 1, 7), nn.Tanh()]
    return nn.Sequential(*layers)


def load(model: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Both hold the same layers in the same order."""
    arrays = iter(weights.values())
    for name, parameter in model.state_dict().items():
        array = next(arrays)
        assert parameter.shape == array.shape, name
        parameter.copy_(torch.from_numpy(array))


@contextmanager
def settings(tf32: bool, benchmark: bool):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = benchmark
    yield
    torch.backends.cudnn.benchmark = False


def captured(model: Callable, x: torch.Tensor) -> Callable:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return lambda _: graph.replay()


def timed(run: Callable[[], object], repeats: int) -> list[float]:
    for _ in range(5):
        run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def row(times: list[float], batch: int, **more: float) -> dict[str, float]:
    low, _, high = quantiles(times, n=4)
    per_patch = {"ms": median(times), "ms_quartile_1": low, "ms_quartile_3": high}
    return {name: round(value / batch, 4) for name, value in per_patch.items()} | more


MODES = {
    "eager fp32, TF32 off": {"half": False, "tf32": False},
    "eager default": {"half": False},
    "TF32, benchmark, channels last": {"half": False, "benchmark": True, "last": True},
    "half, benchmark": {"benchmark": True},
    "half, channels last, CUDA graph": {"benchmark": True, "last": True, "graph": True},
    "compile, TF32, channels last": {"half": False, "last": True, "compile": "default"},
    "compile, half, channels last": {"last": True, "compile": "default"},
    "compile max-autotune, half, channels last": {"last": True, "compile": "max-autotune"},
}


def pytorch(mode: dict, asked: argparse.Namespace, weights: dict, patches: np.ndarray) -> dict:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = resnet(asked.width, asked.blocks)
    load(model, weights)
    model = model.cuda().eval()
    x = torch.from_numpy(patches).cuda()
    if mode.get("half", True):
        model, x = model.half(), x.half()
    if mode.get("last"):
        model = model.to(memory_format=torch.channels_last_3d)
        x = x.contiguous(memory_format=torch.channels_last_3d)
    run: Callable = model
    with settings(mode.get("tf32", True), mode.get("benchmark", False)), torch.inference_mode():
        if "compile" in mode:
            torch._dynamo.reset()
            run = torch.compile(model, mode=mode["compile"])
        if mode.get("graph"):
            run = captured(model, x)
        times = timed(lambda: run(x), asked.repeats)
    peak = torch.cuda.max_memory_allocated() - before
    reserved = torch.cuda.max_memory_reserved()
    return row(times, asked.batch, peak_mib=peak / MIB, reserved_mib=reserved / MIB)


def ours(precision: str, asked: argparse.Namespace, network, patches: np.ndarray) -> dict:
    torch.cuda.empty_cache()
    options = CudaOptions(
        tuple(asked.patch), asked.batch, precision, cache=asked.cache, search=Search("full", 120)
    )
    with CudaGenerator(network, options) as generator:
        got = generator(patches)
        times = [generator.time(1) for _ in range(asked.repeats + 5)][5:]
        plan = generator.memory
        error = relative_error(got, network, asked, patches)
    return row(times, asked.batch, peak_mib=plan.bytes / MIB, relative_error=error)


def relative_error(got: np.ndarray, network, asked: argparse.Namespace, patches) -> float:
    """Against PyTorch in float64 on the card."""
    model = resnet(asked.width, asked.blocks)
    load(model, network.weights)
    with torch.inference_mode():
        wanted = model.double().cuda()(torch.from_numpy(patches).double().cuda()).cpu().numpy()
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--patch", type=int, nargs=3, default=(128, 128, 128))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--precisions", nargs="*", default=["fp16", "bf16", "tf32", "fp32"])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    network = untrained_network(build(ResNetSpec(1, 1, asked.width, asked.blocks)), seed=0)
    shape = (asked.batch, 1, *asked.patch)
    patches = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    rows = {}
    for precision in asked.precisions:
        rows[f"ours {precision}"] = ours(precision, asked, network, patches)
        print(precision, rows[f"ours {precision}"], flush=True)
    for name in asked.modes:
        rows[name] = pytorch(MODES[name], asked, network.weights, patches)
        print(name, rows[name], flush=True)
    [card, *_] = cuda_devices()
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    result = {
        "date": date.today().isoformat(),
        "card": card.name,
        "driver": card.driver,
        "python": platform.python_version(),
        **versions,
        "width": asked.width,
        "blocks": asked.blocks,
        "patch": list(asked.patch),
        "batch": asked.batch,
        "rows": rows,
    }
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n")


main()
