"""Kernel that the table returns for a convolution."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.described_gpus import H200
from support.kernel_samples import SAMPLES
from support.tiers import examples

from cuda_cyclegan.engine.compiler.kernels.spec import ConvKernel
from cuda_cyclegan.engine.compiler.kernels.table import (
    KERNELS,
    TENSOR_CORE_KERNELS,
    custom_kernel,
    fitting_kernel,
    kernel_of,
)
from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.steps import ConvShape

_ONE = (1, 1, 1)
_PLAIN = ConvShape(1, (4, 4, 4), 32, (4, 4, 4), 32, (3, 3, 3), _ONE, _ONE, _ONE, "fp32")
_CONVOLUTIONS = {name: spec for name, spec in KERNELS.items() if isinstance(spec, ConvKernel)}


@settings(max_examples=examples(100), deadline=None)
@given(st.booleans(), st.sampled_from([1, 2, 32]), st.sampled_from([32, 64]), st.booleans())
def test_split_numbers_come_first_and_single_channels_next(
    split_fp16: bool, groups: int, outputs: int, transposed: bool
) -> None:
    shape = replace(
        _PLAIN,
        split_fp16=split_fp16 and groups == 1,
        groups=groups,
        target_channels=outputs,
        transposed=transposed,
    )
    if shape.split_fp16:
        expected = "convolve_split_fp16"
    else:
        expected = "convolve_depthwise" if groups == outputs == 32 else "convolve"
    assert custom_kernel(shape).source == expected


def test_each_kernel_computes_what_no_plan_does_or_what_one_may_do() -> None:
    for name, spec in _CONVOLUTIONS.items():
        assert (spec.fits is None) == (spec.pack is None) == bool(spec.replaces_plan), name
        assert (spec.fits is not None) or not spec.needs_tensor_cores
    of_chip = {source for source, spec in KERNELS.items() if spec.needs_wgmma}
    assert of_chip < TENSOR_CORE_KERNELS


def test_each_kernel_of_a_convolution_has_samples() -> None:
    assert SAMPLES.keys() == _CONVOLUTIONS.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_kernel_fits_its_samples(name: str) -> None:
    for conv in SAMPLES[name]:
        spec = kernel_of(conv)
        assert spec.source == name
        assert spec.fits is None or spec.fits(replace(conv, weight=""), H200, False)
        assert conv.statistics is None or spec.measures


@pytest.mark.parametrize("name", sorted(TENSOR_CORE_KERNELS))
def test_a_kernel_for_16_bits_fits_no_program_of_floats(name: str) -> None:
    layout = Layout((4, 4, 4), 1, "fp16", matrix_kernels=True, wgmma=True)
    for conv in SAMPLES[name]:
        assert fitting_kernel(conv, layout, H200)
        found = fitting_kernel(conv, replace(layout, precision="fp32"), H200)
        assert found is None or "fp32" in found.precisions
