"""Patches that are mirrored where a GPU cuts them, and mirrored back where it blends them."""

import shutil
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator
from support.streamed_window import (
    bent,
    edges,
    patches,
    replace_buffers,
    run_window_into,
)
from support.tiers import examples

from cuda_cyclegan.engine.patch_grid import SmallVolumePadding
from cuda_cyclegan.engine.scaling import VOXEL_TYPES, Scaling, Stored
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import Flip, cover

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

every_flip = st.tuples(st.booleans(), st.booleans(), st.booleans())
FLIPS: list[Flip] = [(d, h, w) for d in (False, True) for h in (False, True) for w in (False, True)]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_buffers(monkeypatch)


def on_the_host(source: Stored, target: Stored, window: SlidingWindow) -> None:
    generator = FunctionGenerator(bent)
    translate_array(source, target, generator, window, Stopwatch(), lambda _: None)


@settings(deadline=None, max_examples=examples(60, 12))
@given(
    edges,
    patches,
    every_flip,
    st.sampled_from(get_args(SmallVolumePadding)),
    st.integers(1, 3),
    st.sampled_from([None, 0]),
    st.integers(0, 10**6),
)
def test_a_window_of_mirrored_patches_gives_what_patches_one_by_one_give(
    extents: Any,
    patch: Any,
    flip: Flip,
    padding: SmallVolumePadding,
    batch: int,
    most: int | None,
    seed: int,
) -> None:
    voxels = np.random.default_rng(seed).uniform(0, 120, (1, *extents)).astype(np.int16)
    source = Stored(voxels, Scaling(60, 25))
    here, there = (Stored(np.empty_like(voxels, np.float32)) for _ in range(2))
    window = SlidingWindow(cover(extents, patch, 0.4), "gaussian", padding, flip)
    on_the_host(source, here, window)
    run_window_into(source, there, window, bent, seed=seed, batch=batch, most=most)
    np.testing.assert_array_equal(there.values, here.values)


@settings(deadline=None, max_examples=examples(60, 12))
@given(
    edges,
    patches,
    st.permutations(range(3)),
    st.tuples(*[st.sampled_from([1, -1])] * 3),
    every_flip,
    st.integers(0, 10**6),
)
def test_mirroring_is_along_the_axes_of_the_network_however_an_array_lies(
    extents: Any, patch: Any, axes: list[int], ways: tuple[int, int, int], flip: Flip, seed: int
) -> None:
    lying = np.random.default_rng(seed).uniform(-1, 1, [extents[axis] for axis in axes])

    def seen(memory: Any) -> Stored:
        d, h, w = ways
        return Stored(memory.transpose(np.argsort(axes))[None, ::d, ::h, ::w])

    source = seen(lying.astype(np.float32))
    here, there = (seen(np.empty(lying.shape, np.float32)) for _ in range(2))
    window = SlidingWindow(cover(extents, patch, 0.4), "gaussian", "edge", flip)
    on_the_host(source, here, window)
    run_window_into(source, there, window, bent, seed=seed)
    np.testing.assert_allclose(there.values, here.values, rtol=0, atol=2e-6)


@pytest.mark.parametrize("padding", get_args(SmallVolumePadding))
@pytest.mark.parametrize("flip", FLIPS)
def test_the_kernels_mirror_as_the_host_does(flip: Flip, padding: SmallVolumePadding) -> None:
    """Axes are in another order or reversed, and the window is wider than the array."""
    extents, patch = (9, 5, 3), (5, 4, 4)
    lying = np.random.default_rng(0).uniform(0, 120, (3, 9, 5)).astype(np.int16)
    source = Stored(lying.transpose(1, 2, 0)[None, :, ::-1, ::-1], Scaling(60.3, -45.7))
    here, there = (
        Stored(np.empty_like(lying, np.float32).transpose(1, 2, 0)[None, :, ::-1, ::-1])
        for _ in range(2)
    )
    window = SlidingWindow(cover(extents, patch, 0.3), "gaussian", padding, flip)
    on_the_host(source, here, window)
    run_window_into(source, there, window, bent)
    np.testing.assert_allclose(there.values, here.values, rtol=0, atol=2e-6)


@pytest.mark.parametrize("result", VOXEL_TYPES)
def test_voxels_stored_on_the_host_have_the_bytes_that_the_kernel_stores(result: str) -> None:
    """A spread takes network intensities from the GPU; else voxels come as they are stored."""
    extents, patch = (20, 12, 10), (8, 8, 8)
    voxels = np.random.default_rng(0).uniform(0, 120, (1, *extents)).astype(np.int16)
    source, outward = Stored(voxels, Scaling(60.3, 45.7, clips=True)), Scaling(40.1, 90.3)
    window = SlidingWindow(cover(extents, patch, 0.3), "gaussian", "edge")
    by_gpu = Stored(np.empty_like(voxels, result), outward)
    network = Stored(np.empty_like(voxels, np.float32))
    for target in (by_gpu, network):
        run_window_into(source, target, window, bent)
    by_host = np.empty_like(by_gpu.values)
    outward.store(network.values, by_host)
    assert by_host.tobytes() == by_gpu.values.tobytes()
