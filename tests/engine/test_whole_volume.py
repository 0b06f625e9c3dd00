"""Networks that have a form for whole volumes, and the refusal of others."""

import pytest
from msgspec.structs import replace
from support.gpu_networks import ODD_GRAPHS, chain

from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import Conv3d, ConvTranspose3d, Pad
from cuda_cyclegan.engine.whole_volume import volume_refusal

RESNET, UNET = ResNetSpec(1, 1, 8, 2), UNetSpec(1, 1, 8, 4)
_NO_FORM = {
    "norm and activation after everything": "pad (pad)",
    "pads in a row": "pad (pad)",
    "groups and dilation": "b (conv_transpose)",
    "pools whose padding is wide": "largest (pool)",
    "products, differences and parts": "crop (crop)",
    "transposed with dilation": "down (conv)",
    "pooled behind a norm and a sum": "pad (pad)",
    "parts of the patches": "cut (crop)",
}


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


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_an_operator_without_one_is_named(name: str) -> None:
    refusal = volume_refusal(ODD_GRAPHS[name])
    if name in _NO_FORM:
        assert refusal is not None
        assert refusal.startswith(f"layer {_NO_FORM[name]} makes ")
    else:
        assert refusal is None


def test_a_transposed_convolution_of_any_stride_has_one_on_the_grid() -> None:
    assert volume_refusal(build(replace(RESNET, stride=(1, 2, 2)))) is None
    up = ConvTranspose3d(1, 1, (3, 3, 3), "up.weight", None, (2, 2, 2))
    back = Conv3d(1, 1, (3, 3, 3), "back.weight", None, (2, 2, 2))
    assert volume_refusal(chain(1, ("up", up), ("back", back))) == (
        "layer up (conv_transpose) makes 49x49x49 voxels of 24x24x24, "
        "which blocks do not divide evenly"
    )


def test_a_padding_that_the_result_keeps_has_none() -> None:
    conv = Conv3d(1, 1, (3, 3, 3), "conv.weight")
    graph = chain(1, ("conv", conv), ("pad", Pad("zero", (1, 1, 1), (1, 1, 1))))
    refusal = volume_refusal(graph)
    assert refusal is not None
    assert refusal.startswith("layer conv (conv) makes 22x22x22 voxels of 24x24x24")


def test_a_network_for_one_patch_has_none() -> None:
    graph = build(RESNET)
    refusal = volume_refusal(Graph(1, graph.nodes, (64, 64, 32)))
    assert refusal == "it was exported for patches of 64x64x32 only"
