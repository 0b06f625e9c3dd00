"""Variants of cutting a launch into blocks: those that come to the same bits, on any card."""

from dataclasses import replace
from math import prod

import pytest
from support.described_cards import CARDS, H200
from support.launch_geometry import SPECS, lowered

from cuda_cyclegan.engine.compiler.launches.steps import launches
from cuda_cyclegan.engine.compiler.launches.variants import launch_variants, variant_name
from cuda_cyclegan.engine.compiler.memory.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.steps import (
    Convolve,
    ConvolvePatches,
    ConvTransposeToPatches,
    Normalise,
    Pointwise,
    Statistics,
)

PATCH = (128, 128, 128)


def at(_name: str) -> int:
    return 256


def steps_of(name, card=H200, precision="fp16"):
    return lowered(name, ProgramRequest(PATCH, 1, precision, card)).steps


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("name", SPECS)
def test_all_ways_keep_to_the_limits_of_a_card_and_the_first_is_as_usual(card, name):
    for step in steps_of(name, card, "fp32" if card.capability < (8, 0) else "fp16"):
        variants = launch_variants(step, card)
        if variants is None:
            continue
        assert 1 < len(variants.steps) <= 8
        assert variants.steps[variants.default] == step
        [default] = launches(step, at, card)
        for variant in variants.steps.values():
            [launch] = launches(variant, at, card)
            assert (launch.source, launch.kernel) == (default.source, default.kernel) or isinstance(
                step, Convolve
            )
            assert 0 < launch.grid[0] < 2**31
            assert all(0 < size < 2**16 for size in launch.grid[1:])
            assert 0 < prod(launch.block) <= 320
            assert launch.shared <= card.shared_per_block


def test_sums_whose_order_follows_the_blocks_have_one_way():
    steps = [step for name in SPECS for step in steps_of(name)]
    sums = [step for step in steps if isinstance(step, Statistics | Normalise | ConvolvePatches)]
    assert sums
    assert all(launch_variants(step, H200) is None for step in sums)


def test_passes_last_layers_and_own_convolutions_have_several():
    steps = [step for name in SPECS for step in (*steps_of(name), *steps_of(name, H200, "fp32"))]
    for kind in (Pointwise, ConvTransposeToPatches):
        assert all(launch_variants(step, H200) for step in steps if isinstance(step, kind))
    own = [step for step in steps if isinstance(step, Convolve) and step.shape.split_fp16]
    wide = [step for step in own if step.shape.target_channels > 32]
    assert wide
    for step in wide:
        variants = launch_variants(step, H200)
        assert variants is not None
        kernels = {launches(variant, at, H200)[0].kernel for variant in variants.steps.values()}
        assert len(kernels) == len(variants.steps)


def test_equal_work_has_one_key_whatever_its_tensors_are_called():
    step = next(step for step in steps_of("ResNet 64") if isinstance(step, Pointwise))
    renamed = replace(step, target=replace(step.target, name="another"))
    wider = replace(step, extents=(126, 128, 128))
    keys = [launch_variants(one, H200).key for one in (step, renamed, wider)]
    assert keys[0] == keys[1] != keys[2]


def test_a_step_tells_what_was_chosen_of_its_launch_only_where_it_is_unusual():
    step = next(step for step in steps_of("ResNet 64") if isinstance(step, Pointwise))
    variants = launch_variants(step, H200)
    assert variant_name(variants.steps[variants.default]) == ""
    assert [variant_name(variant) for variant in variants.steps.values()][1:] == list(
        variants.steps
    )[1:]
