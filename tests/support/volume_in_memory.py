"""Use of a generator of volumes on a driver in host memory, with a report of what was allocated.

A program of its own, as `generator_in_memory`; the custom kernels are neither loaded nor run.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cudnn_stand_in import frontend
from support.gpu_networks import random_network
from support.nvrtc_stand_in import replace_nvrtc

from cuda_cyclegan.engine.errors import DeviceMemoryError, PatchShapeError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.scaling import Stored

WIDE = random_network(build(ResNetSpec(1, 1, 32, 1)), seed=0)
"""Network whose outermost layers custom kernels compute."""

NETWORK = random_network(build(ResNetSpec(1, 1, 8, 1)), seed=0)
EXTENTS = (131, 258, 302)


def main() -> None:
    """Arguments: a folder for the cache, and "card" to try no other residence of maps.

    Prints what was found.
    """
    sys.modules["cudnn"] = frontend()
    os.environ["DEVICE_PAGE"] = str(2 << 20)
    from cuda_cyclegan.engine.cuda.driver import Context
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.tuning import layer_check
    from cuda_cyclegan.engine.cuda.volume import held_memory
    from cuda_cyclegan.engine.cuda.volume.preparation import Preparation
    from cuda_cyclegan.engine.cuda.volume.volume_generator import (
        open_cuda_volume_generator,
        planned_volume,
    )

    replace_nvrtc()
    layer_check._wrong_statistics = lambda *_: None  # of kernels that do not run
    cache = Path(sys.argv[1])
    found: dict[str, Any] = {}
    with Context(0) as context:

        def held() -> int:
            return (70 << 30) - context.memory[0]

        def translated(options: Any, name: str, network: Network = NETWORK) -> None:
            with open_cuda_volume_generator(network, options) as generator:
                opened = held()
                generator.make_ready(EXTENTS)
                assert generator._preparation.ready is not None
                generator._preparation.ready.placed.host()  # waits
                ready = held()
                shares: list[float] = []
                rows: list[int] = []
                runs = [run(generator, EXTENTS, shares, rows) for _ in range(3)]
                first = held()
                run(generator, (16, 16, 16), [])
                run(generator, EXTENTS, [])
                memory = generator.memory
                assert memory is not None
                lanes = generator._preparation.ready.lanes
                found[name] = {
                    "device": generator.device,
                    "opened": opened,
                    "ready": ready,
                    "held": first,
                    "again": held(),
                    "bytes": memory.device_bytes,
                    "lane": lanes.bytes // lanes.count,
                    "lanes": lanes.count,
                    "host": memory.host_bytes,
                    "residence": memory.residence,
                    "parts": sorted({timing.part for timings in runs for timing in timings}),
                    "shares": [shares == sorted(shares), *shares[-1:]],
                    "rows": [rows == sorted(rows), *rows[-1:]],
                }
            found[name]["closed"] = held()

        options = CudaOptions(cache=cache)
        translated(options, "card")
        if sys.argv[2:] == ["card"]:
            print(json.dumps(found))
            return
        limit = found["card"]["bytes"] * 4 // 5
        translated(CudaOptions(cache=cache, vram_limit=limit), "host")
        translated(options, "wide", WIDE)
        less = CudaOptions(cache=cache, vram_limit=found["wide"]["bytes"] - 1)
        translated(less, "recomputed", WIDE)
        monkeypatch = pytest.MonkeyPatch()
        with monkeypatch.context() as patched:
            patched.setattr(Preparation, "_is_same_anywhere", lambda *_: False)
            translated(less, "elsewhere", WIDE)
        for name, chosen in (
            ("card", options),
            ("host", CudaOptions(cache=cache, vram_limit=limit)),
        ):
            plan = planned_volume(NETWORK, chosen, EXTENTS)
            sizes = plan.device_bytes, plan.host_bytes
            most = found[name]["bytes"] + found[name]["lanes"] * found[name]["lane"]
            assert sizes == (most, found[name]["host"])
            assert (plan.residence, plan.padded) == (name, (132, 260, 304))
        crowded = CudaOptions(
            cache=cache, vram_limit=limit, host_budget=lambda: found["host"]["host"] - 1
        )
        refusal = r"need \d+ MiB of pinned host memory, but only \d+ MiB may be pinned"
        with pytest.raises(DeviceMemoryError, match=refusal):
            planned_volume(NETWORK, crowded, EXTENTS)
        with open_cuda_volume_generator(NETWORK, crowded) as generator:
            with pytest.raises(DeviceMemoryError, match=refusal):
                generator.make_ready(EXTENTS)
            with pytest.raises(DeviceMemoryError, match=refusal):
                run(generator, EXTENTS, [])
            run(generator, (16, 16, 16), [])
        with (
            monkeypatch.context() as patched,
            open_cuda_volume_generator(
                NETWORK, CudaOptions(cache=cache, vram_limit=limit)
            ) as generator,
        ):
            patched.setattr(held_memory, "pinned_maps", not_pinned)
            with pytest.raises(DeviceMemoryError, match="no more to pin"):
                run(generator, EXTENTS, [])
            patched.undo()
            run(generator, EXTENTS, [])
        with (
            pytest.raises(DeviceMemoryError, match="vram-limit of at least"),
            open_cuda_volume_generator(NETWORK, CudaOptions(vram_limit=1 << 20)) as small,
        ):
            run(small, EXTENTS, [])
        fixed = Network(Graph(1, NETWORK.graph.nodes, (16, 16, 16)), NETWORK.weights)
        with pytest.raises(PatchShapeError, match="exported for patches of 16x16x16 only"):
            open_cuda_volume_generator(fixed, options).__enter__()
        found["refused"] = held()
    print(json.dumps(found))


@contextmanager
def not_pinned(size: int) -> Iterator[int]:
    """Simulate a driver that refuses to pin, which is only found when the network runs."""
    raise DeviceMemoryError(f"there is no more to pin for {size} bytes")
    yield 0


def run(
    generator: Any, extents: tuple[int, ...], shares: list[float], rows: list[int] | None = None
) -> Any:
    rows = [] if rows is None else rows
    del shares[:], rows[:]
    scan = np.zeros((1, *extents), np.int16)
    made = np.zeros((1, *extents[::-1]), np.int16).transpose(0, 3, 2, 1)[:, ::-1]
    target = Stored(made, on_rows=rows.append)
    return generator.translate_volume(Stored(scan), target, shares.append)


if __name__ == "__main__":
    main()
