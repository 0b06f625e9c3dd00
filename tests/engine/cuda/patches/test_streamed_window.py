"""The order of copies, runs and blends: right whichever way the GPU's queues are run."""

import shutil
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gpu_on_cpu.streams import Gpu
from support.numerics_models import FunctionGenerator, through, translated
from support.streamed_window import (
    FakeGenerator,
    bent,
    edges,
    patches,
    replace_buffers,
    run_window_into,
    streamed,
)
from support.tiers import examples

from cuda_cyclegan.engine.cuda import in_flight
from cuda_cyclegan.engine.errors import PrecisionOverflowError
from cuda_cyclegan.engine.model.tiling import OWN, Tiling
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import PatchPadding, SmallVolumePadding
from cuda_cyclegan.engine.scaling import (
    NOTHING_CLIPPED,
    VOXEL_TYPES,
    Clipped,
    Scaling,
    Stored,
)
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import cover, patch_weights

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


TILINGS = [*OWN.values(), replace(OWN["torchio"], border=True)]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_buffers(monkeypatch)


@settings(deadline=None, max_examples=examples(60, 12))
@given(
    edges,
    patches,
    st.floats(0, 0.8),
    st.sampled_from(get_args(Blend)),
    st.sampled_from([*get_args(SmallVolumePadding), 0.25]),
    st.sampled_from(TILINGS),
    st.integers(1, 3),
    st.sampled_from([None, 0]),
    st.integers(0, 10**6),
)
def test_a_window_gives_what_patches_one_by_one_give(
    extents: Any,
    patch: Any,
    overlap: float,
    blend: Blend,
    padding: PatchPadding,
    tiling: Tiling,
    batch: int,
    most: int | None,
    seed: int,
) -> None:
    array = np.random.default_rng(seed).uniform(-1, 1, (1, *extents)).astype(np.float32)
    window = SlidingWindow(cover(extents, patch, overlap, tiling=tiling), blend, padding)
    here = translated(array, FunctionGenerator(bent), window.layout, blend, padding)
    there = streamed(array, window, bent, seed=seed, batch=batch, most=most)
    np.testing.assert_array_equal(there, here)


@settings(deadline=None, max_examples=examples(60, 12))
@given(
    edges,
    patches,
    st.permutations(range(3)),
    st.tuples(*[st.sampled_from([1, -1])] * 3),
    st.sampled_from(get_args(SmallVolumePadding)),
    st.integers(0, 10**6),
)
def test_an_array_is_gone_over_as_it_lies_in_memory(
    extents: Any,
    patch: Any,
    axes: list[int],
    ways: tuple[int, int, int],
    padding: SmallVolumePadding,
    seed: int,
) -> None:
    """Patches come in another order then, which changes the rounding of their mean, no more."""
    lying = np.random.default_rng(seed).uniform(-1, 1, [extents[axis] for axis in axes])

    def seen(memory: Any) -> Any:
        d, h, w = ways
        return memory.transpose(np.argsort(axes))[None, ::d, ::h, ::w]

    array, made = seen(lying.astype(np.float32)), seen(np.empty(lying.shape, np.float32))
    window = SlidingWindow(cover(extents, patch, 0.4), "gaussian", padding)
    here = translated(array, FunctionGenerator(bent), window.layout, "gaussian", padding)
    run_window_into(Stored(array), Stored(made), window, bent, seed=seed)
    np.testing.assert_allclose(made, here, rtol=0, atol=2e-6)


@pytest.mark.parametrize("way", [1, -1])
def test_rows_are_reported_when_they_are_final(way: int) -> None:
    """Rows are counted as they lie in memory, so that a file of them can be written meanwhile."""
    lying = np.random.default_rng(0).uniform(-1, 1, (11, 6, 7)).astype(np.float32)
    made = np.full_like(lying, np.nan)
    reported: list[tuple[int, Any]] = []

    def seen(memory: Any) -> Any:
        return memory.transpose(2, 1, 0)[None, :, :, ::way]

    def handle(rows: int) -> None:
        reported.append((rows, made[:rows].copy()))

    window = SlidingWindow(cover((7, 6, 11), (4, 4, 4), 0.4), "gaussian", "edge")
    run_window_into(Stored(seen(lying)), Stored(seen(made), on_rows=handle), window, bent)
    rows = [count for count, _ in reported]
    assert len(rows) > 2
    assert rows == sorted(rows)
    assert rows[-1] == 11
    for count, there in reported:
        np.testing.assert_array_equal(there, made[:count])


