"""Whole networks with and without searched launches of custom kernels, alternately on one GPU.

    PYTHONPATH=tests python tests/benchmarks/launch_search.py [--networks R32,U64] [--result JSON]

Both programs of a network take the same cuDNN plans and forms, found before. They are open at the
same time and run in turns, each of 20 launches, in both orders; a round's ratio is the time without
the search by the time with it. The search pays where the median ratio of a network is 1.02 or more.
"""

import argparse
import json
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from msgspec import structs
from support.gpu_networks import untrained_network

from cuda_cyclegan.engine.compiler.launches.variants import variant_name
from cuda_cyclegan.engine.cuda.cudnn import cudnn
from cuda_cyclegan.engine.cuda.launch_search import LaunchSearch
from cuda_cyclegan.engine.cuda.patches.generator import (
    CudaGenerator,
    CudaOptions,
    open_cuda_generator,
)
from cuda_cyclegan.engine.cuda.plan_cache import cache_folder
from cuda_cyclegan.engine.cuda.plan_search import SearchSettings
from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.probe.cards import cuda_devices
from cuda_cyclegan.engine.probe.cudnn_copies import dotted

USUAL: Triple = (128, 128, 128)
R32, R64 = ResNetSpec(1, 1, 32, 9), ResNetSpec(1, 1, 64, 9)
U32, U64 = UNetSpec(1, 1, 32, 5), UNetSpec(1, 1, 64, 5)
NETWORKS: dict[str, tuple[Spec, Triple, int, Precision]] = {
    "R32": (R32, USUAL, 1, "fp16"),
    "R32x4": (R32, USUAL, 4, "fp16"),
    "R64": (R64, USUAL, 1, "fp16"),
    "R32-96": (R32, (96, 96, 96), 1, "fp16"),
    "R32-volume": (R32, (180, 256, 256), 1, "fp16"),
    "R32-bf16": (R32, USUAL, 1, "bf16"),
    "R32-tf32": (R32, USUAL, 1, "tf32"),
    "R32-fp32": (R32, USUAL, 1, "fp32"),
    "R32-group": (structs.replace(R32, norm=Groups(8)), USUAL, 1, "fp16"),
    "R32-trilinear": (
        structs.replace(R32, upsampling="trilinear", blur=Blur()), USUAL, 1, "fp16"
    ),
    "U32": (U32, USUAL, 1, "fp16"),
    "U32x4": (U32, USUAL, 4, "fp16"),
    "U64": (U64, USUAL, 1, "fp16"),
    "U64-fp32": (U64, USUAL, 1, "fp32"),
    "U32-nearest": (structs.replace(U32, upsampling="nearest"), USUAL, 1, "fp16"),
}  # fmt: skip
"""By kind and width: the network, its patch, patches a launch, and the precision."""


def compared(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    spec, extents, batch, precision = NETWORKS[name]
    network = untrained_network(build(spec), 0)
    search = SearchSettings(seconds=seconds)
    options = CudaOptions(extents, batch, precision, cache=cache_folder(), search=search)
    with ExitStack() as opened:
        searched = opened.enter_context(open_cuda_generator(network, options))
        with patch.object(LaunchSearch, "tuned", lambda _self, lowered, *_: lowered):
            usual = opened.enter_context(open_cuda_generator(network, options))
        assert _plans(searched) == _plans(usual), "both must take the same plans"
        ratios: list[float] = []
        times: dict[str, list[float]] = {"searched": [], "usual": []}
        for number in range(rounds + 1):
            order = (searched, usual) if number % 2 else (usual, searched)
            took = {id(one): median(one.times(20)) * 1e3 for one in order}
            if number:  # the first round warms both up
                ratios.append(took[id(usual)] / took[id(searched)])
                times["searched"].append(took[id(searched)])
                times["usual"].append(took[id(usual)])
        low, _, high = quantiles(ratios, n=4)
        return {
            "ratio": round(median(ratios), 4),
            "quartiles": [round(low, 4), round(high, 4)],
            "ms": {kind: round(median(found), 4) for kind, found in times.items()},
            "variants": [text for step in searched._fitted.lowered.steps
                         if (text := variant_name(step))],
        }  # fmt: skip


def _plans(generator: CudaGenerator) -> dict[str, str]:
    fitted = generator._fitted
    return {repr(shape): one.name for shape, one in fitted.algorithms.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="Of a first search for plans.")
    parser.add_argument("--result", type=Path)
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
        record["networks"][name] = compared(name, asked.rounds, asked.seconds)
        print(name, json.dumps(record["networks"][name]), flush=True)
        if asked.result:
            asked.result.write_text(json.dumps(record, indent=1) + "\n")


main()
