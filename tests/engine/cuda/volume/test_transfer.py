"""Voxels between an array of the host and the GPU, with kernels and copies on the CPU."""

import ctypes
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from support.gpu_networks import random_network
from support.gpu_on_cpu.convolutions import convolved_exactly
from support.gpu_on_cpu.memory import Buffer
from support.gpu_on_cpu.streams import Event
from support.volume_on_cpu import VolumeOnCpu, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.blocks import BlockGrid
from cuda_cyclegan.engine.compiler.kernels.sliding_window import CLIPPED_BYTES
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED
from cuda_cyclegan.engine.compiler.volume.volume_memory import VolumeRequest, volume_memory
from cuda_cyclegan.engine.cuda import streaming
from cuda_cyclegan.engine.cuda.streaming import PinnedSlots
from cuda_cyclegan.engine.cuda.volume.overlap import AxisRows
from cuda_cyclegan.engine.cuda.volume.program import PlacedVolume
from cuda_cyclegan.engine.cuda.volume.transfer import (
    download_voxels,
    rows_to_download,
    upload_voxels,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.scaling import Clipped, Scaling, Stored

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]

GRID = BlockGrid((12, 8, 8), (4, 4, 4))
SLOT_VOXELS = 2 * 8 * 8
many_rounds = pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.slow)])
"""Mark for several rounds, as threads may interleave in many ways."""


@cache
def network() -> VolumeOnCpu:
    made = random_network(build(ResNetSpec(1, 1, 4, 0, downsamplings=1)), seed=1)
    return volume_on_cpu(made, GRID, "fp32", convolve=convolved_exactly)


@contextmanager
def opened(larger: int = 1) -> Iterator[tuple[PlacedVolume, PinnedSlots]]:
    """larger: times by which the slots are larger than the volume needs, as after a larger one."""
    made = network()
    rows = 4 * SLOT_VOXELS, 8 * SLOT_VOXELS
    wanted = VolumeRequest(made.program.lowered, made.passes, GRID, (1, 1), rows)
    with (
        made.placed(volume_memory(wanted, 1 << 40)) as placed,
        ExitStack() as kept,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(streaming, "PinnedBuffer", Buffer)
        patched.setattr(streaming, "CudaEvent", Event)
        yield placed, PinnedSlots(4 * larger * SLOT_VOXELS, kept)


def noise() -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return noise with W first in memory, as a NIfTI file has it."""
    stored = np.random.default_rng(1).integers(-999, 999, (1, *GRID.extents[::-1]), np.int16)
    return stored.transpose(0, 3, 2, 1)


def at(placed: PlacedVolume, name: str) -> FloatArray:
    memory = (ctypes.c_float * int(np.prod(GRID.extents))).from_address(placed.at(name))
    return np.ctypeslib.as_array(memory).reshape(1, *GRID.extents)


def part(rows: AxisRows) -> tuple[slice, ...]:
    return (slice(None),) * (1 + rows.axis) + (slice(rows.start, rows.stop),)


@many_rounds
def test_each_piece_is_there_before_what_reads_it_is_queued(rounds: int) -> None:
    source, there = noise(), list[bool]()
    for _ in range(rounds):
        with opened() as (placed, slots):
            volume = at(placed, PATCHES)
            upload_voxels(
                placed,
                Stored(source),
                slots,
                SLOT_VOXELS,
                placed.program.stream,
                partial(look, volume, source, there),
            )
    assert there == [True] * 4 * rounds


def test_slots_of_a_larger_volume_before_hold_no_larger_pieces() -> None:
    """The GPU has room for pieces of this volume alone."""
    source, there = noise(), list[bool]()
    with opened(larger=4) as (placed, slots):
        upload_voxels(
            placed,
            Stored(source),
            slots,
            SLOT_VOXELS,
            placed.program.stream,
            partial(look, at(placed, PATCHES), source, there),
        )
    assert there == [True] * 4


def look(volume: Any, source: Any, there: list[bool], rows: AxisRows) -> None:
    """Whether these rows have come."""
    there.append(np.array_equal(volume[part(rows)], source[part(rows)]))


def made_by(placed: PlacedVolume, result: Any, target: Stored) -> Iterator[Any]:
    """Events of a last pass that makes rows when they are waited for, and not before."""
    volume = at(placed, TRANSLATED)
    volume[:] = np.nan
    for rows in rows_to_download(target, SLOT_VOXELS):
        volume[part(rows)] = result[part(rows)]
        yield Event()


@many_rounds
def test_rows_are_reported_when_they_are_in_their_place(rounds: int) -> None:
    result = noise()
    for _ in range(rounds):
        target, reported = np.zeros_like(result), list[int]()

        def on_rows(rows: int, target: Any = target, reported: list[int] = reported) -> None:
            reported.append(rows if np.array_equal(target[..., :rows], result[..., :rows]) else -1)

        with opened() as (placed, slots):
            ctypes.memset(placed.at("overflow"), 0, 4)
            ctypes.memset(placed.at("clipped"), 0, CLIPPED_BYTES)
            going = Stored(target, on_rows=on_rows)
            made, stream = made_by(placed, result, going), placed.program.stream
            assert download_voxels(placed, going, slots, SLOT_VOXELS, stream, made)
        assert reported == [1, 2, 3, 4, 5, 6, 7, 8]
        assert np.array_equal(target, result)


def test_values_beyond_the_voxel_type_are_counted() -> None:
    """The count is over all pieces, as on the host."""
    result, clipped = noise(), list[Clipped]()
    target = np.empty_like(result, np.uint8)
    with opened() as (placed, slots):
        placed.queue_start(placed.program.stream)
        going = Stored(target, Scaling(100.0, -1.0), on_clipped=clipped.append)
        made, stream = made_by(placed, result, going), placed.program.stream
        assert download_voxels(placed, going, slots, SLOT_VOXELS, stream, made)
    there = np.empty_like(target)
    assert [Scaling(100.0, -1.0).store(result.astype(np.float32), there)] == clipped
    assert clipped[0].below > 0 < clipped[0].above
    np.testing.assert_array_equal(target, there)


def test_nothing_is_put_in_place_any_more_once_a_fault_is_reported() -> None:
    """A next try may fill the same array."""
    target, is_told, late = np.zeros_like(noise()), threading.Event(), list[int]()

    def on_rows(rows: int) -> None:
        if is_told.wait(0.2):
            late.append(rows)

    def lost() -> Iterator[Any]:
        yield Event()
        raise RuntimeError("the GPU is lost")

    with opened() as (placed, slots):
        going = Stored(target, on_rows=on_rows)
        with pytest.raises(RuntimeError, match="lost"):
            download_voxels(placed, going, slots, SLOT_VOXELS, placed.program.stream, lost())
        is_told.set()
    assert not late
