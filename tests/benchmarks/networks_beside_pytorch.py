"""Networks of others on one GPU in fp16, beside the best of PyTorch.

    PYTHONPATH=tests python tests/benchmarks/networks_beside_pytorch.py --clones FOLDER
        [--only TEXT] [--compile]

Those of networks_of_others.json that are imported, at the size of the author's own settings
(`usual` there), on a patch of 64^3 that lies on the GPU. FOLDER: see networks_of_others.py.

- This program: as `translate` opens a network the first time, and after it has searched for
  faster tactics as a batch does.
- PyTorch: half precision, contiguous and channels last, eager and in a CUDA graph; with --compile,
  instead, by torch.compile in a CUDA graph.

A time is that of the GPU by CUDA events, in milliseconds: the smallest of 5 medians of 20 launches.
Networks are built, exported, imported and compiled side by side; one at a time has the GPU, to
search and to be timed. Results are stored after each. A second call does what the first has not,
unless --only names it. networks_page.py writes them into docs/networks.md.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import torch
from benchmarks.code_of_others import PATCH, Row, built, label, listed, noise, prepared, sentence
from benchmarks.networks_of_others import NEWER, OLDER, routes, surveyed, warm_up
from benchmarks.networks_of_others import RESULT as IMPORTED
from benchmarks.side_by_side import Turn, side_by_side
from torch import nn

from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.options import SearchSettings, ignore_progress
from cuda_cyclegan.engine.probe.cuda_packages import dotted
from cuda_cyclegan.pipelines.model_import.importing import make_model

RESULT = Path(__file__).parent / "results" / "networks_beside_pytorch.json"
EXTENT = 64
LAUNCHES, ROUNDS, WARM_UP = 20, 5, 3
SEARCHED = 8.0
"""Seconds of the search after the first start."""

SECONDS = 600.0
"""Limit for one network, with its waits for the GPU; then it is ended."""

COMPILED, GRAPH = "compiled", ", graph"
FIRST, LATER = "first start", "later start"

Run: TypeAlias = Callable[[], torch.Tensor]
Way: TypeAlias = tuple[str, Callable[[], Run]]
"""A name, and what makes a run of it."""

Layout: TypeAlias = Mapping[int, torch.memory_format]
"""Memory orders of arrays of so many axes."""

LAYOUTS: dict[str, Layout] = {
    "contiguous": {},
    "channels last": {5: torch.channels_last_3d, 4: torch.channels_last},
}


def main() -> None:
    arguments = _arguments()
    record = stored(arguments.output)
    wanted = {
        label(each["repository"], network["name"]): (each, network)
        for each, network in listed(arguments.only)
        if "refused" not in network
        and (arguments.only or not is_measured(record, each, network, arguments.compile))
    }
    work = {name: partial(measured, *pair, arguments) for name, pair in wanted.items()}
    warm_up()
    for name, row in side_by_side(work, arguments.processes, SECONDS):
        for key in ("gpu", "versions"):
            record[key] = row.pop(key, record.get(key))
        merged = merge(record, *wanted[name], row)
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {summary(merged)}", flush=True)


def stored(path: Path) -> Row:
    return json.loads(path.read_text()) if path.exists() else {"networks": []}


def found(record: Row, each: Row, network: Row) -> Row:
    """Return what is stored of a network."""
    known = [each["repository"], network["name"]]
    rows = (row for row in record["networks"] if [row["repository"], row["name"]] == known)
    return next(rows, {})


def dates(rows: Iterable[Row]) -> str:
    """Return the days on which rows were measured, first and last."""
    days = {row["date"] for row in rows}
    first, last = min(days), max(days)
    return first if first == last else f"{first} to {last}"


def is_measured(record: Row, each: Row, network: Row, is_compiled: bool) -> bool:
    row = found(record, each, network)
    if is_compiled:
        return any(way.startswith(COMPILED) for way in row.get("pytorch", {}))
    return "ours" in row or "refused" in row


def merge(record: Row, each: Row, network: Row, row: Row) -> Row:
    """Put what was measured now beside what is stored of a network, and return both."""
    old = found(record, each, network)
    kept = {key: value for key, value in old.items() if key not in ("broken", *row)}
    merged = {
        "repository": each["repository"],
        "commit": each["commit"],
        "name": network["name"],
        **kept,
        **row,
        "date": datetime.now(UTC).date().isoformat(),
    }
    for key in ("pytorch", "pytorch errors"):
        if ways := {**old.get(key, {}), **row.get(key, {})}:
            merged[key] = ways
    rows = [one for one in record["networks"] if one is not old]
    record["networks"] = sorted([*rows, merged], key=lambda one: (one["repository"], one["name"]))
    return merged


def best(row: Row) -> tuple[str, float] | None:
    """Return PyTorch's fastest way and its milliseconds."""
    ways = {way: time for way, time in row.get("pytorch", {}).items() if isinstance(time, float)}
    return min(ways.items(), key=lambda way: way[1]) if ways else None


