"""Networks that have a form for whole volumes, and the refusal of others."""

import pytest
from msgspec.structs import replace
from support.gpu_networks import ODD_GRAPHS, OFF_GRID, chain

from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import INPUT, Graph
from cuda_cyclegan.engine.network.layers import Add, ConvTranspose3d, Pool
from cuda_cyclegan.engine.whole_volume import volume_refusal

RESNET, UNET = ResNetSpec(1, 1, 8, 2), UNetSpec(1, 1, 8, 4)


@pytest.mark.parametrize(
    "spec",
    [
        *(replace(RESNET, padding=mode) for mode in ("reflect", "replicate", "zero")),
        *(replace(RESNET, norm=norm) for norm in ("instance_affine", "stored", Groups(4))),
        *(replace(RESNET, upsampling=mode) for mode in ("nearest", "trilinear_corners")),
        replace(RESNET, blur=Blur(), adds_input=True, residual="activated_sum"),
        *(replace(UNET, upsampling=mode) for mode in ("transposed", "nearest", "trilinear")),
        replace(UNET, levels=7, padding="replicate", adds_input=True),
    ],
)
def test_all_usual_generators_have_one(spec: Spec) -> None:
    assert volume_refusal(build(spec)) is None


@pytest.mark.parametrize("name", [*ODD_GRAPHS, *OFF_GRID])
def test_all_networks_that_keep_extents_have_one(name: str) -> None:
    assert volume_refusal((ODD_GRAPHS | OFF_GRID)[name]) is None


def test_a_network_that_makes_other_extents_has_none() -> None:
    up = ConvTranspose3d(1, 1, (3, 3, 3), "up.weight", None, (2, 2, 2))
    half = Pool("mean", (2, 2, 2), (2, 2, 2))
    assert volume_refusal(chain(1, ("half", half), ("up", up))) == (
        "This network turns a patch of 2048x2048x2048 into 2049x2049x2049; only networks that keep "
        "the extents can translate a volume."
    )


def test_a_sum_of_maps_of_other_extents_is_named() -> None:
    pool = Pool("largest", (3, 3, 3), (1, 1, 1))
    graph = chain(1, ("pool", pool), ("sum", Add(), (INPUT, "pool")))
    refusal = volume_refusal(graph)
    assert refusal is not None
    assert refusal.startswith("Layer sum joins maps of ")


def test_a_network_for_one_patch_has_none() -> None:
    graph = build(RESNET)
    refusal = volume_refusal(Graph(1, graph.nodes, (64, 64, 32)))
    assert refusal == "it was exported for patches of 64x64x32 only"
