"""Any imported transposed convolution, in a GPU's programs for patches and for volumes."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.lazy_modules import torch
from support.onnx_judge import written_down
from support.program_on_cpu import run_program
from support.tiers import WITH_FIXTURES, examples
from support.transposed_convolutions import BEYOND_STRIDES, Transposed, transposed_convolutions
from support.volume_on_cpu import grid_for, volume_on_cpu

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Conv, Step
from cuda_cyclegan.engine.compiler.tensors import TensorView
from cuda_cyclegan.engine.network.layers import FloatArray, triple
from cuda_cyclegan.engine.whole_volume import volume_refusal

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.usefixtures("torch"),
]


def check(case: Transposed, made: FloatArray, steps: Sequence[Step]) -> None:
    right = case.right(torch)
    assert np.linalg.norm(made - right) <= 1e-5 * max(1, np.linalg.norm(right))
    for step in steps:
        is_planned = isinstance(step, Conv) and isinstance(step.output, TensorView)
        if is_planned and step.shape.transposed:
            check_gradient(step)


def check_gradient(step: Conv) -> None:
    """Check that cuDNN's forward convolution leads from the target to just the source."""
    shape = step.shape
    sizes = zip(
        *(shape.target_extents, shape.source_extents, shape.kernel, shape.stride, shape.dilation),
        *(shape.before, shape.after),
        strict=True,
    )
    for target, source, taps, stride, dilation, before, after in sizes:
        reach = dilation * (taps - 1) + 1
        assert (target + before + after - reach) // stride + 1 == source


@settings(max_examples=examples(100, 3), suppress_health_check=WITH_FIXTURES)
@given(transposed_convolutions())
@example(BEYOND_STRIDES)
def test_in_patches(tmp_path: Path, case: Transposed) -> None:
    network = written_down(case.proto(), tmp_path, case.patch).network
    lowered = lower(network, Layout(case.patch, 1, "fp32"), H200)
    made = run_program(lowered, case.patch_values(), network.graph.out_channels)
    check(case, made, lowered.steps)


@settings(max_examples=examples(100, 3), suppress_health_check=WITH_FIXTURES)
@given(transposed_convolutions(), st.integers(1, 3), st.sampled_from([0, 1 << 30]))
@example(BEYOND_STRIDES, 1, 0)
def test_in_blocks(tmp_path: Path, case: Transposed, strides: int, undivided: int) -> None:
    network = written_down(case.proto(), tmp_path, case.patch).network
    assert volume_refusal(network.graph) is None
    block = triple(strides * step for step in network.graph.stride)
    grid = grid_for(network.graph, case.patch, block)
    volume = volume_on_cpu(network, grid, "fp32", undivided=undivided)
    [patch] = case.patch_values()
    check(case, volume(patch)[None], volume.program.lowered.steps)