@pytest.mark.parametrize("blend", get_args(Blend))
def test_weights_are_the_same_from_either_end(blend: Blend) -> None:
    """An array that lies the other way round then needs no others."""
    weights = patch_weights(cover((40, 41, 30), (16, 15, 11), 0.3), blend)
    np.testing.assert_array_equal(weights, weights[::-1, ::-1, ::-1])


@settings(deadline=None, max_examples=examples(60, 12))
@given(
    edges,
    patches,
    st.sampled_from(VOXEL_TYPES),
    st.sampled_from(VOXEL_TYPES),
    st.sampled_from(get_args(SmallVolumePadding)),
    st.sampled_from([25.0, -25.0]),
    st.booleans(),
    st.sampled_from([-1.0, 0.0]),
    st.integers(1, 3),
    st.sampled_from([None, 0]),
    st.integers(0, 10**6),
)
def test_voxels_go_in_and_come_out_as_they_are_stored(
    extents: Any,
    patch: Any,
    kind: str,
    result: str,
    padding: SmallVolumePadding,
    radius: float,
    clips: bool,
    lowest: float,
    batch: int,
    most: int | None,
    seed: int,
) -> None:
    voxels = np.random.default_rng(seed).uniform(0, 120, (1, *extents)).astype(kind)
    source = Stored(voxels, Scaling(60, radius, clips, lowest))
    counts = list[Clipped](), list[Clipped]()
    here, there = (
        Stored(np.empty_like(voxels, result), Scaling(40, 90), on_clipped=count.append)
        for count in counts
    )
    window = SlidingWindow(cover(extents, patch, 0.4), "gaussian", padding)
    generator = FunctionGenerator(bent)
    translate_array(source, here, generator, window, Stopwatch(), lambda _: None)
    run_window_into(source, there, window, bent, seed=seed, batch=batch, most=most)
    np.testing.assert_array_equal(there.values, here.values)
    on_host, on_gpu = (sum(count, NOTHING_CLIPPED) for count in counts)
    assert (on_gpu.below, on_gpu.above) == (on_host.below, on_host.above)
    if on_host:
        ends = on_host.lowest, on_host.highest
        np.testing.assert_allclose((on_gpu.lowest, on_gpu.highest), ends, rtol=1e-6)


@pytest.mark.parametrize("padding", ["reflect", 0.25])
@pytest.mark.parametrize("blend", get_args(Blend))
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda one: f"{one.code}, border {one.border}")
def test_tilings_run_along_axes_in_another_order_and_against_them(
    tiling: Tiling, blend: Blend, padding: PatchPadding
) -> None:
    extents, patch = (9, 5, 3), (6, 4, 4)
    lying = np.random.default_rng(0).uniform(-1, 1, (3, 9, 5)).astype(np.float32)
    array = lying.transpose(1, 2, 0)[None, :, ::-1, ::-1]
    window = SlidingWindow(cover(extents, patch, 0.5, tiling=tiling), blend, padding)
    here = translated(array, FunctionGenerator(bent), window.layout, blend, padding)
    there = np.empty_like(lying).transpose(1, 2, 0)[None, :, ::-1, ::-1]
    run_window_into(Stored(array), Stored(there), window, bent)
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lowest", [-1.0, 0.0])
@pytest.mark.parametrize("padding", get_args(SmallVolumePadding))
@pytest.mark.parametrize(("kind", "result"), [*pairwise(VOXEL_TYPES), ("uint16", "float32")])
def test_the_kernels_of_a_window_do_as_the_host_does(
    kind: str,
    result: str,
    padding: SmallVolumePadding,
    lowest: float,
) -> None:
    """Axes are in another order or reversed; the window is wider than the array; values are out of
    range.
    """
    extents, patch = (9, 5, 3), (5, 4, 4)
    lying = np.random.default_rng(0).uniform(0, 120, (3, 9, 5)).astype(kind)
    inward = Scaling(60.3, -45.7, clips=padding != "edge", lowest=lowest)
    source = Stored(lying.transpose(1, 2, 0)[None, :, ::-1, ::-1], inward)
    here, there = (
        Stored(np.empty_like(lying, result).transpose(1, 2, 0)[None, :, ::-1, ::-1], outward)
        for outward in [Scaling(40.1, 90.3)] * 2
    )
    window = SlidingWindow(cover(extents, patch, 0.3), "gaussian", padding)
    translate_array(source, here, FunctionGenerator(bent), window, Stopwatch(), lambda _: None)
    run_window_into(source, there, window, bent)
    # Patches come in another order, as above.
    limit = 1e-5 if result == "float32" else 0
    np.testing.assert_allclose(there.values, here.values, rtol=0, atol=limit)


