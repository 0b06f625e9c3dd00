"""Use of a generator on a driver in host memory, with a report of what was allocated when.

A program of its own, since a process that has met such a driver keeps it. cuDNN has no plans here,
so that every convolution is done by the custom kernels, which this driver neither loads nor runs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cudnn_stand_in import frontend
from support.gpu_networks import random_network
from support.nvrtc_stand_in import replace_nvrtc

from cuda_cyclegan.engine.errors import DeviceMemoryError, PatchShapeError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.patch_grid import PatchGrid, PatchWindow
from cuda_cyclegan.engine.scaling import Stored

PATCH = (16, 16, 16)
NETWORK = random_network(build(ResNetSpec(1, 1, 8, 1)), seed=0)


def main() -> None:
    """Arguments: a folder for the cache. Prints what was found."""
    sys.modules["cudnn"] = frontend()
    from cuda_cyclegan.engine.cuda.driver import Context
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import (
        open_cuda_generator,
        planned_patches,
    )

    replace_nvrtc()
    options = CudaOptions(cache=Path(sys.argv[1]))
    with Context(0) as context:

        def held() -> int:
            return (70 << 30) - context.memory[0]

        with open_cuda_generator(NETWORK, options, PATCH, 2) as generator:
            opened = held()
            results = generator(np.zeros((3, 1, *PATCH), np.float32))
            timings = run_window(generator)
            streamed = held()
        found = {
            "device": generator.device,
            "batch": generator.batch,
            "program": generator.memory.bytes,
            "opened": opened,
            "streamed": streamed,
            "closed": held(),
            "results": results.shape,
            "parts": sorted({timing.part for timing in timings}),
        }
        plan = planned_patches(NETWORK, options, PATCH, 2).program
        found["planned"] = None if plan is None else plan.bytes
        with pytest.raises(DeviceMemoryError):
            open_cuda_generator(NETWORK, CudaOptions(vram_limit=1 << 10), PATCH).__enter__()
        with pytest.raises(PatchShapeError):
            open_cuda_generator(NETWORK, CudaOptions(), (16, 16, 18)).__enter__()
        found["refused"] = held()
    print(json.dumps(found))


def run_window(generator: Any) -> Any:
    """Three rows of one patch."""
    extents, row = (40, 16, 16), np.zeros((1, 40, 16, 16), np.int16)
    grid = PatchGrid(extents, PATCH, ((0, 12, 24), (0,), (0,)), (0, 1, 2))
    window = PatchWindow(
        grid.extents,
        grid.patch,
        grid.origins,
        grid.axes,
        voxel_bytes=2,
        weights=np.ones(PATCH, np.float32),
        padding="edge",
    )
    return generator.run_window(Stored(row), window, Stored(row.copy()), lambda _: None)


if __name__ == "__main__":
    main()
