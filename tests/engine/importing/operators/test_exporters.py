"""Networks that PyTorch's exporters wrote compute what PyTorch does."""

from pathlib import Path

import numpy as np
import pytest
from support import onnx_exports as stored
from support.described_gpus import H200
from support.export_recipes import followed, recipes
from support.onnx_exports import BLOCK, CUBE, LARGE, file_of, output_of, patch_of
from support.step_interpreter import interpret

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.network.architectures import build
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, GroupNorm, Layer, kind_of
from cuda_cyclegan.engine.options import Precision

NEAR = 1e-5
"""Relative L2."""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stored ONNX files."""
    folder = tmp_path_factory.mktemp("exports")
    stored.extract(folder)
    return folder


def imported(path: Path) -> Network:
    return convert_graph(read_onnx(path), None).network


def distance(found: Network, patch: FloatArray, expected: FloatArray) -> float:
    with open_cpu_generator(found, threads=1) as generator:
        made = generator(patch)
    assert made.shape == expected.shape
    return float(np.linalg.norm(made - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("exporter", ["opset 11", "dynamo"])
@pytest.mark.parametrize("name", stored.NETWORKS)
def test_a_network_computes_what_pytorch_does(name: str, exporter: str, exports: Path) -> None:
    found = imported(exports / file_of(name, exporter))
    assert found.graph.patch is None
    for extents in (CUBE, BLOCK):
        patch = patch_of(*extents)
        assert distance(found, patch, output_of(name, patch)) < NEAR


@pytest.mark.parametrize(("name", "exporter"), stored.FIXED)
def test_a_file_of_one_patch_is_of_that_patch(name: str, exporter: str, exports: Path) -> None:
    found = imported(exports / file_of(name, exporter))
    assert found.graph.patch == CUBE
    patch = patch_of(*CUBE)
    assert distance(found, patch, output_of(name, patch)) < NEAR
    with pytest.raises(PatchShapeError, match="for patches of 8x8x8 and does not accept 24x16x16"):
        found.graph.check_patch((24, 16, 16))


@pytest.mark.parametrize(("name", "recipe"), stored.RECIPES)
def test_a_recipe_of_the_guide_exports_tracked_norms(name: str, recipe: str, exports: Path) -> None:
    found = imported(exports / file_of(name, recipe))
    assert found.graph.patch is None
    patch = patch_of(*CUBE)
    assert distance(found, patch, output_of(name, patch)) < NEAR


def test_the_stored_files_are_made_by_the_recipes_of_the_guide() -> None:
    """A change of a recipe requires make.py in the folder of the stored files."""
    assert "\n".join(recipes()) == stored.FOLLOWED.read_text()


def test_statistics_of_the_patch_and_stored_ones_differ() -> None:
    patch = patch_of(*CUBE)
    stored_ones, of_patch = (output_of(name, patch) for name in (stored.STORED, stored.OF_PATCH))
    assert np.linalg.norm(stored_ones - of_patch) > 0.01 * np.linalg.norm(of_patch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recipe"), stored.RECIPES)
def test_a_recipe_works_with_the_pytorch_that_is_installed(
    name: str, recipe: str, tmp_path: Path
) -> None:
    pytest.importorskip("monai")
    pytest.importorskip("onnxscript")
    from support.onnx_networks import tracked

    older, newer, norms = recipes()
    steps = [*([norms] if name == stored.OF_PATCH else []), older if recipe == "older" else newer]
    live = imported(followed(tracked(), *steps, folder=tmp_path))
    patch = patch_of(*CUBE)
    assert distance(live, patch, output_of(name, patch)) < NEAR


@pytest.mark.parametrize("name", stored.FEATURES)
def test_a_generator_of_the_family_is_written_down_layer_by_layer(name: str, exports: Path) -> None:
    from support.network_features import FEATURES

    spec = FEATURES[name]
    found = imported(exports / file_of(name, "opset 17"))
    patch = patch_of(*LARGE, channels=spec.in_channels)
    assert distance(found, patch, output_of(name, patch)) < NEAR
    meant, made = ([_kind(node.layer) for node in g.nodes] for g in (build(spec), found.graph))
    assert made == meant


def _kind(layer: Layer) -> str:
    """A norm of groups of one channel is an instance norm."""
    is_single = isinstance(layer, GroupNorm) and layer.groups == layer.channels
    return "instance_norm" if is_single else kind_of(layer)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("name", stored.NETWORKS)
def test_the_compiler_computes_a_network(name: str, precision: Precision, exports: Path) -> None:
    found = imported(exports / file_of(name, "opset 17"))
    layout = Layout(BLOCK, 1, precision, split_fp16=precision == "fp32")
    patch = patch_of(*BLOCK)
    made, expected = interpret(lower(found, layout, H200), patch, 1), output_of(name, patch)
    assert np.linalg.norm(made - expected) <= 2e-5 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["opset 11", "dynamo"])
def test_an_exporter_writes_the_network_that_is_stored(
    exporter: str, exports: Path, tmp_path: Path
) -> None:
    """A new PyTorch may write otherwise: then make.py in the folder of the stored files is due."""
    pytest.importorskip("monai")
    pytest.importorskip("onnxscript")
    from support.onnx_networks import NETWORKS, exported, network, rounded

    assert tuple(NETWORKS) == stored.NETWORKS
    name = "all kinds of layers"
    live = imported(exported(rounded(network(name)), tmp_path / "g.onnx", exporter))
    kept = imported(exports / file_of(name, exporter))
    assert [node.layer for node in live.graph.nodes] == [node.layer for node in kept.graph.nodes]
    patch = patch_of(*CUBE)
    assert distance(live, patch, output_of(name, patch)) < NEAR
