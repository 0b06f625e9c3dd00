"""Memory and time planned for a GPU: from earlier measurements, or not at all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.described_gpus import H200
from support.gpu_networks import chain, random_network
from support.kernel_samples import computed_by

from cuda_cyclegan.engine.compiler.kernels.sliding_window import ring_layout
from cuda_cyclegan.engine.compiler.program.fitting import MemoryBudget, ProgramRequest, fit
from cuda_cyclegan.engine.cuda.patches.device_plan import (
    DevicePlan,
    ProgramPlan,
    in_faster_forms,
    plan_program,
    program_key,
)
from cuda_cyclegan.engine.cuda.tuning.cache import (
    Candidate,
    TuningCache,
    TuningResult,
    faster_forms,
    form_key,
    key_of,
)
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.layers import Conv3d, Elu
from cuda_cyclegan.engine.patch_grid import ring_rows
from cuda_cyclegan.engine.scaling import VOXEL_TYPES
from cuda_cyclegan.pipelines.study.inference import window_grid
from cuda_cyclegan.pipelines.study.patches import cover

NETWORK = random_network(build(ResNetSpec(1, 1, width=16, blocks=1)), 0)
HALVING = build(ResNetSpec(1, 1, width=32, blocks=0, downsamplings=1))
NARROWING = chain(
    1,
    ("wide", Conv3d(1, 64, (3, 3, 3), "wide.weight", padding=(1, 1, 1))),
    ("few", Conv3d(64, 8, (3, 3, 3), "few.weight", padding=(1, 1, 1))),
    ("elu", Elu()),
    ("last", Conv3d(8, 1, (1, 1, 1), "last.weight")),
)
WANTED = ProgramRequest((32, 32, 32), 2, "fp16", H200)
ROOM = MemoryBudget(8 << 30)
WORKSPACE = 100_000
PATCH = (32, 32, 32)


@pytest.fixture
def cache(tmp_path: Path) -> TuningCache:
    return TuningCache(tmp_path, {"card": "described"})


def start(cache: TuningCache, effort: str = "full", milliseconds: float = 3.0):
    """Return what a first start leaves in the cache, and the program that it opens."""

    def measured(shapes, workspace):
        found = {}
        for shape in shapes:
            found[shape] = Candidate("plan", WORKSPACE, 10.0)
            cache.put(key_of(shape), TuningResult(effort, workspace, (found[shape],)))
        return found

    fitted = fit(NETWORK, WANTED, ROOM, measured)
    cache.put_time(program_key(NETWORK.graph, fitted), milliseconds)
    return fitted


def test_before_the_first_start_nobody_knows(cache: TuningCache) -> None:
    assert plan_program(NETWORK, WANTED, ROOM, cache, "full") is None


def test_after_it_bytes_and_seconds_are_those_of_the_program(cache, tmp_path) -> None:
    fitted = start(cache)
    again = TuningCache(tmp_path, {"card": "described"})
    plan = plan_program(NETWORK, WANTED, ROOM, again, "quick")
    assert plan == ProgramPlan(fitted.memory.bytes, 2, 0.003)
    assert plan.seconds(5) == pytest.approx(3 * 0.003)
    other = TuningCache(tmp_path, {"card": "another"})
    assert plan_program(NETWORK, WANTED, ROOM, other, "quick") is None


@pytest.mark.parametrize(
    ("kernel", "form", "graph"),
    [
        ("conv_transpose_to_cells", "subpixel", HALVING),
        ("convolve_strided", "plain", HALVING),
        ("convolve_narrow", "plain", NARROWING),
    ],
)
def test_a_layer_that_is_slower_by_its_own_kernel_is_planned_as_it_is_faster(
    kernel, form, graph, cache
) -> None:
    network = random_network(graph, 0)

    def measured(shapes, workspace):
        found = {}
        for shape in shapes:
            found[shape] = Candidate("plan", WORKSPACE, 10.0)
            cache.put(key_of(shape), TuningResult("full", workspace, (found[shape],)))
        return found

    def planned(took: dict[str, float]) -> ProgramPlan | None:
        candidates = tuple(Candidate(form, 0, each) for form, each in took.items())
        cache.put(form_key(own), TuningResult("full", 0, candidates))
        return plan_program(network, WANTED, ROOM, cache, "full")

    fitted = fit(network, WANTED, ROOM, measured)
    [own] = computed_by(fitted.lowered.steps, kernel)
    cache.put_time(program_key(network.graph, fitted), 3.0)
    assert planned({"custom": 1.0, form: 2.0}) == ProgramPlan(fitted.memory.bytes, 2, 0.003)
    assert planned({form: 1.0, "custom": 2.0}) is None
    forms = faster_forms(fitted.lowered, cache)
    assert forms == {own.layer: form}
    other = fit(network, replace(WANTED, forms=forms), ROOM, measured)
    assert not computed_by(other.lowered.steps, kernel)
    cache.put_time(program_key(network.graph, other), 2.0)
    assert planned({form: 1.0, "custom": 2.0}) == ProgramPlan(other.memory.bytes, 2, 0.002)
    faster = in_faster_forms(network, WANTED, fitted, ROOM, measured, cache)
    assert faster.memory == other.memory
    none = MemoryBudget(ROOM.free, allowed=1)
    assert in_faster_forms(network, WANTED, fitted, none, measured, cache) is fitted


def test_a_harder_search_than_was_made_is_still_to_come(cache: TuningCache) -> None:
    start(cache, "quick")
    assert plan_program(NETWORK, WANTED, ROOM, cache, "quick") is not None
    assert plan_program(NETWORK, WANTED, ROOM, cache, "full") is None


def test_workspaces_count_into_the_bytes(cache: TuningCache) -> None:
    start(cache)
    known = plan_program(NETWORK, WANTED, ROOM, cache, "full")
    bare = fit(NETWORK, WANTED, ROOM, lambda shapes, _: dict.fromkeys(shapes, NONE))
    assert known is not None
    assert known.bytes > bare.memory.bytes


NONE = Candidate("custom kernel", 0, 1.0)


class TestArrays:
    plan = DevicePlan("card", ProgramPlan(1000, 1, None), 1 << 30, (1, 1))
    large, small = (
        window_grid(np.empty((1, *extents), np.float32), cover(extents, PATCH, 0.25))
        for extents in ((200, 64, 64), (40, 64, 64))
    )

    def size(self, grid, *, spare: bool = True) -> int:
        return ring_layout(grid, ring_rows(grid, spare=spare), (1, 1)).bytes

    def test_the_program_and_the_largest_arrays_at_once(self) -> None:
        both = [self.small, self.large, self.small]
        assert self.plan.held([]) == 1000
        assert self.plan.held(both) == 1000 + self.size(self.large)
        assert self.plan.held(both, 2) == 1000 + self.size(self.large) + self.size(self.small)

    @pytest.mark.parametrize("name", VOXEL_TYPES)
    def test_given_array_takes_the_bytes_of_its_voxels(self, name: str) -> None:
        grid = window_grid(np.empty((1, 200, 64, 64), name), cover((200, 64, 64), PATCH, 0.25))
        saved = 4 - np.dtype(name).itemsize
        rows = ring_rows(grid, spare=True)
        assert self.size(grid) == self.size(self.large) - saved * rows * 64 * 64

    def test_rings_shrink_with_the_space_and_then_there_are_none(self) -> None:
        roomy, tight = self.size(self.large), self.size(self.large, spare=False)
        for room, rest in ((roomy, roomy), (roomy - 1, tight), (tight - 1, 0)):
            plan = DevicePlan("card", ProgramPlan(1000, 1, None), 1000 + room, (1, 1))
            assert plan.held([self.large]) == 1000 + rest

    def test_an_unknown_program_has_no_bytes_at_all(self) -> None:
        plan = DevicePlan("card", None, 1 << 30, (1, 1))
        assert plan.held([self.small]) is None
