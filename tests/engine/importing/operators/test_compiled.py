"""Operators that become several layers are computed by a GPU's program, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from support.described_gpus import H200
from support.onnx_files import model, node
from support.onnx_judge import ARRAYS, ended, vector, written_down
from support.step_interpreter import interpret

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Precision

POSITIONS: dict[str, Any] = {
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


LINEAR: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def resized(name: str, factors: str, made: str, **how: Any) -> NodeProto:
    resize = node("Resize", f"{name} none {factors}", made, **how or POSITIONS)
    resize.input[1] = ""
    return resize


NETWORKS: dict[str, list[NodeProto]] = {
    "channel softmax": [node("Softmax", "a", "b", axis=1)],
    "absolute values": [node("Abs", "a", "b")],
    "padded channels": [node("Pad", "a wider", "p"), node("Slice", "p one five one", "b")],
    "sampling by halves": [resized("a", "wide", "r"), resized("r", "narrow", "b")],
    "linear sampling by halves": [
        resized("a", "wide", "r", **LINEAR),
        resized("r", "narrow", "b", **LINEAR),
    ],
    "the larger of two": [node("Neg", "a", "m"), node("Max", "a m", "b")],
    "layers of slices": [
        node("Transpose", "a", "t", perm=[0, 2, 1, 3, 4]),
        node("Reshape", "t flat", "f"),
        node("Conv", "f w2", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "d", kernel_shape=[2, 2], strides=[2, 2]),
        resized("d", "twice", "g", **LINEAR),
        node("Reshape", "g thick", "u"),
        node("Transpose", "u", "b", perm=[0, 2, 1, 3, 4]),
    ],
    "stacked channels": [
        node("Gather", "a zero", "f", axis=1),
        node("Unsqueeze", "f one", "u"),
        node("Concat", "u u u u", "b", axis=1),
    ],
}
NUMBERS = {
    "wider": np.array([0, 1, 0, 0, 0, 0, 1, 0, 0, 0]),
    "wide": vector(1, 1, 1.5, 1.5, 0.5),
    "narrow": vector(1, 1, 2 / 3, 2 / 3, 2),
    "flat": np.array([-1, 4, 8, 8]),
    "thick": np.array([1, 8, 4, 8, 8]),
    "w2": np.random.default_rng(2).normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32),
    "twice": vector(1, 1, 2, 2),
    "one": np.array([1]),
    "zero": np.array(0),
    "five": np.array([5]),
}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_program_computes_the_layers(name: str, precision: Precision, tmp_path: Path) -> None:
    proto = model(ended(*NETWORKS[name]), ARRAYS | NUMBERS)
    network = written_down(proto, tmp_path, (8, 8, 8)).network
    patch: FloatArray = np.random.default_rng(0).normal(size=(1, 1, 8, 8, 8)).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator:
        expected = generator(patch)
    layout = Layout((8, 8, 8), 1, precision, split_fp16=precision == "fp32")
    made = interpret(lower(network, layout, H200), patch, 1)
    assert np.linalg.norm(made - expected) <= 2e-5 * np.linalg.norm(expected)
