"""Times of networks on a GPU in fp16, whole and by step, with all plans tried.

    PYTHONPATH=tests python tests/benchmarks/network_times.py [--networks R32,R64] [--result JSON]

Five medians of 20 launches each, in milliseconds; steps by name, how many, and microseconds of all.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from support.gpu_networks import untrained_network

from cuda_cyclegan.engine.benchmark.layer_times import work_of
from cuda_cyclegan.engine.cuda.cudnn import cudnn
from cuda_cyclegan.engine.cuda.patches.patch_generator import (
    CudaGenerator,
    CudaOptions,
    open_cuda_generator,
)
from cuda_cyclegan.engine.cuda.user_cache import cache_folder
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import SearchSettings
from cuda_cyclegan.engine.probe.cuda_packages import dotted
from cuda_cyclegan.engine.probe.gpus import cuda_devices

RESULT = Path(__file__).parent / "results" / "network_times.json"
USUAL: Triple = (128, 128, 128)
VOLUME: Triple = (180, 256, 256)
NETWORKS: dict[str, tuple[ResNetSpec | UNetSpec, Triple, int]] = {
    "R32": (ResNetSpec(1, 1, 32, 9), USUAL, 1),
    "R64": (ResNetSpec(1, 1, 64, 9), USUAL, 1),
    "R32-96": (ResNetSpec(1, 1, 32, 9), (96, 96, 96), 1),
    "R64-96": (ResNetSpec(1, 1, 64, 9), (96, 96, 96), 1),
    "U32": (UNetSpec(1, 1, 32, 5), USUAL, 1),
    "U64": (UNetSpec(1, 1, 64, 5), USUAL, 1),
    "U32x4": (UNetSpec(1, 1, 32, 5), USUAL, 4),
    "U64x4": (UNetSpec(1, 1, 64, 5), USUAL, 4),
    "R32-volume": (ResNetSpec(1, 1, 32, 9), VOLUME, 1),
    "R64-volume": (ResNetSpec(1, 1, 64, 9), VOLUME, 1),
}
"""Network, its patch and patches per launch, by kind and width."""


def measured(generator: CudaGenerator) -> dict[str, Any]:
    whole = [round(median(generator.times(20)) * 1e3, 4) for _ in range(5)]
    steps: dict[str, tuple[int, float]] = {}
    for step, microseconds in generator.step_times(5):
        name = work_of(step).text
        count, spent = steps.get(name, (0, 0.0))
        steps[name] = count + 1, spent + microseconds
    rows = [(name, count, round(spent, 1)) for name, (count, spent) in steps.items()]
    return {"ms": whole, "rows": sorted(rows, key=lambda row: -row[2])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    [card, *_] = cuda_devices()
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": card.name,
        "driver": card.driver,
        "cudnn": dotted(cudnn.backend_version()),
        "networks": {},
    }
    for name in asked.networks.split(","):
        spec, patch, batch = NETWORKS[name]
        network = untrained_network(build(spec), 0)
        options = CudaOptions("fp16", cache=cache_folder(), search=SearchSettings())
        with open_cuda_generator(network, options, patch, batch) as generator:
            record["networks"][name] = measured(generator)
        print(name, record["networks"][name]["ms"], flush=True)
        asked.result.write_text(json.dumps(record, indent=1) + "\n")


main()
