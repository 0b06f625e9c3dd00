"""Arithmetic counted for whole generators, against counts made by others."""

from collections.abc import Callable

import pytest
from support.covering_networks import SPECS, covering
from support.gpu_networks import ODD_GRAPHS, random_network
from support.network_features import CUT, patches_for, trained

from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.flops import flops


def counted_by_torch(run: Callable[[], object]) -> int:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("width", "gigaflops"), [(32, 701), (64, 2619)])
def test_the_published_generators(width: int, gigaflops: int) -> None:
    graph = build(ResNetSpec(1, 1, width, 9))
    assert round(flops(graph, (128, 128, 128)) / 1e9) == gigaflops


def test_a_patch_that_is_no_cube_counts_as_torch_counts_it() -> None:
    import torch
    from support.torch_generators import padded_resnet

    module = padded_resnet(width=4, blocks=2).eval()
    counted = counted_by_torch(lambda: module(torch.zeros(1, 1, 16, 24, 8)))
    assert flops(build(ResNetSpec(1, 1, 4, 2)), (16, 24, 8)) == counted


@pytest.mark.parametrize("name", covering(name for name in SPECS if SPECS[name] is not CUT))
def test_every_feature_counts_as_torch_counts_it(name: str) -> None:
    import torch
    from support.features_in_torch import in_torch

    spec = SPECS[name]
    network, patches = trained(spec), patches_for(spec, (16, 24, 16))
    counted = counted_by_torch(lambda: in_torch(spec, network, patches, torch.float32))
    assert flops(build(spec), (16, 24, 16)) == counted


@pytest.mark.parametrize("name", ODD_GRAPHS)
def test_every_unusual_graph_counts_as_torch_counts_it(name: str) -> None:
    import torch

    from cuda_cyclegan.engine.benchmark.pytorch_network import as_module

    network = random_network(ODD_GRAPHS[name], 0)
    patches = torch.zeros(1, network.graph.in_channels, 8, 8, 8)
    counted = counted_by_torch(lambda: as_module(network)(patches))
    assert flops(network.graph, (8, 8, 8)) == counted


def test_a_unet_has_work_on_every_level() -> None:
    graph = build(UNetSpec(1, 1, 4, 3))
    assert flops(graph, (16, 16, 16)) * 8 == flops(graph, (32, 32, 32))
