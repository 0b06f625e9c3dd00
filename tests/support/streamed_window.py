"""Streamed sliding windows over the streams of a GPU on the CPU."""

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.gpu_on_cpu.kernels import Kernels
from support.gpu_on_cpu.memory import Buffer, array_at
from support.gpu_on_cpu.streams import Event, Gpu, Stream
from support.numerics_models import FunctionGenerator

from cuda_cyclegan.engine.compiler.kernels.sliding_window import ring_layout
from cuda_cyclegan.engine.cuda import in_flight, streaming
from cuda_cyclegan.engine.cuda.patches import streamed_window
from cuda_cyclegan.engine.patch_grid import ring_rows
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array

edges = st.tuples(st.integers(1, 23), st.integers(1, 9), st.integers(1, 9))
patches = st.tuples(st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))


class FakeProgram:
    """Program that translates data at `patches` by a function of [N, C, D, H, W], in one run."""

    def __init__(
        self, stream: Stream, shape: tuple[int, ...], function: Any, channels: int = 1
    ) -> None:
        """channels: of what comes out."""
        self._stream, self._shape, self._function = stream, shape, function
        self._made = shape[0], channels, *shape[2:]
        sizes = [int(np.prod(each)) * 4 for each in (shape, self._made)]
        self._buffers = [*map(Buffer, sizes), Buffer(4)]
        self.patches, self.translated, self.overflow = (b.address for b in self._buffers)
        self._buffers[0].array(shape)[:] = 0
        ctypes.c_int.from_address(self.overflow).value = 0

    def launch(self) -> None:
        self._stream.submit(self._run)

    def _run(self) -> None:
        made = self._function(array_at(self.patches, "f4", *self._shape).copy())
        array_at(self.translated, "f4", *self._made)[:] = made
        ctypes.c_int.from_address(self.overflow).value = int(not np.isfinite(made).all())


class FakeGenerator(FunctionGenerator):
    """A generator on a GPU on the CPU."""

    def on(self, gpu: Gpu, patch: Any, batch: int, most: int | None) -> "FakeGenerator":
        stream, channels = gpu.stream(), (self.graph.in_channels, self.graph.out_channels)
        shape = (batch, channels[0], *patch)
        program = FakeProgram(stream, shape, self.function, channels[1])
        made: Any = streamed_window.SharedProgram(
            program,  # type: ignore[arg-type]
            Kernels("fp32"),  # type: ignore[arg-type]
            stream,  # type: ignore[arg-type]
            threading.Lock(),
            batch,
            channels,
        )
        object.__setattr__(self, "compiled", made)
        object.__setattr__(self, "most", most)
        return self

    def run_window(self, source: Any, window: Any, target: Any, on_patches: Any) -> Any:
        channels = self.graph.in_channels, self.graph.out_channels
        size = [
            ring_layout(window, ring_rows(window, spare=spare), channels).bytes
            for spare in (False, True)
        ]
        most = {None: size[1], 0: size[0], -1: size[0] - 1}[self.most]  # type: ignore[attr-defined]
        with streamed_window.open_window_buffers(self.compiled) as opened:  # type: ignore[attr-defined]
            return opened.run(source, window, target, opened.allocate(window, most), on_patches)


class KeepingGenerator(FakeGenerator):
    """One that keeps its window buffers, as the real one does."""

    def keep(self, opened: streamed_window.WindowBuffers) -> "KeepingGenerator":
        object.__setattr__(self, "opened", opened)
        return self

    def run_window(self, source: Any, window: Any, target: Any, on_patches: Any) -> Any:
        kept: streamed_window.WindowBuffers = self.opened  # type: ignore[attr-defined]
        return kept.run(source, window, target, kept.allocate(window, 1 << 40), on_patches)


def replace_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events and buffers of the GPU by fakes, and slots so small that arrays need several."""
    monkeypatch.setattr(streaming, "CudaEvent", Event)
    monkeypatch.setattr(streaming, "PinnedBuffer", Buffer)
    monkeypatch.setattr(in_flight, "DeviceBuffer", Buffer)
    monkeypatch.setattr(streamed_window, "SLOT_BYTES", 256)


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
    **graph: Any,
) -> None:
    """graph: of other channels than one in and out."""
    gpu = Gpu.in_random_order(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "Stream", gpu.stream)
        generator = FakeGenerator(function, **graph)
        generator.on(gpu, window.layout.patch, batch, most)
        patches: list[int] = []
        translate_array(source, target, generator, window, Stopwatch(), patches.append)
    assert sum(patches) == len(window.layout)


def bent(given_patches: Any) -> Any:
    """Return values that depend on the place in the patch, so that no patch is like its neighbour.

    And on other voxels, so that what fills a patch beyond the array counts.
    """
    ramp = np.linspace(0.5, 1.5, given_patches[0].size, dtype=np.float32)
    turned = np.roll(given_patches, (1, 2, 1), axis=(2, 3, 4))
    return np.sin(given_patches * 3) * ramp.reshape(given_patches[0].shape) + turned / 4
