"""Specs beyond the plain generators, computed as PyTorch computes them."""

import numpy as np
import pytest
from support.covering_networks import SPECS, covering
from support.network_features import CUT, patches_for, trained

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
    out_of_bounds,
)
from cuda_cyclegan.engine.network.layers import Constant, Downsample, Elu, LeakyRelu

EXTENTS = {ResNetSpec: (12, 16, 12), UNetSpec: (16, 24, 16)}


@pytest.mark.parametrize("name", covering(SPECS))
def test_every_feature_computes_what_pytorch_does(name: str) -> None:
    from support.features_in_torch import in_torch

    spec = SPECS[name]
    network, patches = trained(spec), patches_for(spec, EXTENTS[type(spec)], batch=2)
    expected = in_torch(spec, network, patches)
    with open_cpu_generator(network, threads=1) as generator:
        made = generator(patches)
    assert np.abs(expected).max() > 0.1
    assert np.abs(made - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("name", covering(SPECS))
def test_every_feature_is_exported_as_valid_onnx(name: str) -> None:
    import onnx

    from cuda_cyclegan.engine.cpu.onnx_model import to_onnx

    onnx.checker.check_model(to_onnx(trained(SPECS[name])), full_check=True)


def test_anti_aliased_sampling_is_linear_sampling() -> None:
    import torch
    from support.features_in_torch import unblurred

    x = torch.randn(2, 3, 5, 4, 7, dtype=torch.float64)
    linear = torch.nn.functional.interpolate(x, scale_factor=2, mode="trilinear")
    assert torch.allclose(unblurred(x), linear)
    assert CUT.upsampling == "trilinear"


def test_a_filter_keeps_what_is_even() -> None:
    for taps in range(1, 8):
        assert Downsample(taps, (2, 2, 2), "reflect").filter.sum() == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        (ResNetSpec(1, 1, 8, 1, norm=Groups(3)), "norm.groups", "divide the width of 8"),
        (UNetSpec(1, 1, 8, 2, norm=Groups(0)), "norm.groups", "from 1 to 1024"),
        (ResNetSpec(1, 1, 8, 1, activation=LeakyRelu(1e9)), "activation.slope", "-10 to 10"),
        (UNetSpec(1, 1, 8, 2, up_activation=Elu(-1.0)), "up_activation.alpha", "0 to 10"),
        (ResNetSpec(1, 1, 8, 1, norm_epsilon=0.0), "norm_epsilon", "1e-12 to 1"),
        (ResNetSpec(1, 1, 8, 1, padding=Constant(1e30)), "padding.value", "-1000 to 1000"),
        (ResNetSpec(1, 1, 8, 1, stride=(1, 99, 2)), "stride", "1 to 4"),
        (ResNetSpec(1, 1, 8, 1, block_dilation=0), "block_dilation", "1 to 16"),
        (ResNetSpec(1, 1, 8, 1, blur=Blur(0)), "blur.taps", "1 to 7"),
        (ResNetSpec(1, 1, 8, 1, blur=Blur(3, Constant(1e9))), "blur.padding.value", "1000"),
        (
            ResNetSpec(2, 1, 8, 1, adds_input=True),
            "adds_input",
            "numbers of input and output channels differ",
        ),
    ],
)
def test_values_that_no_generator_has_are_named(spec: Spec, path: str, words: str) -> None:
    [(named, reason)] = out_of_bounds(spec)
    assert named == path
    assert words in reason


def test_every_spec_here_is_within_bounds() -> None:
    for spec in SPECS.values():
        assert not list(out_of_bounds(spec))
        build(spec).check_patch(EXTENTS[type(spec)])
