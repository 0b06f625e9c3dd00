"""Networks that PyTorch's exporters wrote compute what PyTorch does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("monai")
pytest.importorskip("onnxscript")
from support.described_cards import H200  # noqa: E402
from support.network_features import FEATURES  # noqa: E402
from support.onnx_networks import EXTENT, NETWORKS, Feature, exported, network  # noqa: E402
from support.step_interpreter import interpret  # noqa: E402

from cuda_cyclegan.engine.checkpoint.onnx.file import read_onnx  # noqa: E402
from cuda_cyclegan.engine.checkpoint.onnx.graph import write_down  # noqa: E402
from cuda_cyclegan.engine.compiler.lowered import Layout  # noqa: E402
from cuda_cyclegan.engine.compiler.lowering.lowering import lower  # noqa: E402
from cuda_cyclegan.engine.errors import PatchShapeError  # noqa: E402
from cuda_cyclegan.engine.network.architectures import build  # noqa: E402
from cuda_cyclegan.engine.network.graph import Network  # noqa: E402
from cuda_cyclegan.engine.network.layers import FloatArray, GroupNorm, Layer, kind_of  # noqa: E402
from cuda_cyclegan.engine.onnxruntime.session import open_cpu_generator  # noqa: E402
from cuda_cyclegan.engine.options import Precision  # noqa: E402

NEAR = 1e-5
"""Relative L2."""


def patch_of(*extents: int, channels: int = 1) -> FloatArray:
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, (1, channels, *extents)).astype(np.float32)


def distance(module: Any, found: Network, patch: FloatArray) -> float:
    with torch.no_grad():
        expected = module(torch.from_numpy(patch)).numpy()
    with open_cpu_generator(found, threads=1) as generator:
        made = generator(patch)
    assert made.shape == expected.shape
    return float(np.linalg.norm(made - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("how", ["opset 11", "dynamo"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_pytorch_does(name: str, how: str, tmp_path: Path) -> None:
    module = network(name)
    written = write_down(read_onnx(exported(module, tmp_path / "g.onnx", how)), None)
    assert written.network.graph.patch is None
    assert distance(module, written.network, patch_of(EXTENT, EXTENT, EXTENT)) < NEAR
    assert distance(module, written.network, patch_of(8, 24, 16)) < NEAR


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("BasicUNet", "opset 13 fixed"),
        ("SegResNet", "opset 13 fixed"),
        ("all kinds of layers", "opset 13 fixed"),
        ("all kinds of layers", "dynamo fixed"),
    ],
)
def test_a_file_of_one_patch_is_of_that_patch(name: str, how: str, tmp_path: Path) -> None:
    module = network(name)
    written = write_down(read_onnx(exported(module, tmp_path / "g.onnx", how)), None)
    assert written.network.graph.patch == (EXTENT, EXTENT, EXTENT)
    assert distance(module, written.network, patch_of(EXTENT, EXTENT, EXTENT)) < NEAR
    with pytest.raises(PatchShapeError, match="patches of 16x16x16 alone"):
        written.network.graph.check_patch((24, 16, 16))


@pytest.mark.parametrize(
    "name",
    [
        "activations by part",
        "constant padding",
        "dilation",
        "elu after the sum",
        "epsilon",
        "added input of several channels",
        "group norm without scale",
        "group norm of single channels",
        "inner padding",
        "leaky relu",
        "padding behind sampling",
        "sigmoid",
        "strides of 1, 2, 2, sampled",
        "U-Net, constant padding",
        "U-Net, group norm",
    ],
)
def test_a_generator_of_the_family_is_written_down_layer_by_layer(
    name: str, tmp_path: Path
) -> None:
    spec, module = FEATURES[name], Feature(name)
    path = exported(module, tmp_path / "g.onnx", "opset 17", EXTENT, spec.in_channels)
    found = write_down(read_onnx(path), None).network
    patch = patch_of(EXTENT, EXTENT, EXTENT, channels=spec.in_channels)
    assert distance(module, found, patch) < NEAR
    meant, made = ([_kind(node.layer) for node in g.nodes] for g in (build(spec), found.graph))
    assert made == meant


def _kind(layer: Layer) -> str:
    """A norm of groups of one channel is an instance norm."""
    is_single = isinstance(layer, GroupNorm) and layer.groups == layer.channels
    return "instance_norm" if is_single else kind_of(layer)


@pytest.fixture(scope="module", params=NETWORKS)
def module_and_network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Network]:
    module = network(request.param)
    path = exported(module, tmp_path_factory.mktemp("network") / "g.onnx")
    return module, write_down(read_onnx(path), None).network


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_the_compiler_computes_a_network(
    precision: Precision, module_and_network: tuple[Any, Network]
) -> None:
    module, found = module_and_network
    layout = Layout((16, 8, 8), 1, precision, split_fp16=precision == "fp32")
    patch = patch_of(16, 8, 8)
    made = interpret(lower(found, layout, H200), patch, 1)
    with torch.no_grad():
        expected = module(torch.from_numpy(patch)).numpy()
    assert np.linalg.norm(made - expected) <= 2e-5 * np.linalg.norm(expected)
