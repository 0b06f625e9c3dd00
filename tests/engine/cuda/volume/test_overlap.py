"""The first pass as rows come in, and the last one as they go out, kernel by kernel on the CPU."""

import ctypes
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.gpu_networks import chain, random_network
from support.gpu_on_cpu.convolutions import convolved_exactly
from support.volume_on_cpu import VolumeOnCpu, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.cuda.volume.overlap import AxisRows, RunsByRows
from cuda_cyclegan.engine.cuda.volume.program import PlacedVolume
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import Concat, Conv3d, FloatArray, Pad

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

ONE, THREE = (1, 1, 1), (3, 3, 3)
FAMILY = build(ResNetSpec(1, 1, 32, 0, downsamplings=1, first_kernel=5, last_kernel=5))
SEEN_TWICE = chain(
    1,
    ("near", Pad("reflect", ONE, ONE), ("input",)),
    ("wide", Conv3d(1, 32, THREE, "w.weight")),
    ("far", Pad("reflect", THREE, THREE), ("input",)),
    ("deep", Conv3d(1, 3, (7, 7, 7), "d.weight")),
    ("both", Concat(), ("wide", "deep")),
    ("last", Conv3d(35, 1, THREE, "l.weight", padding=ONE)),
)
"""The first pass has two layers, of which the second one sees more of the volume."""

NETWORKS = {"family": FAMILY, "seen twice": SEEN_TWICE}
GRID = BlockGrid((10, 4, 10), (4, 4, 4))


@cache
def small(name: str) -> VolumeOnCpu:
    network = random_network(NETWORKS[name], seed=1)
    return volume_on_cpu(network, GRID, "fp16", matrix_kernels=True, convolve=convolved_exactly)


NOISE = np.random.default_rng(2).uniform(-1, 1, (1, *GRID.extents)).astype(np.float32)


@pytest.fixture(scope="module")
def results(torch: Any) -> dict[str, FloatArray]:  # noqa: ARG001
    """Return each network's output for NOISE."""
    return {name: small(name)(NOISE) for name in NETWORKS}


def rows_of(placed: PlacedVolume, name: str) -> FloatArray:
    """The volume at an address, as an array."""
    memory = (ctypes.c_float * int(np.prod(GRID.extents))).from_address(placed.at(name))
    return np.ctypeslib.as_array(memory).reshape(1, *GRID.extents)


def pieces(axis: int, *, is_turned: bool) -> list[tuple[int, int]]:
    ends = [
        (start, min(start + 3, GRID.extents[axis])) for start in range(0, GRID.extents[axis], 3)
    ]
    return ends[::-1] if is_turned else ends


def nothing() -> None: ...


def by_launches(_work: object, queue: Callable[[], None]) -> None:
    """Queue work as a launch of each kernel."""
    queue()


@pytest.mark.parametrize(
    ("name", "axis", "is_turned", "needed"),
    [
        pytest.param("family", 0, False, 2, marks=pytest.mark.slow),
        pytest.param("family", 2, True, 2, marks=pytest.mark.slow),
        ("seen twice", 0, False, 2),
        ("seen twice", 2, True, 3),  # it reads maps of the same blocks, so its runs go along D
    ],
)
def test_no_run_reads_rows_that_are_not_there_nor_leaves_some_out(
    results: dict[str, FloatArray], name: str, axis: int, is_turned: bool, needed: int
) -> None:
    """needed: runs of the last pass before its first rows can go."""
    given, wanted = NOISE, results[name]
    made = small(name)
    first, *between, last = made.passes
    with made.placed() as placed:
        arriving, leaving = rows_of(placed, PATCHES), rows_of(placed, TRANSLATED)
        coming = RunsByRows(placed.in_runs(first), nothing, nothing, by_launches)
        queued: list[int] = []
        placed.queue_start(placed.program.stream)
        for start, stop in pieces(axis, is_turned=is_turned):
            part = (slice(None),) * (axis + 1) + (slice(start, stop),)
            arriving[part] = given[part]
            there = (start, GRID.extents[axis]) if is_turned else (0, stop)
            coming.queue_those_that_read(AxisRows(axis, *there))
            queued.append(len(coming.queued.runs) - len(coming.left))
        assert 0 < queued[len(queued) // 2] < queued[-1] == len(coming.queued.runs)
        placed.queue_passes(between)
        going = RunsByRows(placed.in_runs(last, axis), nothing, nothing, by_launches)
        left: list[int] = []
        for start, stop in pieces(axis, is_turned=is_turned):
            part = (slice(None),) * (axis + 1) + (slice(start, stop),)
            going.queue_those_that_write(AxisRows(axis, start, stop))
            left.append(len(going.left))
            assert leaving[part].tobytes() == wanted[part].tobytes()
        assert left[0] == len(going.queued.runs) - needed > left[-1] == 0