def summary(row: Row) -> str:
    parts = [row[key] for key in ("broken", "refused") if key in row]
    parts += [f"{start} {time:.3f} ms" for start, time in row.get("ours", {}).items()]
    if rival := best(row):
        parts.append(f"PyTorch {rival[1]:.3f} ms ({rival[0]})")
        if "ours" in row:
            parts.append(f"ratio {row['ours'][LATER] / rival[1]:.2f}, error {row['error']:.1e}")
    return ", ".join(parts)


# In a process of its own


def measured(each: Row, network: Row, arguments: argparse.Namespace, turn: Turn) -> Row:
    """Return the times of one network: a row of the results."""
    torch.zeros(1, device="cuda")  # cuDNN does not outlive the context that it was first used in
    with TemporaryDirectory() as name:
        folder = Path(name)
        module = built(each, network, arguments.clones, folder, "usual")
        generator = prepared(module, network)
        patch = noise(network.get("channels", 1), max(EXTENT, network.get("patch", PATCH)))
        with turn.alone():
            exact = in_fp32(module, network, patch)
        row: Row = {
            "gpu": torch.cuda.get_device_name(),
            "versions": versions(),
            "parameters": sum(one.numel() for one in module.parameters()),
            "patch": patch.shape[-1],
        }
        if arguments.compile:
            ways = compiled_ways(generator, patch)
        else:
            ways = eager_ways(generator, patch)
            try:
                _, imported = imported_network(each, network, generator, patch, exact, folder)
                with turn.alone():
                    row |= ours(imported, patch, exact, folder / "cache")
            except EngineError as error:
                row["refused"] = sentence(error)
        return row | pytorch(ways, exact, turn)


def versions() -> dict[str, str]:
    cudnn = torch.backends.cudnn.version()
    return {
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
        "cuDNN": dotted(cudnn) if cudnn else "",
    }


