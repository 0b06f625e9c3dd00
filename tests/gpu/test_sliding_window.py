"""Cutting and blending on the GPU gives what they give on the host."""

import threading
from dataclasses import replace
from itertools import permutations
from typing import get_args

import numpy as np
import pytest
from support.gpu_networks import random_network
from support.numerics_models import through

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.model.reference import tolerance
from cuda_cyclegan.engine.model.tiling import OWN
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.scaling import VOXEL_TYPES, Scaling, Stored
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import cover

PATCH = (24, 20, 28)
MIB = 1 << 20


class OneByOne:
    """A generator of which only patches are asked."""

    def __init__(self, generator):
        self._generator = generator
        self.graph = generator.graph
        self.device = generator.device

    def __call__(self, patches):
        return self._generator(patches)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Generators by batch, compiled once."""
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    cache = tmp_path_factory.mktemp("cache")
    network = random_network(build(ResNetSpec(1, 1, 8, 1)), 0)
    options = CudaOptions("fp16", cache=cache)
    with (
        open_cuda_generator(network, options, PATCH, 1) as first,
        open_cuda_generator(network, options, PATCH, 2) as second,
    ):
        yield {1: first, 2: second}


def translated(generator, array, window):
    timer, patches = Stopwatch(), []
    result = through(array, generator, window, patches.append, timer)
    return result, sum(patches), timer


def array_of(extents, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (1, *extents)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("blend", ["gaussian", "linear", "constant"])
@pytest.mark.parametrize("extents", [PATCH, (100, 41, 60), (25, 20, 90), (170, 20, 28)])
def test_volumes(opened, extents, blend, batch):
    array = array_of(extents)
    window = SlidingWindow(cover(extents, PATCH, 0.3), blend, "edge")
    there, patches, timer = translated(opened[batch], array, window)
    here, _, _ = translated(OneByOne(opened[batch]), array, window)
    assert patches == len(window.layout)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()
    assert set(timer.seconds) == {"copy", "blend", "infer"}


@pytest.mark.parametrize("padding", ["edge", 0.25])
@pytest.mark.parametrize("blend", get_args(Blend))
@pytest.mark.parametrize("tiling", [*OWN.values(), replace(OWN["torchio"], border=True)])
def test_tilings_of_other_codes(opened, tiling, blend, padding):
    lying = array_of((70, 41, 25))
    array = lying.transpose(0, 2, 3, 1)[:, :, ::-1]
    layout = cover(array.shape[1:], PATCH, 0.4, tiling=tiling)
    window = SlidingWindow(layout, blend, padding)
    there, _, _ = translated(opened[2], array, window)
    here, _, _ = translated(OneByOne(opened[2]), array, window)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()


@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_arrays_of_any_order_in_memory(opened, axes):
    extents = (100, 41, 60)
    lying = np.ascontiguousarray(array_of(extents).transpose(0, *(1 + axis for axis in axes)))
    array = lying.transpose(0, *(1 + axes.index(axis) for axis in range(3)))
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    there, _, _ = translated(opened[2], array, window)
    here, _, _ = translated(OneByOne(opened[2]), array, window)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()


@pytest.mark.parametrize("flips", [(1, 1, -1), (-1, 1, 1), (-1, -1, -1)])
@pytest.mark.parametrize("kind", VOXEL_TYPES)
@pytest.mark.parametrize("lowest", [-1.0, 0.0])
def test_voxels_go_in_and_come_out_as_they_are_stored(opened, lowest, kind, flips):
    d, h, w = flips
    lying = np.random.default_rng(4).uniform(0, 120, (60, 41, 100)).astype(kind)
    there, here = (np.full_like(lying, 77).transpose()[None, ::d, ::h, ::w] for _ in range(2))
    inward = Scaling(60, 55, clips=True, lowest=lowest)
    source = Stored(lying.transpose()[None, ::d, ::h, ::w], inward)
    outward, timer = Scaling(50, 60), Stopwatch()
    window = SlidingWindow(cover((100, 41, 60), PATCH, 0.3), "gaussian", "edge")
    for target, generator in ((there, opened[2]), (here, OneByOne(opened[2]))):
        into = Stored(target, outward)
        translate_array(source, into, generator, window, timer, lambda _: None)
    difference = np.abs(there.astype(np.float64) - here)
    if kind == "float32":
        assert difference.max() <= 4e-6 * np.abs(here).max()
    else:  # a mean that rounds differently may lie on the other side of a half
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-4
    assert len(np.unique(there)) > 20


@pytest.mark.parametrize("padding", ["edge", "reflect", "minimum"])
@pytest.mark.parametrize("extents", [(5, 41, 60), (1, 1, 1), (60, 3, 90), (23, 19, 2)])
def test_volumes_smaller_than_a_patch(opened, extents, padding):
    array = array_of(extents)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", padding)
    there, _, _ = translated(opened[1], array, window)
    here, _, _ = translated(OneByOne(opened[1]), array, window)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()


def test_a_ring_without_spare_rows_and_no_space_at_all(opened):
    from cuda_cyclegan.engine.compiler.kernels.sliding_window import ring_layout
    from cuda_cyclegan.engine.patch_grid import PatchGrid, PatchWindow, ring_rows

    generator, extents = opened[1], (200, 40, 56)
    array = array_of(extents)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    roomy, _, _ = translated(generator, array, window)
    plan = PatchGrid(extents, PATCH, window.layout.origins, (0, 1, 2))
    tight = ring_layout(plan, ring_rows(plan, spare=False), (1, 1)).bytes
    for most, fits in ((tight, True), (tight - 1, False)):
        target = np.empty_like(array)
        with generator._window_buffers() as buffers:
            fields = {name: getattr(plan, name) for name in ("extents", "patch", "origins", "axes")}
            patches = PatchWindow(**fields, weights=_weights(window), padding="edge")
            if not fits:
                with pytest.raises(DeviceMemoryError):
                    buffers.allocate(patches, most)
                continue
            buffers.run(
                Stored(array),
                patches,
                Stored(target),
                buffers.allocate(patches, most),
                lambda _: None,
            )
        np.testing.assert_array_equal(target, roomy)


def test_without_space_on_the_gpu_the_host_blends_and_says_why(opened, monkeypatch):
    from cuda_cyclegan.engine.compiler.program.fitting import MemoryBudget

    generator, extents = opened[1], (60, 40, 56)
    array = array_of(extents)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    there, _, _ = translated(generator, array, window)
    monkeypatch.setattr(generator, "_budget", MemoryBudget(generator.memory.bytes))
    made = np.empty_like(array)
    ends = Stored(array), Stored(made)
    [note] = translate_array(*ends, generator, window, Stopwatch(), lambda _: None)
    assert "blended on the host" in note
    assert "MiB of GPU memory" in note
    assert np.abs(there - made).max() <= 4e-6 * np.abs(made).max()


def _weights(window):
    from cuda_cyclegan.pipelines.study.patches import patch_weights

    return patch_weights(window.layout, window.blend)


def test_threads_run_at_the_same_time(opened):
    extents = (100, 60, 60)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    arrays = [array_of(extents, seed) for seed in range(4)]
    alone = [translated(opened[1], array, window)[0] for array in arrays]
    beside = [None] * 4

    def run(index):
        beside[index] = translated(opened[1], arrays[index], window)[0]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_interrupted_window_leaves_the_generator_usable(opened):
    class StopError(BaseException):
        pass

    def stop(_):
        raise StopError

    extents = (100, 60, 60)
    array = array_of(extents)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    before, _, _ = translated(opened[1], array, window)
    with pytest.raises(StopError):
        through(array, opened[1], window, stop)
    after, _, _ = translated(opened[1], array, window)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize(("into", "out"), [(2, 1), (1, 2), (3, 2)])
def test_several_channels(tmp_path_factory, into, out, precision):
    """Streamed they are what patches one by one give, and what the CPU gives."""
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator

    extents = (100, 41, 60)
    array = np.random.default_rng(5).uniform(-1, 1, (into, *extents)).astype(np.float32)
    network = random_network(build(ResNetSpec(into, out, 8, 1)), 0)
    window = SlidingWindow(cover(extents, PATCH, 0.3), "gaussian", "edge")
    options = CudaOptions(precision, cache=tmp_path_factory.mktemp("channels"))
    with open_cuda_generator(network, options, PATCH, 2) as generator:
        there, patches, _ = translated(generator, array, window)
        here, _, _ = translated(OneByOne(generator), array, window)
    assert there.shape == (out, *extents)
    assert patches == len(window.layout)
    assert np.abs(there - here).max() <= 4e-6 * np.abs(here).max()
    with open_cpu_generator(network) as reference:
        wanted, _, _ = translated(reference, array, window)
    error = np.linalg.norm(there - wanted) / np.linalg.norm(wanted)
    assert error <= tolerance(precision)
