"""Networks around a few operators of ONNX, written down and compared with ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto
from support.onnx_files import conv_arrays, node, written

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.network.layers import kind_of

FLOAT = np.float32
WIDE = [node("Conv", "x w w.bias", "a", pads=[1] * 6)]


def vector(*numbers: float) -> Any:
    return np.array(numbers, FLOAT)


def written_down(proto: ModelProto, folder: Path, patch: Any = None) -> Any:
    return convert_graph(read_onnx(written(proto, folder / "g.onnx")), patch)


def kinds(proto: ModelProto, folder: Path, *, channels_last: bool = False) -> list[str]:
    """Layers of a network that is compared with ONNX Runtime's own reading of its file."""
    network = written_down(proto, folder).network
    patch = np.random.default_rng(0).normal(size=(1, 1, 8, 6, 10)).astype(FLOAT)
    input_patch = patch.transpose(0, 2, 3, 4, 1) if channels_last else patch
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    [expected] = session.run(None, {"x": np.ascontiguousarray(input_patch)})
    if channels_last:
        expected = expected.transpose(0, 4, 1, 2, 3)
    with open_cpu_generator(network, threads=1) as generator:
        difference = np.abs(generator(patch) - expected).max()
    assert difference < 1e-6 * max(10, np.abs(expected).max())
    return [kind_of(one.layer) for one in network.graph.nodes]


def ended(*nodes: NodeProto) -> list[NodeProto]:
    """Return a convolution into "a", the nodes into "b", then a convolution to one channel."""
    return [*WIDE, *nodes, node("Conv", "b v v.bias", "y")]


ARRAYS = conv_arrays() | conv_arrays(1, 4, 1, "v")
