"""Seconds from a command to its first result, with and without the program's cache, beside PyTorch.

    PYTHONPATH=tests python tests/benchmarks/first_scan.py [--runs 5] [--options "--tune quick"]

One scan of 128^3, fp16, a 9-block ResNet and a U-Net of width 32, patches and the whole volume.
Each round runs, one after the other: the command with an empty cache (cold), again (warm), and a
fresh PyTorch process that imports torch, loads the weights and computes one patch in half precision
(eager). Byte code is kept between runs, as in an installation. Medians over the rounds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from support.bench_batches import make_scans, write_generator
from support.bench_command import keep

from cuda_cyclegan.engine.network.architectures import ResNetSpec, Spec, UNetSpec

RESULT = Path(__file__).parent / "results" / "first_scan.json"
EXTENT = 128
NETWORKS: dict[str, Spec] = {
    "ResNet-9": ResNetSpec(1, 1, 32, 9),
    "U-Net": UNetSpec(1, 1, 32, 6),
}
MODES = {"patches": (), "volume": ("--inference", "volume")}

EAGER = """
import sys, torch
from torch import nn

def block(width):
    norm = nn.InstanceNorm3d(width)
    conv = lambda: nn.Conv3d(width, width, 3, padding=1, padding_mode="reflect")
    return nn.Sequential(conv(), norm, nn.ReLU(), conv(), nn.InstanceNorm3d(width))

class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = block(width)
    def forward(self, x):
        return x + self.block(x)

class Level(nn.Module):
    def __init__(self, outer, inner, deeper):
        super().__init__()
        self.down = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv3d(outer, inner, 4, 2, 1))
        self.deeper = deeper
        up = nn.ConvTranspose3d(2 * inner if deeper else inner, outer, 4, 2, 1)
        self.up = nn.Sequential(nn.ReLU(), up, nn.InstanceNorm3d(outer))
    def forward(self, x):
        low = self.down(x)
        return torch.cat([x, self.up(self.deeper(low) if self.deeper else low)], 1)

def resnet():
    first = nn.Conv3d(1, 32, 7, padding=3, padding_mode="reflect")
    layers = [first, nn.InstanceNorm3d(32), nn.ReLU()]
    for width in (32, 64):
        layers += [nn.Conv3d(width, 2 * width, 3, 2, 1), nn.InstanceNorm3d(2 * width), nn.ReLU()]
    layers += [Residual(128) for _ in range(9)]
    for width in (128, 64):
        up = nn.ConvTranspose3d(width, width // 2, 3, 2, 1, output_padding=1)
        layers += [up, nn.InstanceNorm3d(width // 2), nn.ReLU()]
    last = nn.Conv3d(32, 1, 7, padding=3, padding_mode="reflect")
    return nn.Sequential(*layers, last, nn.Tanh())

def unet():
    level = None
    for outer, inner in ((256, 256), (256, 256), (128, 256), (64, 128), (32, 64)):
        level = Level(outer, inner, level)
    return nn.Sequential(
        nn.Conv3d(1, 32, 4, 2, 1), level, nn.ReLU(), nn.ConvTranspose3d(64, 1, 4, 2, 1), nn.Tanh()
    )

network = resnet() if sys.argv[1] == "ResNet-9" else unet()
if len(sys.argv) > 3:
    torch.save(network.state_dict(), sys.argv[2])
else:
    network.load_state_dict(torch.load(sys.argv[2], weights_only=True))
    with torch.inference_mode():
        network.cuda().half()(torch.zeros(1, 1, 128, 128, 128).cuda().half()).float().cpu()
"""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    taken = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return round(taken, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--options", default="", help="more options of the command")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--without-pytorch", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        [scan] = make_scans(root / "scans", 1, (EXTENT,) * 3, ".nii.gz")
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(root / "cache"),
            "PYTHONPYCACHEPREFIX": str(root / "compiled"),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        for name in asked.networks:
            model = write_generator(root / f"{name}.safetensors", NETWORKS[name], (EXTENT,) * 3)
            command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(scan), "--quiet"]
            command += ["--model", str(model), "--output", str(root / "out"), "--overwrite"]
            command += ["--device", "cuda", "--precision", "fp16", *asked.options.split()]
            rows = found[name] = {}
            for turn in range(asked.runs + 1):  # the first one fills the page cache
                for mode, options in MODES.items():
                    shutil.rmtree(root / "cache", ignore_errors=True)
                    for state in ("cold", "warm"):
                        taken = seconds([*command, *options], environment)
                        rows.setdefault(f"{mode}, {state}", []).extend([taken] if turn else [])
                if not asked.without_pytorch:
                    weights = root / f"{name}.pth"
                    eager = [sys.executable, "-c", EAGER, name, str(weights)]
                    if not turn:
                        seconds([*eager, "save"], environment)
                    rows.setdefault("PyTorch eager", []).append(seconds(eager, environment))
            print(name, json.dumps({row: median(each) for row, each in rows.items()}), flush=True)
    keep(
        {
            "what": (__doc__ or "").splitlines()[0],
            "moment": datetime.now(UTC).isoformat(timespec="seconds"),
            "options": asked.options,
            "seconds": found,
        },
        asked.result,
    )


if __name__ == "__main__":
    main()
