"""Errors on the CPU against PyTorch in float64, for every network of the test families.

    PYTHONPATH=tests python tests/benchmarks/cpu_exactness.py [--extent 128] [--output FILE.json]

The patch is like a head: a background of -1, and tissue whose mean is large beside its deviation.
Allowed is the larger of 5e-6 and 1.5 times the error of PyTorch in float32. The networks are narrow
(8 channels), as float64 takes much memory; PyTorch computes it on a GPU if there is one.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.covering_networks import SPECS
from support.gpu_networks import ODD_GRAPHS, random_network
from support.network_features import trained

from cuda_cyclegan.engine.benchmark.pytorch import as_module
from cuda_cyclegan.engine.cpu.openvino import open_openvino_generator
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.generator import PatchGenerator
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray

RESULT = Path(__file__).parent / "results" / "cpu_exactness.json"
LEAST, FACTOR = 5e-6, 1.5
RUNTIMES: dict[str, Callable[[Network], AbstractContextManager[PatchGenerator]]] = {
    "OpenVINO": open_openvino_generator,
    "ONNX Runtime": open_cpu_generator,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extent", type=int, default=128)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = dict[str, dict[str, Any]]()
    for name, network in networks():
        rows[name] = measure(network, arguments.extent)
        print(name, rows[name], flush=True)
    missed = [name for name, row in rows.items() if not row["within"]]
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "extent": arguments.extent,
        "missed": missed,
        "errors": rows,
    }
    arguments.output.write_text(json.dumps(record, indent=2) + "\n")


def networks() -> Iterator[tuple[str, Network]]:
    for name, spec in SPECS.items():
        yield name, trained(spec)
    for number, (name, graph) in enumerate(ODD_GRAPHS.items()):
        if graph.patch is None:
            yield name, random_network(graph, number)


def head(channels: int, extent: int) -> FloatArray:
    """A patch [1, C, extent, extent, extent] with a skull-like ball in a background of -1."""
    random = np.random.default_rng(0)
    axis = np.linspace(-1.0, 1.0, extent)
    radius = np.sqrt(axis[:, None, None] ** 2 + axis[:, None] ** 2 + axis**2)
    patch = np.full((1, channels, extent, extent, extent), -1.0, np.float32)
    tissue = random.normal(0.3, 0.1, patch.shape).astype(np.float32)
    return np.where(radius < 0.75, tissue, patch)


def measure(network: Network, extent: int) -> dict[str, Any]:
    patch = head(network.graph.in_channels, extent)
    module, source = as_module(network), torch.from_numpy(patch)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode():
        single = module(source.clone()).numpy()
        exact = module.double().to(where)(source.double().to(where)).cpu().numpy()
    torch.cuda.empty_cache()
    errors: dict[str, Any] = {"PyTorch": relative_error(single, exact)}
    allowed = max(LEAST, FACTOR * errors["PyTorch"])
    for name, opening in RUNTIMES.items():
        with opening(network) as generator:
            errors[name] = relative_error(generator(patch), exact)
    return {**errors, "within": all(errors[name] <= allowed for name in RUNTIMES)}


if __name__ == "__main__":
    main()
