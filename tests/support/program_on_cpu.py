"""A compiled program whose custom kernels run on the CPU, in one block of memory as on a GPU."""

import numpy as np
from support.gpu_on_cpu.kernels import run
from support.gpu_on_cpu.memory import poisoned

from cuda_cyclegan.engine.compiler.kernels.launch import Launch
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.program.memory import plan_memory, scratch_name
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.network.layers import FloatArray

_AT_ONCE = 2
"""Blocks that wait for each other, along each axis of a grid; each has its threads."""


def run_program(lowered: Lowered, patches: FloatArray, out_channels: int) -> FloatArray:
    """Return what the kernels make of patches [N, C, D, H, W]; what none has written is NaN."""
    batch, channels, *extents = patches.shape
    plan = plan_memory(lowered, (channels, out_channels), {})
    block = poisoned(plan.bytes)

    def at(name: str) -> int:
        return block.ctypes.data + plan.offsets[name]

    def put(name: str, content: bytes) -> None:
        first = plan.offsets[name]
        block[first : first + len(content)] = np.frombuffer(content, np.uint8)

    for name, content in lowered.encoded_constants():
        put(name, content)
    put(PATCHES, patches.tobytes())
    for index, step in enumerate(lowered.steps):
        scratch = block.ctypes.data + plan.offsets.get(scratch_name(index), 0)
        for launch in launches(step, at, lowered.gpu, scratch):
            run(launch, lowered.layout.precision, _grid(launch))
    first, count = plan.offsets[TRANSLATED], batch * out_channels * int(np.prod(extents))
    output = block[first : first + 4 * count].view(np.float32)
    return output.reshape(batch, out_channels, *extents).copy()


def _grid(launch: Launch) -> tuple[int, int, int]:
    if not launch.cooperative:
        return launch.grid
    shares, columns, _ = launch.grid
    return min(shares, _AT_ONCE), min(columns, _AT_ONCE), 1
