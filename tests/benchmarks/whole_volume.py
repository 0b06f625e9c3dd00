"""Whole volumes on a card: time, bytes, and PyTorch's single pass beside them.

    python tests/benchmarks/whole_volume.py [--extents 256,256,180] [--limit GIB ...] [--torch]

Network seconds are the card's own, of runs over a volume that lies there already; the others are
those of a translation, whose first and last pass wait for voxels that come in and go out beside
them. All are medians. With a limit, maps are made anew or go to host
memory, whose pinned bytes are reported; the digest of each result shows if that changed a byte.
"""

import argparse
import hashlib
import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from cuda_cyclegan.engine.cuda.driver import CapturedGraph
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.user_cache import cache_folder
from cuda_cyclegan.engine.cuda.volume.transfer import slot_voxels, upload_voxels
from cuda_cyclegan.engine.cuda.volume.volume_generator import (
    CudaVolumeGenerator,
    open_cuda_volume_generator,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import SearchSettings
from cuda_cyclegan.engine.scaling import Scaling, Stored


def network_of(width: int, blocks: int) -> Network:
    """Return a network with the weights that training starts from."""
    graph, random = build(ResNetSpec(1, 1, width, blocks)), np.random.default_rng(0)
    weights = {
        name: random.normal(0, 0.02, shape) if len(shape) == 5 else np.zeros(shape)
        for name, shape in graph.weight_shapes()
    }
    return Network(graph, {name: array.astype(np.float32) for name, array in weights.items()})


def measured(network: Network, extents: Triple, limit: int | None, runs: int) -> dict[str, Any]:
    """Medians of seconds after a first run, which finds plans and allocates."""
    random = np.random.default_rng(1)
    scan = random.integers(-1000, 2000, (1, *extents), np.int16)
    made, scaling = np.empty_like(scan), Scaling(500.0, 1500.0, clips=True)
    options = CudaOptions(
        vram_limit=limit, cache=cache_folder(), search=SearchSettings(seconds=60.0)
    )
    walls: list[float] = []
    computed: list[float] = []
    digests: set[str] = set()
    with open_cuda_volume_generator(network, options) as generator:
        for _ in range(runs + 1):
            start = perf_counter()
            timings = generator.translate_volume(
                Stored(scan, scaling), Stored(made, scaling), lambda _: None
            )
            walls.append(perf_counter() - start)
            [compute] = [one for one in timings if one.part == "compute"]
            computed.append(compute.stop - compute.start)
            digests.add(hashlib.sha256(made.tobytes()).hexdigest()[:16])
        memory = generator.memory
        assert memory is not None
        return {
            "extents": extents,
            "limit": limit,
            "device": generator.device,
            "network seconds": median(
                network_seconds(generator, Stored(scan, scaling)) for _ in range(runs)
            ),
            "first to last pass": median(computed[1:]),
            "seconds with copies": median(walls[1:]),
            "first seconds": walls[0],
            "residence": memory.residence,
            "device bytes": memory.device_bytes,
            "host bytes": memory.host_bytes,
            "digests": sorted(digests),
        }


def network_seconds(generator: CudaVolumeGenerator, source: Stored) -> float:
    """Return the seconds of all passes over a volume that is on the GPU before they begin."""
    stream = generator._gpu.stream
    assert generator._preparation.ready is not None
    with generator._entered(generator._preparation.ready.placed.grid) as (ready, lane):
        placed = replace(ready.placed, own=lane.own)
        placed.queue_start(stream)
        most = slot_voxels(placed.grid.extents)
        upload_voxels(placed, source, lane.flight.slots[0], most, stream, lambda _: None)
        stream.wait()
        queue = partial(placed.queue_passes, placed.memory.passes)
        with ExitStack() as opened:
            if not placed.memory.host_bytes:
                queue = opened.enter_context(CapturedGraph(stream, queue)).launch
            [seconds] = stream.times(queue, 1)
    return seconds


def in_torch(network: Network, extents: Triple) -> dict[str, Any]:
    """PyTorch's compiled single pass in half precision, channels last."""
    import torch

    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last_3d
    module = as_module(network).half().cuda().to(memory_format=layout)
    compiled = torch.compile(module)
    given = torch.rand((1, 1, *extents), device="cuda").half().to(memory_format=layout)
    with torch.inference_mode():
        for _ in range(3):
            compiled(given)
        torch.cuda.reset_peak_memory_stats()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(8)]
        for mark in marks:
            mark.record()
            compiled(given)
        torch.cuda.synchronize()
    times = [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]
    return {
        "torch": torch.__version__,
        "network seconds": median(times),
        "device bytes": torch.cuda.max_memory_allocated(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extents", default="256,256,180")
    parser.add_argument("--limit", type=float, nargs="*", default=[])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    depth, height, width = map(int, asked.extents.split(","))
    network = network_of(asked.width, asked.blocks)
    rows: list[dict[str, Any]] = []
    for limit in asked.limit or [None]:
        size = None if limit is None else int(limit * 2**30)
        rows.append(measured(network, (depth, height, width), size, asked.runs))
        print(json.dumps(rows[-1]), flush=True)
    if asked.torch:
        rows.append(in_torch(network, (depth, height, width)))
        print(json.dumps(rows[-1]), flush=True)
    if asked.to:
        asked.to.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
