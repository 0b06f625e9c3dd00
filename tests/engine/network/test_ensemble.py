"""One network that computes the mean of several."""

import numpy as np
import pytest
from support.gpu_networks import chain, random_network

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import CheckpointError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.network.ensemble import mean_network
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import ChannelAffine, Conv3d, FloatArray, PRelu

ONE = (1, 1, 1)
RESNET = build(ResNetSpec(1, 1, 4, 1, downsamplings=1, norm="instance_affine"))
UNET = build(UNetSpec(1, 1, 4, 3))
PLAIN = chain(
    1,
    ("a", Conv3d(1, 4, (3, 3, 3), "a.weight", "a.bias", padding=ONE)),
    ("slopes", PRelu(4, "slopes.slope")),
    ("b", Conv3d(4, 1, (3, 3, 3), "b.weight", "b.bias", padding=ONE)),
)
SHARED = chain(
    1,
    ("a", Conv3d(1, 1, (3, 3, 3), "a.weight", "a.bias", padding=ONE)),
    ("b", Conv3d(1, 1, (3, 3, 3), "a.weight", "a.bias", padding=ONE)),
)
"""Both convolutions have the same weights."""


def output(
    network: Network, patch: FloatArray
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    with open_cpu_generator(network, threads=1) as generator:
        return generator(patch).astype(np.float64)


@pytest.mark.parametrize(
    ("graphs", "is_scaled"),
    [
        ((RESNET, UNET), True),
        ((RESNET, PLAIN, UNET), True),
        ((PLAIN, PLAIN, PLAIN), False),
        ((PLAIN, SHARED), True),
    ],
)
def test_its_output_is_the_mean_of_theirs(graphs: tuple[Graph, ...], *, is_scaled: bool) -> None:
    networks = [random_network(graph, seed) for seed, graph in enumerate(graphs)]
    patch = np.random.default_rng(9).uniform(-1, 1, (2, 1, 16, 16, 24)).astype(np.float32)
    outputs = [output(network, patch) for network in networks]
    mean = mean_network(networks)
    made, wanted = output(mean, patch), np.mean(outputs, axis=0)
    assert np.abs(made - wanted).max() <= 1e-6 * np.abs(outputs).max()
    assert all(np.abs(one - wanted).max() > 0.1 for one in outputs)
    assert isinstance(mean.graph.nodes[-1].layer, ChannelAffine) == is_scaled


@pytest.mark.parametrize("graphs", [(RESNET, UNET), (PLAIN, PLAIN, PLAIN), (PLAIN, SHARED, UNET)])
def test_its_last_channel_is_the_mean_deviation_of_theirs(graphs: tuple[Graph, ...]) -> None:
    networks = [random_network(graph, seed) for seed, graph in enumerate(graphs)]
    patch = np.random.default_rng(9).uniform(-1, 1, (2, 1, 16, 16, 24)).astype(np.float32)
    outputs = np.stack([output(network, patch) for network in networks])
    made = output(mean_network(networks, disagreement=True), patch)
    wanted = np.abs(outputs - outputs.mean(axis=0)).mean(axis=0)
    largest = np.abs(outputs).max()
    assert np.abs(made[:, :1] - outputs.mean(axis=0)).max() <= 1e-6 * largest
    assert np.abs(made[:, 1:] - wanted).max() <= 1e-6 * largest
    assert wanted.max() > 0.1


def test_one_network_stays_as_it_is() -> None:
    network = random_network(PLAIN, 0)
    assert mean_network([network]) is network


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (build(ResNetSpec(2, 1, 4, 1)), "1 and 2 input channels, and 1 and 1 output channels"),
        (build(UNetSpec(1, 3, 4, 3)), "1 and 1 input channels, and 1 and 3 output channels"),
        (Graph(1, PLAIN.nodes, (8, 8, 8)), "patches of 16x16x16 and 8x8x8"),
    ],
)
def test_networks_that_have_no_mean_are_refused(other: Graph, reason: str) -> None:
    first = Graph(1, PLAIN.nodes, (16, 16, 16))
    with pytest.raises(CheckpointError, match=reason):
        mean_network([random_network(first, 0), random_network(other, 1)])


def test_it_takes_only_the_patch_of_a_network_that_takes_one() -> None:
    exported = Graph(1, PLAIN.nodes, (8, 8, 8))
    mean = mean_network([random_network(graph, 0) for graph in (PLAIN, exported)])
    assert mean.graph.patch == (8, 8, 8)
