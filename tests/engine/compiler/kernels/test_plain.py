"""Plain kernel with which others are compared; test_kernel_check.py runs it."""

from math import prod

import pytest
from support.kernel_samples import first_layer, last_layer, last_transposed, view

from cuda_cyclegan.engine.compiler.kernels.plain import of_one_patch, plain_counterpart
from cuda_cyclegan.engine.compiler.steps import Conv
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED, Tensor

EXTENTS, KERNEL, ORIGIN = (4, 6, 8), (3, 3, 3), (-1, -1, -1)
MAP = view("map", EXTENTS, 32, 3)
TARGET = Tensor("target", 3, EXTENTS, 32, "fp16")
CONVOLUTIONS: dict[str, Conv] = {
    "first": first_layer("convolve_patches", KERNEL, TARGET, EXTENTS, ORIGIN, "replicate"),
    "last": last_layer("convolve_to_patches", KERNEL, MAP, EXTENTS, ORIGIN, "reflect"),
    "transposed last": last_transposed((MAP,)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_comparison_of_one_patch_takes_a_third_of_three_patches_memory(name: str) -> None:
    whole, one = (
        plain_counterpart(CONVOLUTIONS[name]),
        plain_counterpart(of_one_patch(CONVOLUTIONS[name])),
    )
    of_patches = {key for key in whole.sizes if "weight" not in key}
    assert of_patches & {PATCHES, TRANSLATED}
    for key, size in whole.sizes.items():
        assert one.sizes[key] * (3 if key in of_patches else 1) == size
    assert one.shape.batch == 1
    assert prod(one.weight_shape) == prod(whole.weight_shape)
