"""The order of copies, runs and blends: right whichever way the card's queues are run."""

import shutil
import threading
from dataclasses import dataclass, replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support import cuda_on_cpu
from support.fake_card import Card, FakeBuffer, FakeEvent, FakeKernels, FakeProgram, FakeStream
from support.numerics_models import FunctionGenerator, through, translated

from cuda_cyclegan.engine.compiler.launches.launch import Launch
from cuda_cyclegan.engine.compiler.ring_buffers import laid_out
from cuda_cyclegan.engine.cuda import streamed_window, window_buffers
from cuda_cyclegan.engine.errors import DeviceMemoryError, PrecisionOverflowError
from cuda_cyclegan.engine.model.card import SmallVolumePadding
from cuda_cyclegan.engine.scaling import VOXEL_TYPES, Scaling, Stored
from cuda_cyclegan.engine.sliding_window import PatchGrid, ring_rows
from cuda_cyclegan.pipelines.settings import Blend
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.blending import patch_weights
from cuda_cyclegan.pipelines.study.sliding_window import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.tiling import tile

edges = st.tuples(st.integers(1, 23), st.integers(1, 9), st.integers(1, 9))
IN_NUMPY = FakeKernels()
patches = st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))


class FakeGenerator(FunctionGenerator):
    """A generator whose card is a fake; least: whether it has memory for the least only."""

    def on(
        self, card: Card, patch: Any, batch: int, most: int | None, kernels: Any = IN_NUMPY
    ) -> "FakeGenerator":
        stream = card.stream()
        program = FakeProgram(stream, (batch, 1, *patch), self.function)
        made: Any = streamed_window.Compiled(
            program,  # type: ignore[arg-type]
            kernels,
            stream,  # type: ignore[arg-type]
            threading.Lock(),
            batch,
            (1, 1),
        )
        object.__setattr__(self, "compiled", made)
        object.__setattr__(self, "most", most)
        return self

    def run_window(self, source: Any, window: Any, target: Any, on_tiles: Any) -> Any:
        size = [
            laid_out(window, ring_rows(window, spare=spare), (1, 1))[1] for spare in (False, True)
        ]
        most = {None: size[1], 0: size[0], -1: size[0] - 1}[self.most]  # type: ignore[attr-defined]
        with window_buffers.open_window_buffers(self.compiled) as opened:  # type: ignore[attr-defined]
            return opened.run(source, window, target, opened.place(window, most), on_tiles)


class KeepingGenerator(FakeGenerator):
    """One that keeps its window buffers, as the real one does."""

    def keep(self, opened: window_buffers.WindowBuffers) -> "KeepingGenerator":
        object.__setattr__(self, "opened", opened)
        return self

    def run_window(self, source: Any, window: Any, target: Any, on_tiles: Any) -> Any:
        kept: window_buffers.WindowBuffers = self.opened  # type: ignore[attr-defined]
        return kept.run(source, window, target, kept.place(window, 1 << 40), on_tiles)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_window, "CudaEvent", FakeEvent)
    monkeypatch.setattr(window_buffers, "DeviceBuffer", FakeBuffer)
    monkeypatch.setattr(window_buffers, "PinnedBuffer", FakeBuffer)
    for module in (streamed_window, window_buffers):
        monkeypatch.setattr(module, "SLOT_BYTES", 256)


@dataclass(frozen=True)
class KernelsOnCpu:
    """The kernels themselves, thread by thread; a folder is where they are compiled."""

    folder: Path

    def launch(self, stream: FakeStream, launch: Launch) -> None:
        kept = replace(launch, arguments=type(launch.arguments).from_buffer_copy(launch.arguments))
        stream.queue.append(lambda: cuda_on_cpu.run(kept, "fp32", self.folder, kept.grid))


def streamed(array: Any, window: SlidingWindow, function: Any, **choices: Any) -> Any:
    made = np.empty_like(array)
    run_window_into(Stored(array), Stored(made), window, function, **choices)
    return made


def run_window_into(
    source: Stored,
    target: Stored,
    window: SlidingWindow,
    function: Any,
    *,
    seed: int = 0,
    batch: int = 1,
    most: int | None = None,
    kernels: Any = IN_NUMPY,
) -> None:
    card = Card(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_buffers, "Stream", card.stream)
        generator = FakeGenerator(function).on(card, window.tiling.patch, batch, most, kernels)
        tiles: list[int] = []
        translate_array(source, target, generator, window, Stopwatch(), tiles.append)
    assert sum(tiles) == len(window.tiling)


