"""The table in docs/supported-gpus.md: memory of programs on GPUs that are only described.

    PYTHONPATH=tests python tests/benchmarks/described_gpus.py [--plans]

With --plans cuDNN is asked for its plans too, for which it must be installed, and cuBLAS with it.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.described_gpus import DESCRIBED, UNCONFIRMED, DescribedGpu
from support.driver_in_memory import output_of
from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler.program.fitting import (
    MemoryBudget,
    ProgramRequest,
    fit,
    usual_batch,
)
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.options import Precision

PATCH = (128, 128, 128)
NETWORKS = {"ResNet": ResNetSpec(1, 1, 64, 9), "U-Net": UNetSpec(1, 1, 64, 5)}
PRECISIONS: tuple[Precision, ...] = ("fp16", "fp32")
CONTEXT = 600 << 20
"""Bytes that CUDA itself takes of a card; 527 MiB on an H200."""


@dataclass(frozen=True)
class Way:
    """Tactic of a convolution, without a workspace: cuDNN's choice is known only on the GPU."""

    name: str = "any"
    workspace: int = 0


def program(network: Network, gpu: DescribedGpu, precision: Precision) -> str:
    """MiB of the program, and its patches a run."""

    def chosen(shapes: list[ConvShape], _: int) -> Mapping[ConvShape, Way]:
        return dict.fromkeys(shapes, Way())

    batch = usual_batch(network.graph, PATCH, gpu.multiprocessors)
    wanted = ProgramRequest(PATCH, batch, precision, gpu.properties)
    fitted = fit(network, wanted, MemoryBudget((gpu.memory << 30) - CONTEXT), chosen)
    return f"{-(-fitted.memory.bytes >> 20)} ({fitted.lowered.layout.batch})"


def plans() -> dict[str, str]:
    """Return, by GPU, how many plans cuDNN has for a convolution, fewest and most over all
    precisions.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = json.loads(output_of(Path(folder), "support.described_chips", *DESCRIBED))
    return {
        gpu: " to ".join(map(str, (min(counts), max(counts))))
        for gpu, precisions in found.items()
        for counts in [[n for nets in precisions.values() for c in nets.values() for n in c if n]]
    }


def main() -> None:
    """Print the table, and which figures behind it are not confirmed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plans", action="store_true")
    counted = plans() if parser.parse_args().plans else {}
    networks = {name: random_network(build(spec), 0) for name, spec in NETWORKS.items()}
    heads = [f"{name} {precision}" for name in NETWORKS for precision in PRECISIONS]
    columns = ["card", "capability", "GiB", "SMs", *heads, "plans"]
    print("|", " | ".join(columns), "|")
    print("|", " | ".join(["---"] * len(columns)), "|")
    for gpu in DESCRIBED.values():
        cells = [program(net, gpu, each) for net in networks.values() for each in PRECISIONS]
        capability = ".".join(map(str, gpu.capability))
        reported = [gpu.name, capability, gpu.memory, gpu.multiprocessors, *cells]
        print("|", " | ".join(map(str, [*reported, counted.get(gpu.name, "")])), "|")
    doubts = [
        f"{field} {getattr(DESCRIBED[name], field)} of {name}"
        for name, fields in UNCONFIRMED.items()
        for field in fields
    ]
    print("\nNot confirmed by a document:", ", ".join(doubts))


if __name__ == "__main__":
    main()
