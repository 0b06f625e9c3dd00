"""All variants of launching an own kernel come to the same bits on the card."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler.launches.variants import launch_variants
from cuda_cyclegan.engine.compiler.lowered import Lowered
from cuda_cyclegan.engine.compiler.lowering.lowering import lower
from cuda_cyclegan.engine.compiler.memory.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.steps import Convolve
from cuda_cyclegan.engine.network.architectures import (
    Architecture,
    Blur,
    ResNetSpec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.options import Precision

if TYPE_CHECKING:
    from cuda_cyclegan.engine.cuda.card import OpenCard

CASES: dict[str, tuple[Architecture, Precision]] = {
    "ResNet": (ResNetSpec(1, 1, 64, 1), "fp16"),
    "ResNet on split fp16": (ResNetSpec(1, 1, 64, 1), "fp32"),
    "U-Net": (UNetSpec(1, 1, 32, 5), "bf16"),
    "anti-aliased": (ResNetSpec(1, 1, 32, 1, upsampling="trilinear", blur=Blur()), "fp16"),
}


@pytest.mark.parametrize("name", CASES)
def test_all_ways_come_to_the_same_bits(name: str) -> None:
    from cuda_cyclegan.engine.cuda.card import open_card

    architecture, precision = CASES[name]
    with open_card(0, precision, None) as card:
        wanted = ProgramRequest((64, 96, 96), 2, precision, card.context.card)
        network = random_network(build(architecture), 0)
        lowered = lower(network, next(wanted.layouts()), wanted.card)
        wrong = dict(wrong_ways(lowered, card))
    assert wrong
    assert set(wrong.values()) == {0}


def wrong_ways(lowered: Lowered, card: "OpenCard") -> Iterator[tuple[tuple[str, str], int]]:
    """Wrong runs of each variant of each own launch."""
    from cuda_cyclegan.engine.cuda.launch_search import _open_bench
    from cuda_cyclegan.engine.cuda.trial_memory import TrialMemory

    seen: set[str] = set()
    for step in lowered.steps:
        if isinstance(step, Convolve) and not step.shape.split_fp16:
            continue
        variants = launch_variants(step, lowered.card)
        if variants is None or variants.key in seen:
            continue
        seen.add(variants.key)
        memory = TrialMemory(1 << 34)
        with _open_bench(step, lowered, card.kernels, card.stream, memory) as bench:
            for name, variant in variants.steps.items():
                yield (variants.key, name), bench.wrong_runs(variant)