def bent(given_patches: Any) -> Any:
    """Something that depends on the place in the patch, so that no tile is like its neighbour.

    And on other voxels, so that what fills a patch beyond the array counts.
    """
    ramp = np.linspace(0.5, 1.5, given_patches[0].size, dtype=np.float32)
    turned = np.roll(given_patches, (1, 2, 1), axis=(2, 3, 4))
    return np.sin(given_patches * 3) * ramp.reshape(given_patches[0].shape) + turned / 4


@settings(deadline=None, max_examples=60)
@given(
    edges,
    patches,
    st.floats(0, 0.8),
    st.sampled_from(get_args(Blend)),
    st.sampled_from(get_args(SmallVolumePadding)),
    st.integers(1, 3),
    st.sampled_from([None, 0]),
    st.integers(0, 10**6),
)
def test_a_window_gives_what_tiles_one_by_one_give(
    extents: Any,
    patch: Any,
    overlap: float,
    blend: Blend,
    padding: SmallVolumePadding,
    batch: int,
    most: int | None,
    seed: int,
) -> None:
    array = np.random.default_rng(seed).uniform(-1, 1, (1, *extents)).astype(np.float32)
    window = SlidingWindow(tile(extents, patch, overlap), blend, padding)
    here = translated(array, FunctionGenerator(bent), window.tiling, blend, padding)
    there = streamed(array, window, bent, seed=seed, batch=batch, most=most)
    np.testing.assert_array_equal(there, here)


@settings(deadline=None, max_examples=60)
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
    """Tiles come in another order then, which changes the rounding of their mean, no more."""
    lying = np.random.default_rng(seed).uniform(-1, 1, [extents[axis] for axis in axes])

    def seen(memory: Any) -> Any:
        d, h, w = ways
        return memory.transpose(np.argsort(axes))[None, ::d, ::h, ::w]

    array, made = seen(lying.astype(np.float32)), seen(np.empty(lying.shape, np.float32))
    window = SlidingWindow(tile(extents, patch, 0.4), "gaussian", padding)
    here = translated(array, FunctionGenerator(bent), window.tiling, "gaussian", padding)
    run_window_into(Stored(array), Stored(made), window, bent, seed=seed)
    np.testing.assert_allclose(made, here, rtol=0, atol=2e-6)


@pytest.mark.parametrize("blend", get_args(Blend))
def test_weights_are_the_same_from_either_end(blend: Blend) -> None:
    """So that an array that lies the other way round needs no others."""
    weights = patch_weights(tile((40, 41, 30), (16, 15, 11), 0.3), blend)
    np.testing.assert_array_equal(weights, weights[::-1, ::-1, ::-1])


@settings(deadline=None, max_examples=60)
@given(
    edges,
    patches,
    st.sampled_from(VOXEL_TYPES),
    st.sampled_from(VOXEL_TYPES),
    st.sampled_from(get_args(SmallVolumePadding)),
    st.sampled_from([25.0, -25.0]),
    st.booleans(),
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
    batch: int,
    most: int | None,
    seed: int,
) -> None:
    voxels = np.random.default_rng(seed).uniform(0, 120, (1, *extents)).astype(kind)
    source = Stored(voxels, Scaling(60, radius, clips))
    here, there = (Stored(np.empty_like(voxels, result), Scaling(40, 90)) for _ in range(2))
    window = SlidingWindow(tile(extents, patch, 0.4), "gaussian", padding)
    generator = FunctionGenerator(bent)
    translate_array(source, here, generator, window, Stopwatch(), lambda _: None)
    run_window_into(source, there, window, bent, seed=seed, batch=batch, most=most)
    np.testing.assert_array_equal(there.values, here.values)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("padding", get_args(SmallVolumePadding))
@pytest.mark.parametrize(("kind", "result"), [*pairwise(VOXEL_TYPES), ("uint16", "float32")])
def test_the_kernels_of_a_window_do_as_the_host_does(
    tmp_path_factory: pytest.TempPathFactory, kind: str, result: str, padding: SmallVolumePadding
) -> None:
    """Along axes in another order and against them, wider than the array, and out of range."""
    extents, patch = (9, 5, 3), (5, 4, 4)
    lying = np.random.default_rng(0).uniform(0, 120, (3, 9, 5)).astype(kind)
    inward = Scaling(60.3, -45.7, clips=padding != "edge")
    source = Stored(lying.transpose(1, 2, 0)[None, :, ::-1, ::-1], inward)
    here, there = (
        Stored(np.empty_like(lying, result).transpose(1, 2, 0)[None, :, ::-1, ::-1], outward)
        for outward in [Scaling(40.1, 90.3)] * 2
    )
    window = SlidingWindow(tile(extents, patch, 0.3), "gaussian", padding)
    folder = tmp_path_factory.getbasetemp() / "sliding_window"
    folder.mkdir(exist_ok=True)
    run_window_into(source, here, window, bent)
    run_window_into(source, there, window, bent, kernels=KernelsOnCpu(folder))
    np.testing.assert_array_equal(there.values, here.values)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize("result", ["int8", "float32"])
