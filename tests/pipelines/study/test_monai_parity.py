"""Parity with MONAI's sliding_window_inference: the same volume to 1e-5 for equal options.

MONAI steps by a fixed interval and pulls the last patch back into the volume; `patch` spreads its
origins evenly. Both grids are one where the interval divides what the patch leaves over. Elsewhere
cutting and blending are held against MONAI on MONAI's own origins.
"""

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lazy_modules import inferers, torch
from support.numerics_models import FunctionGenerator, small_resnet, translated

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import SmallVolumePadding
from cuda_cyclegan.pipelines.study.patches import Origins, PatchLayout, cover

edges = st.integers(1, 9)
patches = st.tuples(edges, edges, edges)
gaps = st.tuples(*[st.integers(-3, 3)] * 3)
overlaps = st.sampled_from([0.0, 0.25, 0.5, 0.625, 0.8])
blends: st.SearchStrategy[Blend] = st.sampled_from(["gaussian", "constant"])


def placed(patches: FloatArray) -> FloatArray:
    """A result that depends on a voxel's place in the patch and on the patch as a whole."""
    place = np.linspace(-1, 1, patches[0].size, dtype=np.float32).reshape(patches[0].shape)
    return np.tanh(2 * patches * place + patches.mean())


def array_of(extents: Triple) -> FloatArray:
    return np.random.default_rng(4).uniform(-1, 1, (1, *extents)).astype(np.float32)


def monai_translates(
    array: FloatArray,
    generator: Callable[[FloatArray], FloatArray],
    patch: Triple,
    overlap: float,
    blend: Blend,
    padding: str = "replicate",
) -> FloatArray:
    def predict(patches: Any) -> Any:
        return torch.from_numpy(generator(patches.contiguous().numpy()))

    batch = torch.from_numpy(array[None])
    result = inferers.sliding_window_inference(
        batch,
        patch,
        1,
        predict,
        overlap=overlap,
        mode=blend,
        sigma_scale=0.125,
        padding_mode=padding,
    )
    return result.numpy()[0]


def interval(patch: int, overlap: float) -> int:
    return max(int(patch * (1 - overlap)), 1)


def monai_origins(extent: int, patch: int, overlap: float) -> Origins:
    step = interval(patch, overlap)
    count = ceil(max(extent - patch, 0) / step) + 1
    return tuple(max(min(i * step, extent - patch), 0) for i in range(count))


@settings(deadline=None)
@given(patches, gaps, overlaps, blends)
def test_volumes_whose_regular_grid_fits(
    patch: Triple, gaps: Triple, overlap: float, blend: Blend
) -> None:
    d, h, w = (
        max(p + (gap * interval(p, overlap) if gap > 0 else gap), 1)
        for p, gap in zip(patch, gaps, strict=True)
    )
    array = array_of((d, h, w))
    ours = translated(array, FunctionGenerator(placed), cover((d, h, w), patch, overlap), blend)
    theirs = monai_translates(array, placed, patch, overlap, blend)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
@settings(deadline=None)
@given(st.tuples(*[st.integers(1, 16)] * 3), patches, overlaps, blends)
def test_any_volume_on_monais_own_grid(
    extents: Triple, patch: Triple, overlap: float, blend: Blend
) -> None:
    d, h, w = (monai_origins(e, p, overlap) for e, p in zip(extents, patch, strict=True))
    array = array_of(extents)
    layout = PatchLayout(extents, patch, (d, h, w))
    assert len(layout) == len(cover(extents, patch, overlap))
    ours = translated(array, FunctionGenerator(placed), layout, blend)
    theirs = monai_translates(array, placed, patch, overlap, blend)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("blend", ["gaussian", "constant"])
@pytest.mark.parametrize(
    ("extents", "padding", "monai_padding"),
    [
        pytest.param((56, 32, 80), "edge", "replicate", id="regular"),
        pytest.param((31, 56, 20), "edge", "replicate", id="smaller, edge"),
        pytest.param((31, 56, 20), "reflect", "reflect", id="smaller, reflect"),
    ],
)
def test_a_generator_of_the_product(
    extents: Triple, padding: SmallVolumePadding, monai_padding: str, blend: Blend
) -> None:
    array, patch, network = array_of(extents), (32, 32, 32), small_resnet()
    layout = cover(extents, patch, 0.25, network.graph.stride)
    with open_cpu_generator(network, threads=1) as generator:
        ours = translated(array, generator, layout, blend, padding)
        theirs = monai_translates(array, generator, patch, 0.25, blend, monai_padding)
    assert ours.std() > 0.05
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
