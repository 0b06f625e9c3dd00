"""Generators as wide as people train them, for what depends on the shapes of weights alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuda_cyclegan.engine.compiler import weight_layout
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import FloatArray

_LARGE = ("forward", "transposed", "subpixels", "split_fp16_pairs")


def zero_network(graph: Graph) -> Network:
    """The graph with weights of zeros."""
    return Network(
        graph, {key: np.zeros(shape, np.float32) for key, shape in graph.weight_shapes()}
    )


def lay_out_once(patch: pytest.MonkeyPatch) -> None:
    """Zeros stay zeros however they are laid out: the real function says once of what shape."""
    for name in _LARGE:
        patch.setattr(weight_layout, name, _once(getattr(weight_layout, name)))


def _once(lay_out: Callable[..., FloatArray]) -> Callable[..., FloatArray]:
    shapes: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def laid(weight: FloatArray, *arguments: Any) -> FloatArray:
        key = weight.shape, *arguments
        if key not in shapes:
            shapes[key] = lay_out(weight, *arguments).shape
        return np.zeros(shapes[key], np.float32)

    return laid
