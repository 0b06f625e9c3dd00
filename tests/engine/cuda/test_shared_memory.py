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
from support.described_cards import H200
from support.gpu_on_cpu.compiler import FOLDER
from support.gpu_on_cpu.kernels import KernelFaultError, run

from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.compiler.launches.launch import Launch
from cuda_cyclegan.engine.compiler.launches.steps import launches, scratch_bytes
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ActivatedView,
    ChannelGroups,
    Convolve,
    ConvolveByPlanes,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToCells,
    ConvTransposeToPatches,
    ConvTransposeVoxels,
    Normalise,
    Pack,
    Pointwise,
    Statistics,
    Step,
    SumTaps,
)
from cuda_cyclegan.engine.compiler.tensors import AffineTable, Region, Tensor, TensorView
from cuda_cyclegan.engine.network.layers import Triple

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
SPARE = 16
"""Bytes that a launch may ask for in vain."""

SMALL = replace(H200, multiprocessors=1)
"""A GPU on which a block does all, and so comes to the end of its memory."""


def tensor(name: str, extents: Triple, channels: int, precision: str = "fp16") -> Tensor:
    return Tensor(name, 1, extents, channels, precision)  # type: ignore[arg-type]


def view(name: str, extents: Triple, channels: int) -> TensorView:
    return TensorView(tensor(name, extents, channels), extents)


def read(extents: Triple, channels: int, name: str = "source") -> ActivatedView:
    return ActivatedView(view(name, extents, channels), None, IDENTITY)


def measured(target: TensorView) -> Statistics:
    table = AffineTable("table", 1, target.channels)
    return Statistics(target, table, 1e-5, "scale", "shift")


def first_layer(edge: int, outputs: int, extents: Triple, *, wgmma: bool) -> ConvolvePatches:
    target = tensor("target", extents, outputs)
    kernel, origin = (edge,) * 3, (-(edge // 2),) * 3
    step = ConvolvePatches("first", target, 1, extents, origin, "zero", kernel, "weight")
    return replace(step, wgmma=wgmma, statistics=measured(TensorView(target, extents)))


def last_layer(channels: int, extents: Triple, *, wgmma: bool) -> ConvolveToPatches:
    part = read(extents, channels)
    if wgmma:
        part = replace(part, table=AffineTable("table", 1, channels))
    origin, kernel = (-3, -3, -3), (7, 7, 7)
    return ConvolveToPatches(
        "last", part, origin, "replicate", kernel, "weight", 1, extents, None, IDENTITY, wgmma
    )


def by_planes(*channels: int) -> ConvolveByPlanes:
    extents = 4, 17, 33
    parts = tuple(read(extents, count, f"part {i}") for i, count in enumerate(channels))
    target = tensor("target", extents, 32)
    statistics = measured(TensorView(target, extents))
    return ConvolveByPlanes("conv", parts, target, "weight", statistics)


def halving() -> ConvolveByPlanes:
    target = tensor("target", (2, 17, 9), 64)
    statistics = measured(TensorView(target, target.extents))
    parts = (read((3, 33, 17), 32),)
    return ConvolveByPlanes("down", parts, target, "weight", statistics, stride=2)


def doubling(channels: int) -> ConvTransposeToCells:
    cells, extents = (2, 5, 17), (4, 10, 34)
    target = TensorView(tensor("target", cells, 8 * 32), extents, shuffled=True)
    return ConvTransposeToCells(
        "up", tensor("source", cells, channels), target, "weight", measured(target)
    )


def doubling_voxels(channels: int) -> ConvTransposeVoxels:
    cells, extents = (4, 8, 8), (8, 16, 16)
    target = TensorView(tensor("target", cells, 8 * 32), extents, shuffled=True)
    return ConvTransposeVoxels("up", read(cells, channels), target, "weight")


def split_fp16(outputs: int) -> Convolve:
    extents, one = (3, 8, 9), (1, 1, 1)
    shape = Convolution(
        1, extents, 64, extents, outputs, (3, 3, 3), one, one, one, "fp32", split_fp16=True
    )
    source = replace(tensor("source", extents, 64, "fp32"), scale=1.0)
    target = tensor("target", extents, outputs, "fp32")
    return Convolve("conv", shape, source, target, Region(0, 1), "weight")


def normalised(extents: Triple) -> Normalise:
    source = view("source", extents, 32)
    target = tensor("target", extents, 32)
    table = AffineTable("table", 1, 32)
    place = target, Region(0, 1), extents, (0, 0, 0), "zero"
    return Normalise(measured(source), Pointwise(source, *place, table=table))


def of_groups() -> Statistics:
    return replace(measured(view("source", (4, 8, 9), 32)), groups=ChannelGroups(2, 16, None))


def summed_taps() -> SumTaps:
    source = tensor("source", (2, 9, 76), 7 * 8)
    return SumTaps(source, Region(0, 1), 1, (2, 3, 70), (7, 7), 8, None, IDENTITY)


def last_transposed() -> ConvTransposeToPatches:
    extents = 2, 4, 26
    return ConvTransposeToPatches(
        "last", (read(extents, 32),), "weight", 1, (4, 8, 52), None, IDENTITY
    )


STEPS: dict[str, Step] = {
    "conv_transpose_to_cells of 64": doubling(64),
    "conv_transpose_to_cells of 128": doubling(128),
    "conv_transpose_to_patches": last_transposed(),
    "conv_transpose_voxels of 32": doubling_voxels(32),
    "conv_transpose_voxels of 128": doubling_voxels(128),
    "convolve_by_planes of 32": by_planes(32),
    "convolve_by_planes of 128": by_planes(64, 64),
    "convolve_patches": first_layer(5, 32, (12, 9, 130), wgmma=False),
    "convolve_patches_wgmma of 3": first_layer(3, 32, (9, 9, 70), wgmma=True),
    "convolve_patches_wgmma of 7": first_layer(7, 32, (9, 9, 70), wgmma=True),
    "convolve_split_fp16 to 32": split_fp16(32),
    "convolve_split_fp16 to 64": split_fp16(64),
    "convolve_split_fp16 to 128": split_fp16(128),
    "convolve_strided": halving(),
    "convolve_to_patches": last_layer(32, (8, 9, 70), wgmma=False),
    "convolve_to_patches_wgmma of 32": last_layer(32, (6, 4, 70), wgmma=True),
    "convolve_to_patches_wgmma of 64": last_layer(64, (6, 4, 10), wgmma=True),
    "normalise": normalised((16, 16, 32)),
    "pack": Pack(tensor("target", (2, 9, 70), 8), Region(0, 1), 1, (2, 9, 70), (0, 0, 0), "zero"),
    "statistics": measured(view("source", (4, 8, 9), 128)),
    "statistics of groups": of_groups(),
    "unpack": summed_taps(),
}
"""By the kernel's file; extents at which some block goes to the end of its memory."""


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
    asking = {path.stem for path in FOLDER.glob("*.cu") if "extern __shared__" in path.read_text()}
    assert {name.split()[0] for name in STEPS} == asking