@pytest.mark.parametrize("huge", ["blended", "stored"])
def test_what_overflows_after_the_network_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, huge: str, result: str
) -> None:
    """Patches may be finite where their mean is not, or where the voxel type is too small."""
    signs = cycle([3e38, -3e38])

    def function(given_patches: Any) -> Any:
        return np.full_like(given_patches, next(signs) if huge == "blended" else 2)

    array = np.ones((1, 12, 4, 4), np.float32)
    target = Stored(np.empty_like(array, result), Scaling(0, 1 if huge == "blended" else 3e38))
    window = SlidingWindow(tile((12, 4, 4), (5, 4, 4), 0.5), "gaussian", "edge")
    folder = tmp_path_factory.getbasetemp() / "sliding_window"
    folder.mkdir(exist_ok=True)

    def run() -> None:
        run_window_into(Stored(array), target, window, function, kernels=KernelsOnCpu(folder))

    if huge == "stored" and result == "int8":  # clipped, as ever
        run()
        assert (target.values == 127).all()
        return
    with pytest.raises(PrecisionOverflowError):
        run()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(edges, st.sampled_from(get_args(Blend))), min_size=2, max_size=5),
    st.integers(0, 10**6),
)
def test_arrays_of_all_sizes_follow_each_other(arrays: list[Any], seed: int) -> None:
    patch, card = (8, 6, 6), Card(seed)
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(window_buffers, "Stream", card.stream)
        generator = KeepingGenerator(bent)
        generator.on(card, patch, 2, None)
        with window_buffers.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            for extents, blend in arrays:
                array = np.random.default_rng(seed).uniform(-1, 1, (1, *extents))
                array = array.astype(np.float32)
                window = SlidingWindow(tile(extents, patch, 0.5), blend, "minimum")
                here = translated(array, FunctionGenerator(bent), window.tiling, blend, "minimum")
                there = through(array, generator, window)
                np.testing.assert_array_equal(there, here)


def test_weights_stay_on_the_card_for_studies_that_are_alike() -> None:
    card, sent, upload = Card(0), list[int](), FakeStream.upload_now

    def counted(stream: FakeStream, target: int, content: bytes) -> None:
        sent.append(len(content))
        upload(stream, target, content)

    window = SlidingWindow(tile((20, 18, 12), (8, 8, 8), 0.25), "gaussian", "edge")
    other = SlidingWindow(tile((30, 18, 12), (8, 8, 8), 0.25), "constant", "edge")
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(window_buffers, "Stream", card.stream)
        fake.setattr(FakeStream, "upload_now", counted)
        generator = KeepingGenerator(bent)
        generator.on(card, (8, 8, 8), 1, None)
        with window_buffers.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            for following in (window, window, other, window):
                array = np.ones((1, *following.tiling.extents), np.float32)
                through(array, generator, following)
    assert sent.count(8 * 8 * 8 * 4) == 3


@pytest.mark.parametrize(
    ("batch", "most", "runs"),
    [(1, None, 18), (2, None, 9), (4, None, 5), (8, None, 3), (4, 0, 6), (8, 0, 3)],
)
def test_only_the_last_run_of_an_array_has_patches_to_spare(
    batch: int, most: int | None, runs: int
) -> None:
    """Three rows of six tiles; without spare rows in the rings, each row ends with a run."""
    extents, patch = (20, 18, 12), (8, 8, 8)
    array = np.random.default_rng(0).uniform(-1, 1, (1, *extents)).astype(np.float32)
    window = SlidingWindow(tile(extents, patch, 0.25), "gaussian", "edge")
    assert [len(row) for row in window.tiling.origins] == [3, 3, 2]
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
    windows = [SlidingWindow(tile(e, (4, 6, 6), 0), "gaussian", "edge") for e in extents]
    arrays = [np.full((1, *e), value, np.float32) for e, value in zip(extents, (7, 1), strict=True)]
    card = Card(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_buffers, "Stream", card.stream)
        generator = FakeGenerator(overflowing).on(card, (4, 6, 6), 3, None)
        with pytest.raises(PrecisionOverflowError):
            through(arrays[0], generator, windows[0])
        made = through(arrays[1], generator, windows[1])
    np.testing.assert_allclose(made, arrays[1])


