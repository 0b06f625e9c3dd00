"""Generators as wide as people train them, for what depends on the shapes of weights alone."""

import numpy as np

from cuda_cyclegan.engine.network.graph import Graph, Network


def zero_network(graph: Graph) -> Network:
    """The graph with weights of zeros."""
    return Network(
        graph, {key: np.zeros(shape, np.float32) for key, shape in graph.weight_shapes()}
    )
