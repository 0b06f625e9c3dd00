"""Arrays through a generator, tile by tile, against the arrays themselves and against MONAI."""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from helpers.numerics_models import FunctionGenerator
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_cyclegan.engine.card import SmallVolumePadding
from cuda_cyclegan.engine.cpu import CpuGenerator
from cuda_cyclegan.engine.graph import (
    INPUT,
    Conv3d,
    FloatArray,
    Graph,
    InstanceNorm,
    Network,
    Node,
    Tanh,
    Triple,
)
from cuda_cyclegan.pipelines.blending import Blend
from cuda_cyclegan.pipelines.inference import translate_array
from cuda_cyclegan.pipelines.tiling import tile

edges = st.tuples(st.integers(1, 14), st.integers(1, 14), st.integers(1, 14))


def nothing() -> None:
    pass


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
    tiles: list[None] = []
    tiling = tile(extents, patch, overlap)
    result = translate_array(
        array, FunctionGenerator(), tiling, blend, padding, lambda: tiles.append(None)
    )
    np.testing.assert_allclose(result.array, array, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(array, before)
    assert len(tiles) == len(tiling)


def test_a_generator_may_overwrite_its_patch() -> None:
    array = np.ones((1, 12, 8, 8), np.float32)

    def negate(patches: FloatArray) -> FloatArray:
        return np.negative(patches, out=patches)

    tiling = tile((12, 8, 8), (8, 8, 8), 0.5)
    result = translate_array(array, FunctionGenerator(negate), tiling, "gaussian", "edge", nothing)
    np.testing.assert_array_equal(array, 1)
    np.testing.assert_allclose(result.array, -1, atol=1e-6)


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

    tiling = tile((3, 1, 2), (6, 1, 2), 0)
    translate_array(array, FunctionGenerator(remember), tiling, "constant", padding, nothing)
    np.testing.assert_array_equal(seen[0][0, 0, :, 0, 0], expected)


def test_an_interrupt_passes_through() -> None:
    def interrupted(_: FloatArray) -> FloatArray:
        raise KeyboardInterrupt

    tiling = tile((8, 8, 8), (8, 8, 8), 0)
    array = np.zeros((1, 8, 8, 8), np.float32)
    with pytest.raises(KeyboardInterrupt):
        translate_array(array, FunctionGenerator(interrupted), tiling, "constant", "edge", nothing)


def test_a_foreign_tiling_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        translate_array(
            np.zeros((1, 8, 8, 8), np.float32),
            FunctionGenerator(),
            tile((8, 8, 9), (8, 8, 8), 0),
            "constant",
            "edge",
            nothing,
        )


def network(kernel: int) -> Network:
    """Two convolutions around a norm that sees the whole patch; pointwise if the kernel is 1."""
    width = kernel // 2
    random = np.random.default_rng(3)

    def weight(*shape: int) -> FloatArray:
        return random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)

    cube, around = (kernel,) * 3, (width,) * 3
    nodes = [
        Node("a", Conv3d(1, 4, cube, "a.weight", "a.bias", padding=around), (INPUT,)),
        Node("norm", InstanceNorm(4), ("a",)),
        Node("b", Conv3d(4, 2, cube, "b.weight", padding=around), ("norm",)),
        Node("tanh", Tanh(), ("b",)),
    ]
    if kernel == 1:  # pointwise: a norm would look at the whole patch
        nodes[1:3] = [Node("b", Conv3d(4, 2, cube, "b.weight", padding=around), ("a",))]
    weights = {
        "a.weight": weight(4, 1, *cube),
        "a.bias": weight(4),
        "b.weight": weight(2, 4, *cube),
    }
    return Network(Graph(1, tuple(nodes)), weights)


def torch_network(of: Network, kernel: int) -> Callable[[Any], Any]:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights = {name: torch.from_numpy(array) for name, array in of.weights.items()}
    width = kernel // 2

    def run(patches: Any) -> Any:
        first = functional.conv3d(patches, weights["a.weight"], weights["a.bias"], padding=width)
        if kernel > 1:
            first = functional.instance_norm(first)
        return torch.tanh(functional.conv3d(first, weights["b.weight"], padding=width))

    return run


@pytest.mark.parametrize("blend", ["gaussian", "constant"])
@pytest.mark.parametrize(
    ("kernel", "extents"),
    [
        pytest.param(3, (28, 40, 16), id="regular grid"),
        pytest.param(3, (9, 28, 13), id="smaller than the patch"),
        pytest.param(1, (33, 26, 19), id="pointwise, any extents"),
    ],
)
def test_parity_with_monai(kernel: int, extents: Triple, blend: Blend) -> None:
    inferers = pytest.importorskip("monai.inferers.utils")
    torch = pytest.importorskip("torch")
    array = np.random.default_rng(4).uniform(-1, 1, (1, *extents)).astype(np.float32)
    own = network(kernel)
    tiling = tile(extents, (16, 16, 16), 0.25, (4, 4, 4))
    with CpuGenerator(own, threads=1) as generator:
        ours = translate_array(array, generator, tiling, blend, "edge", nothing).array
    theirs = inferers.sliding_window_inference(
        torch.from_numpy(array[None]),
        (16, 16, 16),
        1,
        torch_network(own, kernel),
        overlap=0.25,
        mode=blend,
        sigma_scale=0.125,
        padding_mode="replicate",
    )
    assert ours.std() > 0.1
    np.testing.assert_allclose(ours, theirs.numpy()[0], rtol=0, atol=1e-5)


def test_the_same_array_gives_the_same_bits() -> None:
    array = np.random.default_rng(5).uniform(-1, 1, (1, 30, 20, 20)).astype(np.float32)
    tiling = tile((30, 20, 20), (16, 16, 16), 0.5)
    with CpuGenerator(network(3), threads=2) as generator:
        first, second = (
            translate_array(array, generator, tiling, "gaussian", "edge", nothing).array
            for _ in range(2)
        )
    np.testing.assert_array_equal(first, second)
