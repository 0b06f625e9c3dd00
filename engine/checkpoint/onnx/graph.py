"""An ONNX graph written down as a layer graph with its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...errors import CheckpointError, PatchShapeError
from ...network.graph import INPUT, Graph, Network, times
from ...network.layers import Triple
from .activations import ACTIVATIONS
from .builder import Builder
from .convolutions import convolve, convolve_transposed
from .elementwise import (
    above,
    bound,
    chosen,
    clip,
    join,
    negate,
    part_of_norm,
    pass_on,
    power,
)
from .file import OnnxFile, Operator
from .folding import folded, shape_of
from .norms import batch_norm, group_norm, instance_norm, reduce_mean
from .sampling import concat, cut, pad, pool, resize, split
from .shapes import expand, reshape, tile, transpose
from .simplify import simplified
from .values import CHANNELS_LAST, IN_ORDER, GraphTensor, GraphValue

_Rule: TypeAlias = Callable[[Builder, Operator], GraphValue | list[GraphTensor]]

RULES: Mapping[str, _Rule] = {
    "Conv": convolve,
    "ConvTranspose": convolve_transposed,
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "GroupNormalization": group_norm,
    "ReduceMean": reduce_mean,
    "Pad": pad,
    "Slice": cut,
    "Split": split,
    "Concat": concat,
    "Transpose": transpose,
    "Resize": resize,
    "Upsample": resize,
    "MaxPool": pool,
    "AveragePool": pool,
    "Clip": clip,
    "Reshape": reshape,
    "Expand": expand,
    "Tile": tile,
    "Pow": power,
    "Neg": negate,
    "Max": bound,
    "Min": bound,
    "Greater": above,
    "Where": chosen,
    **ACTIVATIONS,
    **dict.fromkeys(("Add", "Sum", "Sub", "Mul", "Div"), join),
    **dict.fromkeys(("Sqrt", "Reciprocal"), part_of_norm),
    **dict.fromkeys(("Identity", "Cast", "Dropout"), pass_on),
}
"""Operators of ONNX that can be written down, each by what does it."""

_MISFITS = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError)
"""What numbers that make no sense let out of a rule; no file may end in more than a sentence."""

_USUAL_EXTENTS = (64, 128, 256, 32)
"""Patches to try where neither file nor user names one; of most strides one is a multiple."""


@dataclass(frozen=True, slots=True)
class WrittenDown:
    """What a file's graph came to.

    network: its layers and weights. reason: why it takes only one patch; empty if it takes others.
    """

    network: Network
    reason: str


def write_down(file: OnnxFile, patch: Triple | None) -> WrittenDown:
    """The network of a file. patch: (D, H, W) that it will be used with; None if nobody said yet.

    Raises CheckpointError, which names the operator that is not supported.
    """
    try:
        return _written_down(file, patch)
    except CheckpointError as error:
        raise CheckpointError(f"{file.path}: {error}") from error


def _written_down(file: OnnxFile, patch: Triple | None) -> WrittenDown:
    axes = _axes_of_input(file)
    named = tuple(file.dims[axes.index(axis)] for axis in (2, 3, 4))
    if all(named):
        fixed: Triple = (named[0] or 0, named[1] or 0, named[2] or 0)
        network = _at(file, axes, fixed)
        return WrittenDown(_fixed(network, fixed), f"the file's input is of {times(fixed)} alone")
    network, tried = _at_any(file, axes, patch, named)
    if any(named):
        return WrittenDown(_fixed(network, tried), "the file fixes some of its extents")
    d, h, w = (extent + step for extent, step in zip(tried, network.graph.stride, strict=True))
    try:
        is_same = _at(file, axes, (d, h, w)).graph == network.graph
    except CheckpointError:
        is_same = False
    if is_same:
        return WrittenDown(network, "")
    reason = f"its layers are others for other patches than {times(tried)}"
    return WrittenDown(_fixed(network, tried), reason)


def _fixed(network: Network, patch: Triple) -> Network:
    graph = network.graph
    return Network(Graph(graph.in_channels, graph.nodes, patch), network.weights)


def _at_any(
    file: OnnxFile, axes: tuple[int, ...], patch: Triple | None, named: tuple[int | None, ...]
) -> tuple[Network, Triple]:
    """The network at the patch, or at the first usual one that fits."""
    asked = [patch] if patch else [(edge, edge, edge) for edge in _USUAL_EXTENTS]
    refusals: list[str] = []  # and not the errors, whose frames hold all that was made
    for extents in asked:
        d, h, w = (known or wanted for known, wanted in zip(named, extents, strict=True))
        try:
            return _at(file, axes, (d, h, w)), (d, h, w)
        except CheckpointError as error:
            refusals.append(str(error))
    raise CheckpointError(refusals[0])


def _axes_of_input(file: OnnxFile) -> tuple[int, ...]:
    """Channels come last where all that reads the input first moves them to the front."""
    readers = [one for one in file.operators if file.input in one.inputs]
    moves = [one.attributes.get("perm") for one in readers if one.kind == "Transpose"]
    is_last = readers and len(moves) == len(readers) and set(moves) == {(0, 4, 1, 2, 3)}
    return CHANNELS_LAST if is_last else IN_ORDER


def _at(file: OnnxFile, axes: tuple[int, ...], patch: Triple) -> Network:
    """The network as it is for one patch."""
    channels = file.dims[axes.index(1)]
    if channels is None:
        raise CheckpointError(
            "The file does not say how many channels go in; export it with a fixed number."
        )
    batch = file.dims[0] or 1
    builder = Builder(file, GraphTensor(INPUT, batch, channels, patch, axes))
    for operator in file.operators:
        _do(builder, operator)
    made = builder.values.get(file.output)
    if not isinstance(made, GraphTensor) or made.axes not in (IN_ORDER, axes) or made.node == INPUT:
        raise CheckpointError("The network's output is not a tensor [N, C, D, H, W] of voxels.")
    nodes, weights = simplified(builder.nodes, builder.weights, made.node)
    network = Network(Graph(channels, nodes), weights)
    try:
        network.graph.check_patch(patch)
    except PatchShapeError as error:
        raise CheckpointError(str(error)) from error
    return network


def _do(builder: Builder, operator: Operator) -> None:
    """Write one operator down, or do it at once where nothing of it comes from the patch."""
    inputs = [builder.value(operator, at) for at in range(len(operator.inputs))]
    arrays = [value for value in inputs if value is None or isinstance(value, np.ndarray)]
    if operator.kind == "Shape" and isinstance(inputs[0] if inputs else None, GraphTensor):
        shape = builder.tensor(operator).shape
        made: GraphValue | list[GraphTensor] = shape_of(operator, shape)
    elif len(arrays) == len(inputs):
        made = folded(operator, arrays)
        builder.spend(operator, made)
    elif rule := RULES.get(operator.kind):
        try:
            made = rule(builder, operator)
        except _MISFITS as error:
            raise operator.refusal("has inputs or attributes that do not fit it") from error
    else:
        raise operator.refusal("is not supported")
    results = made if isinstance(made, list) else [made]
    builder.values.update(zip(operator.outputs, results, strict=False))
    if extra := [name for name in operator.outputs[len(results) :] if name]:
        builder.missing.update(dict.fromkeys(extra, operator))


def operators_of(file: OnnxFile) -> dict[str, int]:
    """How often each operator occurs, the most frequent first."""
    kinds = [operator.kind for operator in file.operators]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds), key=lambda k: -kinds.count(k))}