@pytest.mark.parametrize("result", ["int8", "float32"])
@pytest.mark.parametrize("huge", ["blended", "stored"])
def test_overflow_after_the_network_is_noticed(huge: str, result: str) -> None:
    """Patches may be finite where their mean is not, or where the voxel type is too small."""
    signs = cycle([3e38, -3e38])

    def function(given_patches: Any) -> Any:
        return np.full_like(given_patches, next(signs) if huge == "blended" else 2)

    array = np.ones((1, 12, 4, 4), np.float32)
    target = Stored(np.empty_like(array, result), Scaling(0, 1 if huge == "blended" else 3e38))
    window = SlidingWindow(cover((12, 4, 4), (5, 4, 4), 0.5), "gaussian", "edge")

    def run() -> None:
        run_window_into(Stored(array), target, window, function)

    if huge == "stored" and result == "int8":  # clipped, as ever
        run()
        assert (target.values == 127).all()
        return
    with pytest.raises(PrecisionOverflowError):
        run()


@pytest.mark.parametrize(
    ("batch", "most", "runs"),
    [(1, None, 18), (2, None, 9), (4, None, 5), (8, None, 3), (4, 0, 6), (8, 0, 3)],
)
def test_only_the_last_run_of_an_array_has_patches_to_spare(
    batch: int, most: int | None, runs: int
) -> None:
    """Three rows of six patches; without spare rows in the rings, each row ends with a run."""
    extents, patch = (20, 18, 12), (8, 8, 8)
    array = np.random.default_rng(0).uniform(-1, 1, (1, *extents)).astype(np.float32)
    window = SlidingWindow(cover(extents, patch, 0.25), "gaussian", "edge")
    assert [len(row) for row in window.layout.origins] == [3, 3, 2]
    done: list[int] = []

    def counted(given_patches: Any) -> Any:
        done.append(len(given_patches))
        return bent(given_patches)

    streamed(array, window, counted, batch=batch, most=most)
    assert done == [batch] * runs


def test_patches_of_an_earlier_array_do_not_overflow_in_this_one() -> None:
    def overflowing(given_patches: Any) -> Any:
        return np.where(given_patches > 5, np.inf, given_patches)

    extents = (4, 6, 18), (4, 6, 12)
    windows = [SlidingWindow(cover(e, (4, 6, 6), 0), "gaussian", "edge") for e in extents]
    arrays = [np.full((1, *e), value, np.float32) for e, value in zip(extents, (7, 1), strict=True)]
    gpu = Gpu.in_random_order(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "Stream", gpu.stream)
        generator = FakeGenerator(overflowing).on(gpu, (4, 6, 6), 3, None)
        with pytest.raises(PrecisionOverflowError):
            through(arrays[0], generator, windows[0])
        made = through(arrays[1], generator, windows[1])
    np.testing.assert_allclose(made, arrays[1])


def test_one_overflow_among_many_patches_is_noticed() -> None:
    array = np.zeros((1, 40, 6, 6), np.float32)
    array[0, 13] = 7
    window = SlidingWindow(cover((40, 6, 6), (4, 6, 6), 0), "gaussian", "edge")

    def overflowing(given_patches: Any) -> Any:
        return np.where(given_patches > 5, np.inf, given_patches)

    with pytest.raises(PrecisionOverflowError):
        streamed(array, window, overflowing)
