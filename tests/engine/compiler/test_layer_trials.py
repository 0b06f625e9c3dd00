"""Trials of the outermost layers' steps; test_layer_check.py runs them."""

from math import prod

import pytest

from cuda_cyclegan.engine.compiler.layer_trials import TriedStep, of_one_patch, trial_of
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ActivatedView,
    ConvolvePatches,
    ConvolveToPatches,
    ConvTransposeToPatches,
)
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED, Tensor, TensorView

EXTENTS, KERNEL, ORIGIN = (4, 6, 8), (3, 3, 3), (-1, -1, -1)
VIEW = TensorView(Tensor("map", 3, EXTENTS, 32, "fp16"), EXTENTS)
STEPS: dict[str, TriedStep] = {
    "first": ConvolvePatches(
        "first", VIEW.tensor, 1, EXTENTS, ORIGIN, "replicate", KERNEL, "weight"
    ),
    "last": ConvolveToPatches(
        "last",
        ActivatedView(VIEW, None, IDENTITY),
        ORIGIN,
        "reflect",
        KERNEL,
        "weight",
        1,
        EXTENTS,
        None,
        IDENTITY,
    ),
    "transposed last": ConvTransposeToPatches(
        "last", (ActivatedView(VIEW, None, IDENTITY),), "weight", 1, (8, 12, 16), None, IDENTITY
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_trial_of_one_patch_takes_a_third_of_three_patches_memory(name: str) -> None:
    whole, one = trial_of(STEPS[name]), trial_of(of_one_patch(STEPS[name]))
    of_patches = {key for key in whole.sizes if "weight" not in key}
    assert of_patches & {PATCHES, TRANSLATED}
    for key, size in whole.sizes.items():
        assert one.sizes[key] * (3 if key in of_patches else 1) == size
    assert one.shape.batch == 1
    assert prod(one.kernel) == prod(whole.kernel)
