"""The tensors of a model file: a generator's weights, and a reference patch with its output."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import safetensors as _safetensors

from .errors import EngineError, ModelFileError
from .graph import FloatArray, Graph

safetensors: Any = _safetensors  # the package ships no types

REFERENCE_INPUT, REFERENCE_OUTPUT = "reference.input", "reference.output"

# The deepest U-Net takes no less than 256 x 256 x 256.
_LARGEST_REFERENCE = 256**3


def read_tensors(data: bytes) -> dict[str, FloatArray]:
    """All tensors of a safetensors file by name; raises ModelFileError unless all are float32."""
    try:
        # Refuses overlapping, missing and surplus bytes, so it needs no more memory than the file.
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise ModelFileError(f"The file is damaged ({error}); copy it again.") from error
    tensors: dict[str, FloatArray] = {}
    for name, entry in entries:
        if entry["dtype"] != "F32":
            raise ModelFileError(f"Tensor {name[:80]!r} is {entry['dtype']}; a model holds F32.")
        tensors[name] = np.frombuffer(entry["data"], "<f4").reshape(entry["shape"])
    return tensors


def check_tensors(graph: Graph, tensors: Mapping[str, FloatArray]) -> None:
    """Raise ModelFileError unless these are the graph's weights and a reference, all finite."""
    shapes = dict(graph.weight_shapes())
    known = shapes.keys() | {REFERENCE_INPUT, REFERENCE_OUTPUT}
    if missing := sorted(known - tensors.keys()):
        raise ModelFileError(f"Tensor {missing[0]!r} of the card's architecture is missing.")
    if extra := sorted(tensors.keys() - known):
        raise ModelFileError(f"Tensor {extra[0][:80]!r} has no place in the card's architecture.")
    shapes |= _reference_shapes(graph, tensors[REFERENCE_INPUT].shape)
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise ModelFileError(
                f"Tensor {name!r} is {_times(tensors[name].shape)}, but the card's architecture "
                f"makes it {_times(shape)}."
            )
        if not np.isfinite(tensors[name]).all():
            raise ModelFileError(f"Tensor {name!r} holds numbers that are not finite.")


def _reference_shapes(graph: Graph, stored: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the reference pair: the stored input chooses the extents, the network the rest."""
    if len(stored) != 5:
        raise ModelFileError(f"Tensor {REFERENCE_INPUT!r} is {_times(stored)}, not 1xCxDxHxW.")
    extents = stored[2], stored[3], stored[4]
    if prod(extents) > _LARGEST_REFERENCE:
        raise ModelFileError(
            f"Tensor {REFERENCE_INPUT!r} is {_times(stored)}; a reference patch has at most "
            f"{_LARGEST_REFERENCE} voxels."
        )
    try:
        graph.check_patch(extents)
    except EngineError as error:
        raise ModelFileError(f"Tensor {REFERENCE_INPUT!r} does not fit: {error}") from error
    return {
        REFERENCE_INPUT: (1, graph.in_channels, *extents),
        REFERENCE_OUTPUT: (1, graph.out_channels, *extents),
    }


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"
