"""A network in PyTorch computes what it computes here, so that the two may be compared."""

import numpy as np
import pytest
from support.covering_networks import SPECS, covering
from support.gpu_networks import ODD_GRAPHS, chain, random_network

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.architectures import Architecture, ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT
from cuda_cyclegan.engine.network.layers import Channels, Concat, Crop, Elu

OTHERS: dict[str, Architecture] = {
    "resnet": ResNetSpec(1, 1, 8, 2),
    "resnet, stored norms, sampling": ResNetSpec(
        2, 1, 8, 1, norm="stored", upsampling="trilinear", padding="replicate"
    ),
    "unet": UNetSpec(1, 2, 8, 3, upsampling="trilinear_corners", norm="instance_affine"),
    "unet, nearest": UNetSpec(1, 1, 8, 3, upsampling="nearest"),
    "parts of what is read again, activated": chain(
        2,
        ("channel", Channels(1, 1)),
        ("inner", Crop((0, 0, 0), (0, 0, 0))),
        ("elu", Elu()),
        ("join", Concat(), (INPUT, "elu")),
    ),
}
NETWORKS: dict[str, Architecture] = {**ODD_GRAPHS, **SPECS, **OTHERS}


@pytest.mark.parametrize("name", [*ODD_GRAPHS, *covering(SPECS), *OTHERS])
def test_it_computes_the_same_and_leaves_its_input(name: str) -> None:
    import torch

    from cuda_cyclegan.engine.benchmark.pytorch import as_module

    graph = build(NETWORKS[name])
    network = random_network(graph, seed=1)
    shape = 2, graph.in_channels, 16, 16, 16
    patches = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    given = torch.from_numpy(patches.copy())
    with torch.inference_mode():
        made = as_module(network)(given).numpy()
    with open_cpu_generator(network, threads=1) as generator:
        wanted = generator(patches)
    assert np.abs(made - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.array_equal(given.numpy(), patches)
