"""Launches ask for as much dynamic shared memory as their kernels touch, and for no more.

Too little is caught wherever a kernel runs on the CPU: a block's shared memory ends at memory that
nobody may touch. Too much halves how many blocks a GPU runs at once, and is only seen here.
"""

import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_on_cpu.compiler import FOLDER
from support.gpu_on_cpu.kernels import KernelFaultError, run
from support.kernel_samples import SAMPLES, measured

from cuda_cyclegan.engine.compiler.kernels.launch import Launch
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches, scratch_bytes
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ChannelGroups,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Region, Tensor
from cuda_cyclegan.engine.network.layers import Triple

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
SPARE = 16
"""Bytes that a launch may ask for in vain."""

SMALL = replace(H200, multiprocessors=1)
"""A GPU on which a block does all, and so comes to the end of its memory."""


def tensor(name: str, extents: Triple, channels: int) -> Tensor:
    return Tensor(name, 1, extents, channels, "fp16")


def normalised(extents: Triple) -> Normalise:
    source, target = tensor("source", extents, 32).whole, tensor("target", extents, 32).whole
    table = AffineTable("table", 1, 32)
    place = target, Region(0, 1), extents, (0, 0, 0), "zero"
    return Normalise(measured(source), Pointwise(source, *place, table=table))


def of_groups() -> Statistics:
    source = tensor("source", (4, 8, 9), 32).whole
    return replace(measured(source), groups=ChannelGroups(2, 16, None))


def summed_taps() -> SumTaps:
    source = tensor("source", (2, 9, 76), 7 * 8)
    return SumTaps(source, Region(0, 1), 1, (2, 3, 70), (7, 7), 8, None, IDENTITY)


ASKING = {path.stem for path in FOLDER.glob("*.cu") if "extern __shared__" in path.read_text()}
"""Files of kernels with dynamic shared memory."""

STEPS: dict[str, Step] = {
    **{
        f"{kernel} {number}": conv
        for kernel, samples in SAMPLES.items()
        for number, conv in enumerate(samples)
        if kernel in ASKING
    },
    "normalise": normalised((16, 16, 32)),
    "pack": Pack(tensor("target", (2, 9, 70), 8), Region(0, 1), 1, (2, 9, 70), (0, 0, 0), "zero"),
    "statistics": measured(tensor("source", (4, 8, 9), 128).whole),
    "statistics of groups": of_groups(),
    "unpack": summed_taps(),
}
"""Extents at which some block goes to the end of its memory, by the kernel's file."""


def launches_of(step: Step) -> Iterator[Launch]:
    """Launches with dynamic shared memory, of tensors of zeros, as numbers do not matter."""
    memory = defaultdict(lambda: np.zeros(8 << 20, np.uint8))
    scratch = np.zeros(max(1, scratch_bytes(step, SMALL)), np.uint8)
    every = launches(step, lambda name: memory[name].ctypes.data, SMALL, scratch.ctypes.data)
    yield from (launch for launch in every if launch.shared)  # memory stays until the last one


def used_bytes(launch: Launch) -> int:
    """Bytes up to the last one that a block has written."""
    return run(launch, "fp32" if launch.source == "convolve_split_fp16" else "fp16")


@pytest.mark.parametrize("name", STEPS)
def test_a_launch_asks_for_what_its_kernel_touches(name: str) -> None:
    tried = []
    for launch in launches_of(STEPS[name]):
        spare = launch.shared - used_bytes(launch)
        assert 0 <= spare <= SPARE, launch.kernel
        tried.append(launch.kernel)
    assert tried


@pytest.mark.parametrize("name", STEPS)
def test_a_launch_that_asks_for_too_little_is_named(name: str) -> None:
    for launch in launches_of(STEPS[name]):
        less = launch.shared - SPARE - 16
        words = f"{launch.kernel} goes to byte .* of which its launch asks for {less:,} bytes"
        with pytest.raises(KernelFaultError, match=words):
            used_bytes(replace(launch, shared=less))


def test_each_kernel_with_dynamic_shared_memory_is_tried() -> None:
    assert {name.split()[0] for name in STEPS} == ASKING
