"""Mirror images of patches, and their order."""

from itertools import permutations, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator, small_resnet, through

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.patch_grid import SmallVolumePadding
from cuda_cyclegan.pipelines.study.inference import SlidingWindow
from cuda_cyclegan.pipelines.study.patches import (
    UNFLIPPED,
    Flip,
    cover,
    flipped,
    flipped_in_memory,
    flips,
)

AXES = ["".join(code) for order in permutations(["RL", "AP", "SI"]) for code in product(*order)]


@pytest.mark.parametrize("axes", AXES)
def test_left_and_right_change_places_first_and_head_and_feet_last(axes: str) -> None:
    mirrored = [
        "".join(side for side, swaps in zip(axes, flip, strict=True) if swaps)
        for flip in flips(8, axes)
    ]
    sides = [{"R": "L", "P": "A", "I": "S"}.get(side, side) for side in "".join(mirrored)]
    assert mirrored[0] == ""
    assert [len(each) for each in mirrored] == [0, 1, 1, 2, 1, 2, 2, 3]
    assert sides[:4] == [*"LA", *sides[2:4]]
    assert set(sides[2:4]) == {"L", "A"}
    assert "S" not in sides[:4]
    assert all("S" in each or "I" in each for each in mirrored[4:])
    assert len({*flips(8, axes)}) == 8


@pytest.mark.parametrize("count", range(2, 9))
def test_fewer_are_the_first_of_them(count: int) -> None:
    assert [*flips(count, "SPL")] == [*flips(8, "SPL")][:count]
    assert next(flips(count, "SPL")) == UNFLIPPED


@given(st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_a_patch_mirrored_twice_is_the_patch(flip: Flip) -> None:
    patches = np.arange(2 * 3 * 4 * 5 * 6, dtype=np.float32).reshape(2, 3, 4, 5, 6)
    axes = [2 + axis for axis in range(3) if flip[axis]]
    np.testing.assert_array_equal(flipped(patches, flip), np.flip(patches, axes))
    np.testing.assert_array_equal(flipped(flipped(patches, flip), flip), patches)
    assert flipped_in_memory(patches, flip).flags.c_contiguous


every_flip = st.tuples(st.booleans(), st.booleans(), st.booleans())
edges = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14))


def bent(patches: FloatArray) -> FloatArray:
    return np.tanh(patches * 2 + np.roll(patches, (1, 2, 1), axis=(2, 3, 4)) / 4)


@settings(deadline=None)
@given(edges, edges, every_flip, st.sampled_from(get_args(SmallVolumePadding)))
def test_patches_are_mirrored_where_they_lie(
    extents: Triple, patch: Triple, flip: Flip, padding: SmallVolumePadding
) -> None:
    """The effect is that of another network: patches, cutting and blending stay the same."""
    array = np.random.default_rng(1).uniform(-1, 1, (1, *extents)).astype(np.float32)
    layout = cover(extents, patch, 0.4)
    other = FunctionGenerator(lambda patches: flipped(bent(flipped(patches, flip)), flip))
    expected = through(array, other, SlidingWindow(layout, "gaussian", padding))
    made = through(array, FunctionGenerator(bent), SlidingWindow(layout, "gaussian", padding, flip))
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("flip", [*flips(8, "RAS")])
def test_volume_may_be_mirrored_where_patches_lie_alike_from_either_end(
    flip: Flip,
) -> None:
    """Others mirror whole volumes; the order in which patches are blended differs."""
    array = np.random.default_rng(3).uniform(-1, 1, (1, 40, 28, 16)).astype(np.float32)
    layout = cover((40, 28, 16), (16, 16, 16), 0.25)
    for row, extent in zip(layout.origins, layout.extents, strict=True):
        assert [extent - 16 - origin for origin in reversed(row)] == [*row]
    axes = [1 + axis for axis in range(3) if flip[axis]]
    with open_cpu_generator(small_resnet(), threads=2) as generator:
        plain, mirrored = (
            SlidingWindow(layout, "gaussian", "edge", each) for each in (UNFLIPPED, flip)
        )
        whole = np.flip(through(np.flip(array, axes).copy(), generator, plain), axes)
        patchwise = through(array, generator, mirrored)
        as_it_lies = through(array, generator, plain)
    np.testing.assert_allclose(patchwise, whole, rtol=0, atol=1e-6)
    assert (flip == UNFLIPPED) == np.allclose(as_it_lies, whole, rtol=0, atol=1e-3)
