"""Weights that sum to one, and slabs that leave as soon as they can."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.pipelines.study.patches import BlendedSlab, Blender, cover, patch_weights

edges = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14))
small_edges = st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
blends = st.sampled_from(get_args(Blend))


@settings(deadline=None)
@given(small_edges, small_edges, st.floats(0, 0.7), blends)
def test_weights_sum_to_one_at_every_voxel(
    extents: tuple[int, int, int], patch: tuple[int, int, int], overlap: float, blend: Blend
) -> None:
    """One channel for each patch, 1 in that patch and 0 in all others, comes back as its weight."""
    layout = cover(extents, patch, overlap)
    blender = Blender(layout, len(layout), blend)
    weights = np.full((len(layout), *extents), np.nan)
    for index, one in enumerate(layout):
        values = np.zeros((len(layout), *patch), np.float32)
        values[index] = 1
        if slab := blender.add(one, values):
            rows = slice(slab.start, slab.start + slab.values.shape[1])
            assert np.isnan(weights[:, rows]).all()
            weights[:, rows] = slab.values
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-6)
    for own, one in zip(weights, layout, strict=True):
        into, _ = layout.blended(one, layout.kept(blend))
        assert (own[into] > 0).all()
        own[into] = 0
        assert not own.any()


@settings(deadline=None)
@given(edges, edges, st.floats(0, 0.9), blends, st.integers(0, 2**32 - 1))
def test_the_volume_is_the_weighted_mean_of_its_patches(
    extents: tuple[int, int, int],
    patch: tuple[int, int, int],
    overlap: float,
    blend: Blend,
    seed: int,
) -> None:
    layout = cover(extents, patch, overlap)
    blender = Blender(layout, 2, blend)
    weights = patch_weights(layout, blend).astype(np.float64)
    sums, counts = np.zeros((2, *extents)), np.zeros(extents)
    found = np.empty((2, *extents))
    random = np.random.default_rng(seed)
    for one in layout:
        values = random.uniform(-1, 1, (2, *patch)).astype(np.float32)
        inside, part = layout.blended(one, layout.kept(blend))
        sums[:, *inside] += (values * weights)[:, *part]
        counts[inside] += weights[part]
        if slab := blender.add(one, values):
            found[:, slab.start : slab.start + slab.values.shape[1]] = slab.values
    np.testing.assert_allclose(found, sums / counts, rtol=0, atol=2e-6)


def test_rows_leave_once_no_later_patch_touches_them() -> None:
    layout = cover((20, 9, 8), (8, 8, 8), 0.25)
    assert layout.origins[0] == (0, 6, 12)
    blender = Blender(layout, 1, "gaussian")
    slabs = [blender.add(one, np.zeros((1, 8, 8, 8), np.float32)) for one in layout]
    assert [slab is not None for slab in slabs] == [False, True] * 3
    rows = [(slab.start, slab.values.shape[1]) for slab in slabs if isinstance(slab, BlendedSlab)]
    assert rows == [(0, 6), (6, 6), (12, 8)]


def test_patches_out_of_order_are_refused() -> None:
    layout = cover((20, 8, 8), (8, 8, 8), 0.25)
    [_, second, _] = layout
    with pytest.raises(ValueError, match="order"):
        Blender(layout, 1, "constant").add(second, np.zeros((1, 8, 8, 8), np.float32))


def test_linear_ramps_of_neighbours_add_up_to_one() -> None:
    layout = cover((20, 8, 8), (8, 8, 8), 0.25)
    ramp = patch_weights(layout, "linear")[:, 0, 0]
    np.testing.assert_allclose(ramp[6:] + ramp[:2], 1, rtol=1e-6)
    np.testing.assert_array_equal(ramp[2:6], 1)


def test_without_overlap_linear_is_constant() -> None:
    np.testing.assert_array_equal(patch_weights(cover((16, 16, 16), (8, 8, 8), 0), "linear"), 1)


@pytest.mark.parametrize("patch", [(16, 16, 16), (7, 12, 5), (96, 8, 1)])
def test_gaussian_is_monais_importance_map(patch: tuple[int, int, int]) -> None:
    monai = pytest.importorskip("monai.data.utils")
    theirs = monai.compute_importance_map(patch, mode="gaussian", sigma_scale=0.125).numpy()
    np.testing.assert_allclose(patch_weights(cover(patch, patch, 0), "gaussian"), theirs, rtol=1e-5)