def test_without_room_for_the_least_the_tiles_are_handed_over_one_by_one() -> None:
    array = np.ones((1, 20, 6, 6), np.float32)
    window = SlidingWindow(tile((20, 6, 6), (8, 6, 6), 0.5), "gaussian", "edge")
    here = translated(array, FunctionGenerator(bent), window.tiling)
    np.testing.assert_array_equal(streamed(array, window, bent, most=-1), here)


def test_why_the_host_had_to_blend_is_told() -> None:
    extents, patch = (20, 6, 6), (8, 6, 6)
    window = SlidingWindow(tile(extents, patch, 0.5), "gaussian", "edge")
    array = np.ones((1, *extents), np.float32)
    for most in (None, 0, -1):
        card = Card(0)
        with pytest.MonkeyPatch.context() as fake:
            fake.setattr(window_buffers, "Stream", card.stream)
            generator = FakeGenerator(bent).on(card, patch, 1, most)
            ends = Stored(array), Stored(np.empty_like(array))
            notes = translate_array(*ends, generator, window, Stopwatch(), lambda _: None)
        told = [note for note in notes if "blended on the host" in note and "are left" in note]
        assert len(notes) == len(told) == (most == -1)


def test_without_memory_to_pin_the_host_blends_and_later_arrays_have_what_they_need() -> None:
    """The second array needs larger slots, of which only some are there; the third small ones."""
    patch, pinned, most = (8, 6, 6), list[FakeBuffer](), iter([9, 9, 9, 9, 9, 9, 0, 9, 9, 9, 9])

    class Scarce(FakeBuffer):
        def __init__(self, size: int) -> None:
            if not next(most):
                raise DeviceMemoryError("The host has no memory left that can be pinned.")
            super().__init__(size)

        def __enter__(self) -> "FakeBuffer":
            pinned.append(self)
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            pinned.remove(self)
            super().__exit__(*error)

    card = Card(0)
    with pytest.MonkeyPatch.context() as fake:
        fake.setattr(window_buffers, "Stream", card.stream)
        fake.setattr(window_buffers, "PinnedBuffer", Scarce)
        generator = KeepingGenerator(bent)
        generator.on(card, patch, 1, None)
        with window_buffers.open_window_buffers(generator.compiled) as opened:  # type: ignore[attr-defined]
            generator.keep(opened)
            told: list[int] = []
            for extents in ((20, 6, 6), (20, 16, 16), (20, 6, 6)):
                array = np.random.default_rng(0).uniform(-1, 1, (1, *extents)).astype(np.float32)
                window = SlidingWindow(tile(extents, patch, 0.5), "gaussian", "edge")
                made = np.empty_like(array)
                ends, tiles = (Stored(array), Stored(made)), list[int]()
                notes = translate_array(*ends, generator, window, Stopwatch(), tiles.append)
                told.append(len(notes))
                assert sum(tiles) == len(window.tiling)
                here = translated(array, FunctionGenerator(bent), window.tiling)
                np.testing.assert_array_equal(made, here)
                assert len(pinned) == (0 if notes else 4)
    assert told == [0, 1, 0]
    assert pinned == []


def test_memory_does_not_grow_with_the_depth() -> None:
    sizes = [
        laid_out(window, ring_rows(window, spare=True), (1, 1))[1]
        for depth in (400, 4000)
        for window in [
            PatchGrid(
                (depth, 64, 64),
                (32, 32, 32),
                tile((depth, 64, 64), (32, 32, 32), 0.25).origins,
                (0, 1, 2),
            )
        ]
    ]
    assert sizes[1] < 1.05 * sizes[0]  # the tiles are spread by a row more or less


def test_one_overflow_among_many_tiles_is_noticed() -> None:
    array = np.zeros((1, 40, 6, 6), np.float32)
    array[0, 13] = 7
    window = SlidingWindow(tile((40, 6, 6), (4, 6, 6), 0), "gaussian", "edge")

    def overflowing(given_patches: Any) -> Any:
        return np.where(given_patches > 5, np.inf, given_patches)

    with pytest.raises(PrecisionOverflowError):
        streamed(array, window, overflowing)
