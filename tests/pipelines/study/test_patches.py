"""Patch origins: cover, end, spread, count, and MONAI's own grid."""

from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_cyclegan.pipelines.study.patches import cover

edges = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
overlaps = st.floats(0, 0.95)
strides = st.sampled_from([(1, 1, 1), (4, 4, 4), (1, 2, 8)])


def monai_origins(extent: int, patch: int, overlap: float) -> list[int]:
    """MONAI's dense_patch_slices for one axis of a padded volume."""
    interval = max(int(patch * (1 - overlap)), 1)
    count = ceil(max(extent - patch, 0) / interval) + 1
    return [min(i * interval, extent - patch) for i in range(count)]


@given(edges, edges, overlaps, strides)
def test_every_voxel_is_covered_and_no_patch_leaves_the_padded_volume(
    extents: tuple[int, int, int],
    patch: tuple[int, int, int],
    overlap: float,
    stride: tuple[int, int, int],
) -> None:
    layout = cover(extents, patch, overlap, stride)
    hits = np.zeros(extents, int)
    for one in layout:
        hits[layout.within_volume(one)] += 1
        inner = layout.within_patch(one)
        assert all(0 <= s.start < s.stop <= p for s, p in zip(inner, patch, strict=True))
    assert hits.min() >= 1
    assert len(layout) == len(list(layout))
    for row, padded, edge in zip(layout.origins, layout.padded, patch, strict=True):
        assert row[0] == 0
        assert row[-1] + edge == padded


@given(st.integers(1, 500), st.integers(1, 160), overlaps, st.sampled_from([1, 2, 4, 8, 16]))
def test_count_is_monais_and_the_overlap_is_kept(
    extent: int, patch: int, overlap: float, stride: int
) -> None:
    [row, _, _] = cover((extent, 1, 1), (patch, 1, 1), overlap, (stride, 1, 1)).origins
    assert len(row) == len(monai_origins(max(extent, patch), patch, overlap))
    gaps = np.diff(row)
    assert (gaps >= 1).all()
    assert (gaps <= max(int(patch * (1 - overlap)), 1)).all()


@given(st.integers(1, 500), st.integers(1, 160), overlaps)
def test_gaps_differ_by_at_most_one_voxel(extent: int, patch: int, overlap: float) -> None:
    gaps = np.diff(cover((extent, 1, 1), (patch, 1, 1), overlap).origins[0])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


@given(
    st.integers(1, 160), overlaps, st.integers(0, 6), st.sampled_from([1, 2, 4, 8]), st.booleans()
)
def test_a_regular_grid_is_monais(
    patch: int, overlap: float, gaps: int, stride: int, smaller: bool
) -> None:
    extent = patch + gaps * max(int(patch * (1 - overlap)), 1)
    if smaller:
        extent = max(patch - gaps, 1)
    [row, _, _] = cover((extent, 1, 1), (patch, 1, 1), overlap, (stride, 1, 1)).origins
    assert list(row) == monai_origins(max(extent, patch), patch, overlap)


@given(st.integers(129, 600), st.sampled_from([0.0, 0.25, 0.5, 0.75]))
def test_origins_follow_the_stride_where_that_is_free(extent: int, overlap: float) -> None:
    row = cover((extent, 1, 1), (128, 1, 1), overlap, (4, 1, 1)).origins[0]
    assert all(origin % 4 == 0 for origin in row[:-1])


def test_no_patch_is_added_for_the_stride() -> None:
    # The interval is 9; at 8 the volume would need a fourth patch.
    assert cover((37, 1, 1), (10, 1, 1), 0.1, (8, 1, 1)).origins[0] == (0, 9, 18, 27)


def test_a_small_volume_is_padded_symmetrically() -> None:
    layout = cover((5, 20, 10), (8, 8, 13), 0)
    assert layout.padded == (8, 20, 13)
    assert layout.before == (1, 0, 1)
    [first, *_] = layout
    assert layout.within_volume(first) == (slice(0, 5), slice(0, 8), slice(0, 10))
    assert layout.within_patch(first) == (slice(1, 6), slice(0, 8), slice(1, 11))


def test_depth_changes_slowest() -> None:
    origins = [*cover((20, 20, 20), (8, 8, 8), 0.25)]
    assert origins == sorted(origins)


@pytest.mark.parametrize("overlap", [-0.1, 1.0, float("nan")])
def test_an_overlap_outside_its_range_is_refused(overlap: float) -> None:
    with pytest.raises(ValueError, match="overlap"):
        cover((8, 8, 8), (4, 4, 4), overlap)
