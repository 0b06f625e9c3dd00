"""What a network's last layers say of the values that can come out."""

from math import inf

import numpy as np
import pytest

from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Clip,
    Concat,
    Constant,
    Conv3d,
    Crop,
    Layer,
    Pad,
    Pool,
    Relu,
    Sigmoid,
    Tanh,
    Upsample,
)
from cuda_cyclegan.engine.network.value_range import output_range

ONE, TWO = (1, 1, 1), (2, 2, 2)
ENDS: dict[str, tuple[list[Layer], tuple[float, float]]] = {
    "nothing": ([], (-inf, inf)),
    "tanh": ([Tanh()], (-1, 1)),
    "sigmoid": ([Sigmoid()], (0, 1)),
    "half of a tanh, and a half": ([Tanh(), ChannelAffine(1, "half", "half")], (0, 1)),
    "a sigmoid turned over": ([Sigmoid(), ChannelAffine(1, "less", "one")], (0, 1)),
    "nothing times a tanh": ([Tanh(), ChannelAffine(1, "none", "one")], (-inf, inf)),
    "clip": ([Clip(0.0, 1.0)], (0, 1)),
    "clip on one side": ([Clip(None, 1.0)], (-inf, 1)),
    "relu": ([Relu()], (0, inf)),
    "relu of a tanh": ([Tanh(), Relu()], (0, 1)),
    "what moves voxels": ([Tanh(), Upsample("trilinear", TWO), Crop(ONE, ONE)], (-1, 1)),
    "replicated": ([Sigmoid(), Pad("replicate", ONE, ONE)], (0, 1)),
    "zeros around": ([Clip(0.5, 1.0), Pad("zero", ONE, ONE)], (0, 1)),
    "a number around": ([Sigmoid(), Pad(Constant(-1.0), ONE, ONE)], (-1, 1)),
    "means with zeros": ([Clip(0.5, 1.0), Pool("mean", (3, 3, 3), ONE, ONE)], (0, 1)),
    "means": ([Clip(0.5, 1.0), Pool("mean", TWO, TWO)], (0.5, 1)),
    "what comes behind": ([Tanh(), Conv3d(1, 1, ONE, "weight")], (-inf, inf)),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_ends_of_what_comes_out(name: str) -> None:
    layers, ends = ENDS[name]
    assert _ends(*(Node(f"n{at}", layer, (f"n{at - 1}",)) for at, layer in enumerate(layers))) == (
        ends
    )


def test_two_inputs() -> None:
    tanh, sigmoid = Node("t", Tanh(), ("n-1",)), Node("s", Sigmoid(), ("n-1",))
    assert _ends(tanh, sigmoid, Node("c", Concat(), ("t", "s"))) == (-1, 1)
    assert _ends(tanh, sigmoid, Node("a", Add(), ("t", "s"))) == (-inf, inf)


def _ends(*nodes: Node) -> tuple[float, float]:
    numbers = {"half": 0.5, "less": -1.0, "one": 1.0, "none": 0.0}
    weights = {key: np.full(1, number, np.float32) for key, number in numbers.items()}
    weights["weight"] = np.ones((1, 1, 1, 1, 1), np.float32)
    first = Node("n-1", Conv3d(1, 1, ONE, "weight"), (INPUT,))
    named = {name for node in (first, *nodes) for name in _weights(node.layer)}
    graph = Graph(1, (first, *nodes))
    return output_range(Network(graph, {key: weights[key] for key in named}))


def _weights(layer: Layer) -> list[str]:
    match layer:
        case ChannelAffine(_, scale, shift):
            return [scale, shift]
        case Conv3d(weight=weight):
            return [weight]
        case _:
            return []
