"""Buffers of a streamed window on the GPU, and the fallback without memory for them."""

import shutil
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gpu_on_cpu.memory import Buffer
from support.gpu_on_cpu.streams import Gpu, Stream
from support.numerics_models import FunctionGenerator, through, translated
from support.streamed_window import (
    FakeGenerator,
    KeepingGenerator,
    bent,
    edges,
    replace_buffers,
    streamed,
)
from support.tiers import examples

from cuda_cyclegan.engine.compiler.kernels.sliding_window import ring_layout
from cuda_cyclegan.engine.cuda import in_flight, streaming
from cuda_cyclegan.engine.cuda.patches import streamed_window
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import PatchGrid, ring_rows
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import cover

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_buffers(monkeypatch)


@settings(deadline=None, max_examples=examples(30))
@given(
    st.lists(st.tuples(edges, st.sampled_from(get_args(Blend))), min_size=2, max_size=5),
    st.integers(0, 10**6),
)
def test_arrays_of_all_sizes_follow_each_other(arrays: list[Any], seed: int) -> None:
    patch, gpu = (8, 6, 6), Gpu.in_random_order(seed)
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(in_flight, "Stream", gpu.stream)
        generator = KeepingGenerator(bent)
        generator.on(gpu, patch, 2, None)
        with streamed_window.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            for extents, blend in arrays:
                array = np.random.default_rng(seed).uniform(-1, 1, (1, *extents))
                array = array.astype(np.float32)
                window = SlidingWindow(cover(extents, patch, 0.5), blend, "minimum")
                here = translated(array, FunctionGenerator(bent), window.layout, blend, "minimum")
                there = through(array, generator, window)
                np.testing.assert_array_equal(there, here)


def test_weights_stay_on_the_gpu_for_studies_that_are_alike() -> None:
    gpu, sent, upload = Gpu.in_random_order(0), list[int](), Stream.upload_now

    def counted(stream: Stream, target: int, content: bytes) -> None:
        sent.append(len(content))
        upload(stream, target, content)

    window = SlidingWindow(cover((20, 18, 12), (8, 8, 8), 0.25), "gaussian", "edge")
    other = SlidingWindow(cover((30, 18, 12), (8, 8, 8), 0.25), "constant", "edge")
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(in_flight, "Stream", gpu.stream)
        fake.setattr(Stream, "upload_now", counted)
        generator = KeepingGenerator(bent)
        generator.on(gpu, (8, 8, 8), 1, None)
        with streamed_window.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            for following in (window, window, other, window):
                array = np.ones((1, *following.layout.extents), np.float32)
                through(array, generator, following)
    assert sent.count(8 * 8 * 8 * 4) == 3


def test_without_space_for_the_least_the_patches_are_handed_over_one_by_one() -> None:
    array = np.ones((1, 20, 6, 6), np.float32)
    window = SlidingWindow(cover((20, 6, 6), (8, 6, 6), 0.5), "gaussian", "edge")
    here = translated(array, FunctionGenerator(bent), window.layout)
    np.testing.assert_array_equal(streamed(array, window, bent, most=-1), here)


def test_why_the_host_had_to_blend_is_reported() -> None:
    extents, patch = (20, 6, 6), (8, 6, 6)
    window = SlidingWindow(cover(extents, patch, 0.5), "gaussian", "edge")
    array = np.ones((1, *extents), np.float32)
    for most in (None, 0, -1):
        gpu = Gpu.in_random_order(0)
        with pytest.MonkeyPatch.context() as fake:
            fake.setattr(in_flight, "Stream", gpu.stream)
            generator = FakeGenerator(bent).on(gpu, patch, 1, most)
            ends = Stored(array), Stored(np.empty_like(array))
            notes = translate_array(*ends, generator, window, Stopwatch(), lambda _: None)
        reported = [note for note in notes if "blended on the host" in note and "are left" in note]
        assert len(notes) == len(reported) == (most == -1)


def test_without_memory_to_pin_the_host_blends_and_later_arrays_have_what_they_need() -> None:
    """The second array needs larger slots, of which only some are there; the third small ones."""
    patch, pinned, most = (8, 6, 6), list[Buffer](), iter([9, 9, 9, 9, 9, 9, 0, 9, 9, 9, 9])

    class Scarce(Buffer):
        def __init__(self, size: int) -> None:
            if not next(most):
                raise DeviceMemoryError("The host has no memory left that can be pinned.")
            super().__init__(size)

        def __enter__(self) -> "Buffer":
            pinned.append(self)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            pinned.remove(self)
            super().__exit__(*error)

    gpu = Gpu.in_random_order(0)
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(in_flight, "Stream", gpu.stream)
        fake.setattr(streaming, "PinnedBuffer", Scarce)
        generator = KeepingGenerator(bent)
        generator.on(gpu, patch, 1, None)
        with streamed_window.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            reported: list[int] = []
            for extents in ((20, 6, 6), (20, 16, 16), (20, 6, 6)):
                array = np.random.default_rng(0).uniform(-1, 1, (1, *extents)).astype(np.float32)
                window = SlidingWindow(cover(extents, patch, 0.5), "gaussian", "edge")
                made = np.empty_like(array)
                ends, patches = (Stored(array), Stored(made)), list[int]()
                notes = translate_array(*ends, generator, window, Stopwatch(), patches.append)
                reported.append(len(notes))
                assert sum(patches) == len(window.layout)
                here = translated(array, FunctionGenerator(bent), window.layout)
                np.testing.assert_array_equal(made, here)
                assert len(pinned) == (0 if notes else 4)
    assert reported == [0, 1, 0]
    assert pinned == []


def test_memory_does_not_grow_with_the_depth() -> None:
    sizes = [
        ring_layout(window, ring_rows(window, spare=True), (1, 1)).bytes
        for depth in (400, 4000)
        for window in [
            PatchGrid(
                (depth, 64, 64),
                (32, 32, 32),
                cover((depth, 64, 64), (32, 32, 32), 0.25).origins,
                (0, 1, 2),
            )
        ]
    ]
    assert sizes[1] < 1.05 * sizes[0]  # the patches are spread by a row more or less
