"""ONNX files written node by node, as other exporters than PyTorch's write them."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Dims = tuple[int | str, ...]
OPEN: Dims = ("n", 1, "d", "h", "w")


def node(kind: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    """One operator, named after what it makes."""
    return helper.make_node(kind, inputs.split(), output.split(), output, **attributes)


def model(
    nodes: list[NodeProto],
    arrays: dict[str, Any] | None = None,
    dims: Dims = OPEN,
    opset: int = 17,
) -> ModelProto:
    """A network from "x" to "y"."""
    graph = helper.make_graph(
        nodes,
        "generator",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(it), key) for key, it in (arrays or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv_arrays(out: int = 4, into: int = 1, kernel: int = 3, name: str = "w") -> dict[str, Any]:
    """A weight and its bias."""
    random = np.random.default_rng(out)
    weight = random.normal(0, 0.3, (out, into, kernel, kernel, kernel))
    bias = random.normal(0, 0.3, out)
    return {name: weight.astype(np.float32), f"{name}.bias": bias.astype(np.float32)}


def tiny() -> ModelProto:
    """A network of two convolutions, a norm and an activation."""
    arrays = conv_arrays() | conv_arrays(1, 4, name="v")
    arrays |= {"scale": np.full(4, 1.5, np.float32), "shift": np.full(4, 0.2, np.float32)}
    return model(
        [
            node("Conv", "x w w.bias", "a", pads=[1] * 6, kernel_shape=[3] * 3),
            node("InstanceNormalization", "a scale shift", "b"),
            node("LeakyRelu", "b", "c", alpha=0.2),
            node("Conv", "c v v.bias", "d", pads=[1] * 6),
            node("Tanh", "d", "y"),
        ],
        arrays,
    )


def written(proto: ModelProto, path: Path) -> Path:
    """The file of a model."""
    path.write_bytes(proto.SerializeToString())
    return path
