"""Constants of a program that are encoded while its layers are tuned."""

import pytest
from support.described_gpus import H200
from support.gpu_networks import random_network

from cuda_cyclegan.engine.compiler import lowered as module
from cuda_cyclegan.engine.compiler.lowered import EarlyConstants, Layout
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build

NETWORK = random_network(build(ResNetSpec(1, 1, 8, 1)), 0)
LOWERED = lower(NETWORK, Layout((16, 16, 16), 1, "fp16"), H200)
OTHER = lower(NETWORK, Layout((16, 16, 16), 1, "fp32"), H200)


@pytest.fixture
def encoded_later(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of constants that are encoded only when they are requested."""
    names: list[str] = []
    usual = module.Lowered.encoded_constants

    def noted(lowered, without=()):
        for name, content in usual(lowered, without):
            names.append(name)
            yield name, content

    monkeypatch.setattr(module.Lowered, "encoded_constants", noted)
    return names


def test_all_constants_are_encoded_early(encoded_later):
    early, wanted = EarlyConstants(), dict(LOWERED.encoded_constants())
    encoded_later.clear()
    early.begin(LOWERED)
    assert dict(early.encoded(LOWERED)) == wanted
    assert not encoded_later


def test_constants_of_another_program_are_not_taken(encoded_later):
    early, wanted = EarlyConstants(), dict(OTHER.encoded_constants())
    early.begin(LOWERED)
    assert dict(early.encoded(OTHER)) == wanted
    assert set(encoded_later) == wanted.keys()
    assert dict(EarlyConstants().encoded(OTHER)) == wanted


def test_the_host_holds_no_more_than_allowed(encoded_later, monkeypatch):
    early, wanted = EarlyConstants(), dict(LOWERED.encoded_constants())
    encoded_later.clear()
    most = sum(map(len, wanted.values())) // 2
    monkeypatch.setattr(module, "_ENCODED_EARLY", most)
    early.begin(LOWERED)
    assert dict(early.encoded(LOWERED)) == wanted
    held = wanted.keys() - set(encoded_later)
    assert held
    assert sum(len(wanted[name]) for name in held) <= most
