"""How far a voxel of the result reaches is as far as changes of the patch are seen in it."""

import numpy as np
import pytest
from msgspec import structs
from support.gpu_networks import ODD_GRAPHS, chain, random_network

from cuda_cyclegan.engine.network.graph import Graph, Node
from cuda_cyclegan.engine.network.layers import Conv3d, ConvTranspose3d, InstanceNorm, Upsample
from cuda_cyclegan.engine.network.receptive_field import receptive_field, sees_whole_patch
from cuda_cyclegan.engine.onnxruntime.session import session, session_options

WIDTH = 48


def without_norms(graph: Graph) -> Graph:
    """The graph without layers that see the whole patch."""
    instead: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        if isinstance(node.layer, InstanceNorm):
            instead[node.name] = inputs[0]
        else:
            nodes.append(structs.replace(node, inputs=inputs))
    return Graph(graph.in_channels, tuple(nodes))


DOWN = Conv3d(1, 1, (3, 3, 3), "d.weight", None, (2, 2, 2), (1, 1, 1))
DILATED = Conv3d(1, 1, (3, 3, 3), "w.weight", None, (1, 1, 1), (2, 2, 2), (2, 2, 2))
UP = ConvTranspose3d(1, 1, (4, 4, 4), "u.weight", None, (2, 2, 2), (1, 1, 1))
GRAPHS = {
    "strides and dilation": chain(1, ("d", DOWN), ("e", DOWN), ("w", DILATED)),
    "down and up": chain(1, ("d", DOWN), ("w", DILATED), ("u", UP)),
    "sampling": chain(1, ("d", DOWN), ("s", Upsample("trilinear", (2, 2, 2))), ("w", DILATED)),
    "pooling": ODD_GRAPHS["pooling"],
    "groups": ODD_GRAPHS["groups and dilation"],
    "each channel by itself": without_norms(ODD_GRAPHS["each channel by itself"]),
    "transposed with dilation": without_norms(ODD_GRAPHS["transposed with dilation"]),
    "parts": ODD_GRAPHS["parts of the patches"],
    "two paths": ODD_GRAPHS["input twice"],
}


def seen(graph: Graph) -> int:
    """The widest run of planes along W in which a change is seen by one plane of the result."""
    from cuda_cyclegan.engine.onnxruntime.conversion import to_onnx

    running = session(to_onnx(random_network(graph, 1)), session_options(1))
    patch = np.random.default_rng(0).normal(size=(1, graph.in_channels, 8, 8, WIDTH))
    patches = np.repeat(patch.astype(np.float32), WIDTH + 1, 0)
    for at in range(WIDTH):
        patches[at + 1, ..., at] += 3
    [made] = running.run(None, {"input": patches})
    changed = (np.abs(made[1:] - made[0]) > 1e-6).any(axis=(1, 2, 3))
    return max(np.ptp(np.flatnonzero(plane)) + 1 for plane in changed.T if plane.any())


@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_what_a_voxel_depends_on(name: str) -> None:
    assert receptive_field(GRAPHS[name])[2] == seen(GRAPHS[name])


def test_a_norm_sees_the_whole_patch() -> None:
    assert sees_whole_patch(chain(1, ("norm", InstanceNorm(1))))
    assert not sees_whole_patch(GRAPHS["sampling"])
