"""Arrays through a generator, patch by patch."""

from itertools import count
from threading import Event
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.numerics_models import FunctionGenerator, small_resnet, through, translated
from support.waiting import ENOUGH

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import SmallVolumePadding
from cuda_cyclegan.engine.scaling import Scaling, Stored
from cuda_cyclegan.pipelines.errors import PreparationError
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import BlendedSlab, Blender, cover

edges = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14))


@settings(deadline=None)
@given(
    edges,
    edges,
    st.floats(0, 0.9),
    st.sampled_from(get_args(Blend)),
    st.sampled_from(get_args(SmallVolumePadding)),
)
def test_an_identity_generator_gives_the_array(
    extents: Triple, patch: Triple, overlap: float, blend: Blend, padding: SmallVolumePadding
) -> None:
    array = np.random.default_rng(1).uniform(-1, 1, (1, *extents)).astype(np.float32)
    before = array.copy()
    patches: list[int] = []
    layout = cover(extents, patch, overlap)
    window = SlidingWindow(layout, blend, padding)
    result = through(array, FunctionGenerator(), window, patches.append)
    np.testing.assert_array_equal(result, array)
    np.testing.assert_array_equal(array, before)
    assert patches == [1] * len(layout)


def test_a_generator_may_overwrite_its_patch() -> None:
    array = np.ones((1, 12, 8, 8), np.float32)

    def negate(patches: FloatArray) -> FloatArray:
        return np.negative(patches, out=patches)

    layout = cover((12, 8, 8), (8, 8, 8), 0.5)
    result = translated(array, FunctionGenerator(negate), layout, "gaussian")
    np.testing.assert_array_equal(array, 1)
    np.testing.assert_array_equal(result, -1)


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("edge", [3, 3, 5, 4, 4, 4]),
        ("reflect", [5, 3, 5, 4, 5, 3]),
        ("minimum", [2, 3, 5, 4, 2, 2]),
    ],
)
def test_small_volumes_grow_as_the_card_says(
    padding: SmallVolumePadding, expected: list[float]
) -> None:
    array = np.full((1, 3, 1, 2), 2.0, np.float32)
    array[0, :, 0, 0] = [3, 5, 4]
    seen: list[FloatArray] = []

    def remember(patches: FloatArray) -> FloatArray:
        seen.append(patches.copy())
        return patches

    layout = cover((3, 1, 2), (6, 1, 2), 0)
    translated(array, FunctionGenerator(remember), layout, "constant", padding)
    np.testing.assert_array_equal(seen[0][0, 0, :, 0, 0], expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_result_that_is_not_finite_is_refused(bad: float) -> None:
    array = np.zeros((1, 24, 8, 8), np.float32)
    array[0, 13, 1, 1] = 1

    def spoil(patches: FloatArray) -> FloatArray:
        return np.where(patches > 0, np.float32(bad), patches)

    with pytest.raises(PreparationError, match="not finite"):
        translated(array, FunctionGenerator(spoil), cover((24, 8, 8), (8, 8, 8), 0.25))


@pytest.mark.parametrize("padding", get_args(SmallVolumePadding))
@pytest.mark.parametrize("radius", [40.0, -25.0])
def test_stored_voxels_are_mapped_on_their_way(radius: float, padding: SmallVolumePadding) -> None:
    """The result is as if they had been mapped before and after, to the last bit."""
    voxels = np.random.default_rng(6).integers(-90, 90, (1, 6, 9, 7)).astype(np.int16)
    inward, outward = Scaling(7.5, radius, clips=True), Scaling(3, 50)
    window = SlidingWindow(cover((6, 9, 7), (8, 6, 6), 0.5), "gaussian", padding)
    made = np.zeros((1, 6, 9, 7), np.int16)
    shifted = FunctionGenerator(lambda patches: np.roll(-patches, 3, axis=2))
    source, target = Stored(voxels, inward), Stored(made, outward)
    translate_array(source, target, shifted, window, Stopwatch(), lambda _: None)
    network = through(inward.forward(voxels), shifted, window)
    expected = np.empty_like(made)
    outward.store(network, expected)
    np.testing.assert_array_equal(made, expected)
    assert len(np.unique(made)) > 30


def test_a_result_is_blended_during_the_next_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    add, next_begins, calls = Blender.add, Event(), count(1)

    def add_once_the_next_begins(
        blender: Blender, origin: Triple, patch: FloatArray
    ) -> BlendedSlab | None:
        assert next_begins.wait(ENOUGH)
        return add(blender, origin, patch)

    def network(patches: FloatArray) -> FloatArray:
        if next(calls) == 2:
            next_begins.set()
        return patches

    monkeypatch.setattr(Blender, "add", add_once_the_next_begins)
    array = np.random.default_rng(0).uniform(-1, 1, (1, 8, 8, 14)).astype(np.float32)
    made = translated(array, FunctionGenerator(network), cover((8, 8, 14), (8, 8, 8), 0.25))
    np.testing.assert_allclose(made, array, rtol=0, atol=1e-6)


def test_an_interrupt_passes_through() -> None:
    def interrupted(_: FloatArray) -> FloatArray:
        raise KeyboardInterrupt

    layout = cover((8, 8, 8), (8, 8, 8), 0)
    array = np.zeros((1, 8, 8, 8), np.float32)
    with pytest.raises(KeyboardInterrupt):
        translated(array, FunctionGenerator(interrupted), layout)


def test_a_foreign_layout_is_refused() -> None:
    array = np.zeros((1, 8, 8, 8), np.float32)
    with pytest.raises(ValueError, match="does not fit"):
        translated(array, FunctionGenerator(), cover((8, 8, 9), (8, 8, 8), 0))


def test_the_same_array_gives_the_same_bits() -> None:
    array = np.random.default_rng(5).uniform(-1, 1, (1, 30, 20, 20)).astype(np.float32)
    layout = cover((30, 20, 20), (16, 16, 16), 0.5)
    with open_cpu_generator(small_resnet(), threads=2) as generator:
        first, second = (translated(array, generator, layout, "gaussian") for _ in range(2))
    assert first.tobytes() == second.tobytes()