def in_fp32(module: nn.Module, network: Row, patch: np.ndarray) -> np.ndarray:
    """Return what the code of others computes in fp32, in the mode in which its test runs."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    one = copy.deepcopy(module).cuda().train(network.get("mode") == "train")
    with torch.no_grad():
        return one(torch.from_numpy(patch).cuda()).cpu().numpy()


def imported_network(
    each: Row,
    network: Row,
    generator: nn.Module,
    patch: np.ndarray,
    exact: np.ndarray,
    at: Path,
    ways: Sequence[str] = (".pt2", OLDER, NEWER),
) -> tuple[Path, Network]:
    """Import a network by the first of some routes by which it is known to be imported.

    Returns the exported file and the network. Raises EngineError; ValueError without a route.
    """
    known = found(json.loads(IMPORTED.read_text()), each, network).get("routes", {})
    [route, *_] = [way for way in ways if "error" in known.get(way, {})]
    path, choices = routes(network)[route](copy.deepcopy(generator), at, patch)
    return path, make_model(surveyed(path, choices, patch, exact.shape[1])).model.network


def ours(network: Network, patch: np.ndarray, exact: np.ndarray, cache: Path) -> Row:
    """Return the times of this program, and its error."""
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    options = CudaOptions("fp16", cache=cache, search=SearchSettings("auto"))
    _, _, *extents = patch.shape
    times: dict[str, float] = {}
    errors: list[float] = []
    for start in (FIRST, LATER):
        with open_cuda_generator(network, options, tuple(extents)) as generator:
            errors.append(relative_error(generator(patch), exact))
            rounds = [median(generator.times(LAUNCHES)) for _ in range(ROUNDS)]
            times[start] = round(1e3 * min(rounds), 4)
            if start == FIRST:
                generator.tune(time.monotonic() + SEARCHED, ignore_progress)
    return {"ours": times, "error": max(errors)}


def pytorch(ways: Iterable[Way], exact: np.ndarray, turn: Turn) -> Row:
    """Return the times of PyTorch's ways, or why one fails, and the errors of the others."""
    times: dict[str, float | str] = {}
    errors: dict[str, float] = {}
    torch.backends.cudnn.benchmark = True
    for name, prepare in ways:
        try:
            run = prepare()
            with turn.alone(), ThreadPoolExecutor(1) as other:
                # cuDNN's plans are of a thread: those that it found among other processes are not
                # used.
                errors[name], times[name] = other.submit(timed, name, run, exact).result()
        except Exception as error:  # code of others may raise anything
            times[name] = sentence(error)
    return {"pytorch": times, "pytorch errors": errors}


def timed(name: str, run: Run, exact: np.ndarray) -> tuple[float, float]:
    """Return the error of a way and its milliseconds."""
    with torch.inference_mode():
        if name.endswith(GRAPH):
            run = captured(run)
        error = relative_error(run().float().cpu().numpy(), exact)
        for _ in range(WARM_UP):
            run()
        return error, round(milliseconds(run), 4)


def eager_ways(generator: nn.Module, patch: np.ndarray) -> Iterator[Way]:
    for name, layout in LAYOUTS.items():
        for way in (name, f"{name}{GRAPH}"):
            yield way, partial(halved, generator, patch, layout)


def compiled_ways(generator: nn.Module, patch: np.ndarray) -> Iterator[Way]:
    inductor: Any = import_module("torch._inductor.config")
    inductor.compile_threads = 1  # many networks are compiled side by side
    for name, layout in LAYOUTS.items():
        yield f"{COMPILED}, {name}{GRAPH}", partial(compiled, generator, patch, layout)


def compiled(generator: nn.Module, patch: np.ndarray, layout: Layout) -> Run:
    bare = halved(generator, patch, layout)
    run = partial(torch.compile(bare.func, dynamic=False), *bare.args)
    with torch.inference_mode():
        run()
    return run


def halved(generator: nn.Module, patch: np.ndarray, layout: Layout) -> partial[torch.Tensor]:
    """Return a run of a network on the GPU, in half precision and in a memory order."""
    half, held = copy.deepcopy(generator).cuda().half(), torch.from_numpy(patch).cuda().half()
    for one in (*half.parameters(), *half.buffers(), held):
        order = layout.get(one.dim(), torch.contiguous_format)
        one.data = one.data.contiguous(memory_format=order)
    return partial(half, held)


def captured(run: Run) -> Run:
    """Return a run from a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def milliseconds(run: Run) -> float:
    """Return the time of one run on the GPU, as `CudaGenerator.times` takes it."""

    def one_round() -> float:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(LAUNCHES + 1)]
        run()  # so that the GPU is busy while the host queues the first timed run
        marks[0].record()
        for mark in marks[1:]:
            run()
            mark.record()
        marks[-1].synchronize()
        return median(before.elapsed_time(after) for before, after in pairwise(marks))

    return min(one_round() for _ in range(ROUNDS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clones", type=Path, required=True, help="folder of the clones")
    parser.add_argument("--only", default="", help="part of 'REPOSITORY: NETWORK'")
    parser.add_argument("--compile", action="store_true", help="time torch.compile instead")
    parser.add_argument("--processes", type=int, default=10, help="networks side by side")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    main()
