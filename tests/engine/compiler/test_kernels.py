"""The table of kernels names, for a convolution, the same kernel as the rules it replaced."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import examples

from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.compiler.kernels import KERNELS, TENSOR_CORE_KERNELS, own_kernel

_ONE = (1, 1, 1)
_PLAIN = Convolution(1, (4, 4, 4), 32, (4, 4, 4), 32, (3, 3, 3), _ONE, _ONE, _ONE, "fp32")


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
    assert own_kernel(shape).source == expected


def test_kernels_for_tensor_cores_have_no_plain_convolution_among_them() -> None:
    assert not any(KERNELS[source].fits for source in TENSOR_CORE_KERNELS)
    of_chip = {source for source, spec in KERNELS.items() if spec.needs_wgmma}
    assert of_chip < TENSOR_CORE_KERNELS
