"""Networks of others on the CPU in fp32, beside PyTorch and OpenVINO.

    PYTHONPATH=tests python tests/benchmarks/networks_on_cpu.py --clones FOLDER [--only TEXT]

Those of networks_of_others.json that are imported, at the size of the author's own settings
(`usual` there), on a patch of 64^3 of noise. FOLDER: see networks_of_others.py.

- This program: the imported network, as `translate --device cpu` opens it.
- PyTorch: contiguous and channels last, eager.
- OpenVINO: the exported ONNX file as it is. Its own norms are less accurate (docs/cpu.md).

One network at a time, in a process of its own; all ways in turn. A time is the smallest of at least
2 runs of each, after one that compiles. Errors are relative L2 to PyTorch in fp32. Results are
stored after each; a second call does what the first has not, unless --only names it.
networks_page.py writes them into docs/networks.md.
"""

import argparse
import copy
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from benchmarks.code_of_others import PATCH, Row, built, label, listed, noise, prepared
from benchmarks.cpu_against_rivals import processor
from benchmarks.networks_beside_pytorch import (
    EXTENT,
    LAYOUTS,
    Layout,
    found,
    imported_network,
    merge,
    stored,
)
from benchmarks.networks_of_others import NEWER, OLDER, warm_up
from benchmarks.side_by_side import Turn, side_by_side
from torch import nn

from cuda_cyclegan.engine.cpu.openvino import open_openvino_generator
from cuda_cyclegan.engine.cpu.openvino import openvino as openvino_package
from cuda_cyclegan.engine.model.reference import relative_error

RESULT = Path(__file__).parent / "results" / "networks_on_cpu.json"
OURS, OPENVINO = "this program", "OpenVINO"
FEWEST, MOST, SECONDS = 2, 7, 4.0
"""Rounds, in each of which every way runs once, and seconds after which none follows."""

LIMIT = 600.0
"""Seconds for one network; then it is ended."""

Run = Callable[[np.ndarray], np.ndarray]


def main() -> None:
    arguments = _arguments()
    record = stored(arguments.output)
    record |= {
        "processor": processor(),
        "versions": {name: version(name) for name in ("torch", "openvino")},
    }
    wanted = {
        label(each["repository"], network["name"]): (each, network)
        for each, network in listed(arguments.only)
        if "refused" not in network
        and (arguments.only or "seconds" not in found(record, each, network))
    }
    work = {name: partial(measured, *pair, arguments.clones) for name, pair in wanted.items()}
    warm_up()
    for name, row in side_by_side(work, 1, LIMIT):
        merged = merge(record, *wanted[name], row)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
        shown = [f"{way} {1e3 * time:.0f} ms" for way, time in merged.get("seconds", {}).items()]
        print(f"{name}: {', '.join(shown) or merged['broken']}", flush=True)


def measured(each: Row, network: Row, clones: Path, _: Turn) -> Row:
    """Return the times of one network: a row of the results."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        generator = prepared(built(each, network, clones, folder, "usual"), network)
        patch = noise(network.get("channels", 1), max(EXTENT, network.get("patch", PATCH)))
        runs = {name: in_pytorch(generator, layout) for name, layout in LAYOUTS.items()}
        first, *_ = runs.values()
        exact = first(patch)
        ways = (OLDER, NEWER, ".pt2")  # OpenVINO reads ONNX files
        path, imported = imported_network(each, network, generator, patch, exact, folder, ways)
        runs[OURS] = stack.enter_context(open_openvino_generator(imported))
        if path.suffix == ".onnx":
            runs[OPENVINO] = in_openvino(path)
        errors = {
            name: relative_error(run(patch), exact)
            for name, run in runs.items()
            if run is not first
        }
        return {
            "parameters": sum(one.numel() for one in generator.parameters()),
            "patch": patch.shape[-1],
            "seconds": timed(runs, patch),
            "errors": errors,
        }


def in_pytorch(generator: nn.Module, layout: Layout) -> Run:
    """Return a run of a network in a memory order."""
    module = copy.deepcopy(generator)
    for one in (*module.parameters(), *module.buffers()):
        one.data = one.data.contiguous(memory_format=_order(one, layout))

    def run(patch: np.ndarray) -> np.ndarray:
        held = torch.from_numpy(patch)
        with torch.inference_mode():
            return module(held.contiguous(memory_format=_order(held, layout))).numpy()

    return run


def _order(array: torch.Tensor, layout: Layout) -> torch.memory_format:
    return layout.get(array.dim(), torch.contiguous_format)


def in_openvino(path: Path) -> Run:
    """Return a run of an exported file, as OpenVINO reads it."""
    compiled = (
        openvino_package().Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    )
    return lambda patch: compiled(patch)[0]


def timed(runs: dict[str, Run], patch: np.ndarray) -> dict[str, float]:
    """Return the seconds of the fastest run of each, the ways in turn."""
    best = dict.fromkeys(runs, float("inf"))
    end = perf_counter() + SECONDS
    for number in range(MOST):
        if number >= FEWEST and perf_counter() > end:
            break
        for name, run in runs.items():
            begin = perf_counter()
            run(patch)
            best[name] = min(best[name], perf_counter() - begin)
    return {name: round(time, 5) for name, time in best.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clones", type=Path, required=True, help="folder of the clones")
    parser.add_argument("--only", default="", help="part of 'REPOSITORY: NETWORK'")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
