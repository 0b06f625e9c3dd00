"""Any transposed convolution of ONNX and PyTorch computes what its definition says."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.lazy_modules import nn, torch
from support.onnx_files import written
from support.tiers import WITH_FIXTURES, examples
from support.torch_exports import exported
from support.transposed_convolutions import (
    BEYOND_STRIDES,
    Along,
    Transposed,
    transposed_convolutions,
)
from support.volumes_at_once import at_once

from cuda_cyclegan.engine.cpu import slabs
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.importing.onnx_file import read_onnx
from cuda_cyclegan.engine.importing.operators.converter import convert_graph
from cuda_cyclegan.engine.importing.torch_export.exported_graph import read_exported
from cuda_cyclegan.engine.network.graph import Network, graph_out_of_bounds
from cuda_cyclegan.engine.network.layers import FloatArray

CUT_INTO = Transposed((Along(3, 2, 1, 1, 2, 1), Along(2, 1, 5, 5, 0, 4), Along(1, 3, 2, 0, 0, 2)))


def error_of(made: FloatArray, right: FloatArray) -> float:
    assert made.shape == right.shape
    return float(np.abs(made - right).max() / max(1, np.abs(right).max()))


def imported(case: Transposed, folder: Path) -> Network:
    found = convert_graph(read_onnx(written(case.proto(), folder / "g.onnx")), case.patch)
    assert not found.reason
    assert not list(graph_out_of_bounds(found.network.graph))
    return found.network


@settings(max_examples=examples(300), suppress_health_check=WITH_FIXTURES)
@given(transposed_convolutions())
@example(BEYOND_STRIDES)
@example(CUT_INTO)
def test_in_patches(tmp_path: Path, case: Transposed) -> None:
    with open_cpu_generator(imported(case, tmp_path), threads=1) as generator:
        made = generator(case.patch_values())
    assert error_of(made, case.right(torch)) < 1e-5


@settings(max_examples=examples(300), suppress_health_check=WITH_FIXTURES)
@given(transposed_convolutions(), st.sampled_from([1, 1 << 10]))
@example(BEYOND_STRIDES, 1)
@example(CUT_INTO, 1)
def test_in_slabs(tmp_path: Path, case: Transposed, slab_bytes: int) -> None:
    [patch] = case.patch_values()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(slabs, "_SLAB_BYTES", slab_bytes)
        made = at_once(imported(case, tmp_path), patch, threads=1)
    assert error_of(made[None], case.right(torch)) < 1e-5


def test_an_archive_of_pytorch(tmp_path: Path) -> None:
    """Output paddings that PyTorch takes because the dilation is larger than the stride."""
    layers = nn.Sequential(
        nn.Conv3d(1, 4, (2, 1, 1), (2, 1, 1)),
        nn.ConvTranspose3d(4, 1, (2, 1, 2), (2, 1, 1), (3, 1, 2), (2, 2, 1), 1, True, (5, 3, 3)),
    )
    path = exported(layers, tmp_path / "g.pt2")
    network = convert_graph(read_exported(path), None).network
    patch = np.random.default_rng(0).normal(size=(1, 1, 8, 6, 10)).astype(np.float32)
    with open_cpu_generator(network, threads=1) as generator, torch.no_grad():
        right = layers.double()(torch.tensor(patch).double()).numpy()
        assert error_of(generator(patch), right) < 1e-6
