"""Arithmetic counted for whole generators, against counts made by others."""

import pytest
import torch
from support.gpu_networks import ODD_GRAPHS, random_network
from support.network_features import CUT, FEATURES, in_torch, patches_for, trained
from support.torch_generators import padded_resnet
from torch.utils.flop_counter import FlopCounterMode

from cuda_cyclegan.engine.benchmark.pytorch_network import as_module
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.flops import flops


@pytest.mark.parametrize(("width", "gigaflops"), [(32, 701), (64, 2619)])
def test_the_published_generators(width: int, gigaflops: int) -> None:
    graph = build(ResNetSpec(1, 1, width, 9))
    assert round(flops(graph, (128, 128, 128)) / 1e9) == gigaflops


def test_a_patch_that_is_no_cube_counts_as_torch_counts_it() -> None:
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        padded_resnet(width=4, blocks=2).eval()(torch.zeros(1, 1, 16, 24, 8))
    assert flops(build(ResNetSpec(1, 1, 4, 2)), (16, 24, 8)) == counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in FEATURES if FEATURES[name] is not CUT])
def test_every_feature_counts_as_torch_counts_it(name: str) -> None:
    spec = FEATURES[name]
    network, patches = trained(spec), patches_for(spec, (16, 24, 16))
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        in_torch(spec, network, patches)
    assert flops(build(spec), (16, 24, 16)) == counter.get_total_flops()


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_every_unusual_graph_counts_as_torch_counts_it(name: str) -> None:
    network = random_network(ODD_GRAPHS[name], 0)
    patches = torch.zeros(1, network.graph.in_channels, 8, 8, 8)
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        as_module(network)(patches)
    assert flops(network.graph, (8, 8, 8)) == counter.get_total_flops()


def test_a_unet_has_work_on_every_level() -> None:
    graph = build(UNetSpec(1, 1, 4, 3))
    assert flops(graph, (16, 16, 16)) * 8 == flops(graph, (32, 32, 32))
