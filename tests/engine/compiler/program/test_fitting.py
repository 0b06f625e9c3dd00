"""A program fits into the room it is given, or the message says how much would do."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.each_pair import each_pair
from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler.program.fitting import (
    MemoryBudget,
    ProgramRequest,
    fit,
    usual_batch,
)
from cuda_cyclegan.engine.compiler.program.memory import (
    between_guards,
    bytes_of_trials,
    convolution_blocks,
)
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Network

MIB = 1 << 20
RESERVE = 64 * MIB
WANTED = ProgramRequest((32, 32, 32), 4, "fp16", H200)


@cache
def network(width: int = 16) -> Network:
    """Return a network; one of width 32 has custom kernels."""
    return random_network(build(ResNetSpec(1, 1, width, blocks=1)), 0)


@dataclass(frozen=True)
class Plan:
    name: str
    workspace: int


Choose: TypeAlias = Callable[[list[ConvShape], int], Mapping[ConvShape, Plan]]


def hungry(shapes: list[ConvShape], workspace: int) -> Mapping[ConvShape, Plan]:
    """Return plans that take every byte that they may."""
    return {shape: Plan("hungry", workspace) for shape in shapes}


def modest(shapes: list[ConvShape], workspace: int) -> Mapping[ConvShape, Plan]:
    assert workspace >= 4096
    return {shape: Plan("modest", 0) for shape in shapes}


def bytes_of(allowed: int, choose=modest, wanted: ProgramRequest = WANTED) -> tuple[int, int]:
    fitted = fit(network(), wanted, MemoryBudget(1 << 40, allowed), choose)
    return fitted.memory.bytes, fitted.lowered.layout.batch


@pytest.mark.parametrize(
    ("mebibytes", "width", "choose"),
    each_pair([0, 3, 5, 10, 16, 25, 40], [16, 32], [hungry, modest]),
)
def test_planned_program_fits_and_the_named_limit_is_enough(
    mebibytes: int, width: int, choose: Choose
) -> None:
    check_limit(width, 32, choose, mebibytes * MIB)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.sampled_from([(16, 32), (32, 64)]),
    st.sampled_from([hungry, modest]),
    st.integers(0, 40 * MIB),
)
def test_any_limit_is_kept_or_another_named(
    of: tuple[int, int], choose: Choose, allowed: int
) -> None:
    check_limit(*of, choose, allowed)


def check_limit(width: int, edge: int, choose: Choose, allowed: int) -> None:
    """Check the limit, also for the trials that come before a program is open."""
    wanted = replace(WANTED, patch=(edge, edge, edge))

    def held_in(limit: int) -> tuple[int, int]:
        tried: list[int] = []

        def tries(shapes: list[ConvShape], workspace: int) -> Mapping[ConvShape, Plan]:
            tried.extend(
                between_guards(convolution_blocks(shape, workspace)).bytes for shape in shapes
            )
            return choose(shapes, workspace)

        fitted = fit(network(width), wanted, MemoryBudget(1 << 40, limit), tries)
        tried.append(bytes_of_trials(fitted.lowered, 4096))
        assert max(tried) <= limit
        return fitted.memory.bytes, fitted.lowered.layout.batch

    try:
        held, _ = held_in(allowed)
    except DeviceMemoryError as error:
        [lowest] = re.findall(r"setting vram-limit of at least (\d+) MiB", str(error))
        assert int(lowest) * MIB > allowed
        held, batch = held_in(int(lowest) * MIB)
        assert batch == 1
        assert held <= int(lowest) * MIB
        with pytest.raises(DeviceMemoryError):
            held_in((int(lowest) - 1) * MIB)
    else:
        assert held <= allowed


def test_less_space_means_smaller_slabs_and_fewer_patches_and_at_last_none_for_the_arrays() -> None:
    wanted = replace(WANTED, patch=(96, 96, 96))
    rooms = [size * MIB for size in (512, 400, 300, 150, 100)]
    outcomes = [bytes_of(room, modest, wanted) for room in rooms]
    assert [batch for _, batch in outcomes] == [4, 4, 2, 1, 1]
    sizes = [held for held, _ in outcomes]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 5
    assert all(size <= room // 2 for size, room in zip(sizes, rooms, strict=True))
    smallest, _ = bytes_of(50 * MIB, modest, wanted)
    assert 25 * MIB < smallest <= 50 * MIB


def test_a_gpu_taken_by_others_is_reported_from_a_low_limit() -> None:
    with pytest.raises(DeviceMemoryError, match=r"only 1 MiB are free; end other programs"):
        fit(network(), WANTED, MemoryBudget(RESERVE + MIB), modest)
    with pytest.raises(DeviceMemoryError, match=r"only 0 MiB are free"):
        fit(network(), WANTED, MemoryBudget(0, 1 << 30), modest)
    with pytest.raises(
        DeviceMemoryError, match=r"but only 1 MiB may be used; .* setting vram-limit"
    ):
        fit(network(), WANTED, MemoryBudget(1 << 30, MIB), modest)


def test_the_smaller_patch_that_is_named_fits() -> None:
    wanted, room = replace(WANTED, patch=(128, 128, 128)), MemoryBudget(1 << 40, 60 * MIB)
    with pytest.raises(DeviceMemoryError) as raised:
        fit(network(), wanted, room, modest)
    named = re.search(r"\(setting patch=(\d+),(\d+),(\d+) fits\)", str(raised.value))
    assert named
    d, h, w = map(int, named.groups())
    assert fit(network(), replace(wanted, patch=(d, h, w)), room, modest).memory.bytes <= 60 * MIB


@pytest.mark.parametrize(
    ("width", "extent", "multiprocessors", "batch"),
    [
        (32, 64, 132, 8),
        (32, 96, 132, 4),
        (32, 128, 132, 2),
        (64, 96, 132, 2),
        (64, 128, 132, 1),
        (64, 256, 132, 1),
        (32, 128, 40, 1),
        (32, 64, 40, 8),
        (1, 8, 132, 8),
    ],
)
def test_light_work_goes_several_patches_a_run(width, extent, multiprocessors, batch) -> None:
    graph = build(ResNetSpec(1, 1, width=width, blocks=9))
    assert usual_batch(graph, (extent, extent, extent), multiprocessors) == batch
