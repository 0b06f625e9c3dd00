"""Prints where a compiled program spends its time: python tests/benchmarks/engine_profile.py."""

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from cuda_cyclegan.engine.architectures import ResNetSpec, build
from cuda_cyclegan.engine.cuda import CudaGenerator, CudaOptions
from cuda_cyclegan.engine.graph import Network
from cuda_cyclegan.engine.plan_search import Search
from cuda_cyclegan.engine.steps import Convolve, Normalise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--patch", type=int, nargs=3, default=(128, 128, 128))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--tune", default="quick")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--steps", action="store_true")
    asked = parser.parse_args()
    graph = build(ResNetSpec(1, 1, asked.width, 9))
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(0, 1 / np.sqrt(max(1, np.prod(shape[1:]))), shape).astype(np.float32)
        for name, shape in graph.weight_shapes()
    }
    options = CudaOptions(
        tuple(asked.patch),
        asked.batch,
        asked.precision,
        cache=asked.cache,
        search=Search(asked.tune, 120.0),
    )
    started = time.perf_counter()
    with CudaGenerator(Network(graph, weights), options) as generator:
        opened = time.perf_counter() - started
        patches = random.uniform(-1, 1, (asked.batch, 1, *asked.patch)).astype(np.float32)
        generator(patches)
        first = time.perf_counter() - started
        milliseconds = generator.time(30)
        print(
            f"width {asked.width} {asked.precision} batch {asked.batch} {asked.patch}: "
            f"{milliseconds / asked.batch:.3f} ms a patch, "
            f"{generator.memory.bytes / 2**20:.0f} MiB, "
            f"opened in {opened:.2f} s, first result after {first:.2f} s",
            flush=True,
        )
        if asked.steps:
            show(generator)


def show(generator: CudaGenerator) -> None:
    spent: dict[str, list[float]] = defaultdict(list)
    for step, microseconds in generator.step_times(3):
        if isinstance(step, Convolve):
            shape = step.shape
            spent[f"{step.layer.split('.')[0]} {shape.kernel} {generator.algorithm(shape)}"].append(
                microseconds
            )
        else:
            kind = type(step).__name__
            step = step.pointwise if isinstance(step, Normalise) else step
            named = getattr(step, "target", None) or step.source
            name = named.name if hasattr(named, "name") else named.tensor.name
            spent[f"{kind} {name.split('.', 1)[-1]}"].append(microseconds)
    for name, times in spent.items():
        print(f"{sum(times):9.1f} us {len(times):3d} x  {name}")
    print(f"{sum(map(sum, spent.values())):9.1f} us in all")


main()
