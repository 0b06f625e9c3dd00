"""A network as an ONNX model: what the CPU runtime executes and `model export-onnx` writes."""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..network.graph import (
    INPUT,
    Add,
    ChannelAffine,
    Concat,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    InstanceNorm,
    LeakyRelu,
    Network,
    Node,
    Pad,
    Relu,
    Tanh,
    Triple,
    Upsample,
)

OPSET = 18
"""Oldest operator set with all that the graph needs; every ONNX Runtime since 1.14 runs it."""

_IR_VERSION = 8
_PAD_MODES = {"reflect": "reflect", "replicate": "edge", "zero": "constant"}
_Constants: TypeAlias = dict[str, "np.ndarray[Any, Any]"]


def to_onnx(network: Network, name: str = "generator") -> ModelProto:
    """Float32 ONNX model with one input and one output, [N, C, D, H, W], extents left open."""
    graph = network.graph
    constants: _Constants = {}
    nodes = [made for node in graph.nodes for made in _nodes(node, network, constants)]
    proto = helper.make_graph(
        nodes,
        name,
        [_value(INPUT, graph.in_channels)],
        [_value(graph.output, graph.out_channels)],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    return helper.make_model(
        proto,
        producer_name="cuda-cyclegan",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )


def _value(name: str, channels: int) -> Any:
    axes = ["batch", channels, "depth", "height", "width"]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, axes)


def _nodes(node: Node, network: Network, constants: _Constants) -> Iterable[NodeProto]:
    def weight(key: str) -> str:
        constants[key] = np.ascontiguousarray(network.weights[key], dtype=np.float32)
        return key

    def constant(suffix: str, array: "np.ndarray[Any, Any]") -> str:
        key = f"{node.name}.{suffix}"
        constants[key] = array
        return key

    def made(operator: str, inputs: Iterable[str], **attributes: Any) -> NodeProto:
        return helper.make_node(operator, [*inputs], [node.name], node.name, **attributes)

    match node.layer:
        case Conv3d() | ConvTranspose3d() as conv:
            inputs = [*node.inputs, weight(conv.weight)]
            if conv.bias is not None:
                inputs.append(weight(conv.bias))
            attributes: dict[str, Any] = {
                "kernel_shape": conv.kernel,
                "strides": conv.stride,
                "pads": (*conv.padding, *conv.padding),
            }
            if isinstance(conv, ConvTranspose3d):
                attributes["output_padding"] = conv.output_padding
                yield made("ConvTranspose", inputs, **attributes)
            else:
                yield made("Conv", inputs, **attributes)
        case InstanceNorm(channels, scale, shift, epsilon):
            ones, zeros = _filled(channels, 1.0), _filled(channels, 0.0)
            scale = weight(scale) if scale else constant("scale", ones)
            shift = weight(shift) if shift else constant("shift", zeros)
            inputs = [*node.inputs, scale, shift]
            yield made("InstanceNormalization", inputs, epsilon=epsilon)
        case ChannelAffine(_, scale, shift):
            scaled = f"{node.name}.scaled"
            per_channel = [
                constant(k, network.weights[n].reshape(1, -1, 1, 1, 1))
                for k, n in (("scale", scale), ("shift", shift))
            ]
            yield helper.make_node("Mul", [*node.inputs, per_channel[0]], [scaled], scaled)
            yield made("Add", [scaled, per_channel[1]])
        case Pad(mode, before, after):
            pads = constant("pads", np.array([0, 0, *before, 0, 0, *after], np.int64))
            yield made("Pad", [*node.inputs, pads], mode=_PAD_MODES[mode])
        case Upsample() as upsample:
            yield _resize(node, upsample, constant("scales", _scales(upsample.factor)))
        case LeakyRelu(slope):
            yield made("LeakyRelu", node.inputs, alpha=slope)
        case Concat():
            yield made("Concat", node.inputs, axis=1)
        case Relu():
            yield made("Relu", node.inputs)
        case Tanh():
            yield made("Tanh", node.inputs)
        case Add():
            yield made("Add", node.inputs)


def _resize(node: Node, layer: Upsample, scales: str) -> NodeProto:
    if layer.mode == "nearest":
        sampling = {"mode": "nearest", "nearest_mode": "floor"}
        positions = "asymmetric"
    else:
        sampling = {"mode": "linear"}
        positions = "align_corners" if layer.align_corners else "half_pixel"
    return helper.make_node(
        "Resize",
        [*node.inputs, "", scales],
        [node.name],
        node.name,
        coordinate_transformation_mode=positions,
        **sampling,
    )


def _scales(factor: Triple) -> FloatArray:
    return np.array([1, 1, *factor], np.float32)


def _filled(channels: int, value: float) -> FloatArray:
    return np.full(channels, value, np.float32)
