"""Trials take no more of a card than they may, and see NaN where they may not look."""

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.gpu_on_cpu.memory import array_at, used_buffer
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.compiler.memory.trials import GUARD, bytes_of_blocks
from cuda_cyclegan.engine.cuda import trial_memory
from cuda_cyclegan.engine.cuda.trial_memory import TrialMemory
from cuda_cyclegan.engine.errors import DeviceMemoryError

SIZES = {"source": 1000, "empty": 0, "target": 8}


def test_blocks_lie_between_nan(monkeypatch):
    taken = []

    def buffer(size):
        taken.append(size)
        return used_buffer(size)

    monkeypatch.setattr(trial_memory, "DeviceBuffer", buffer)
    memory = TrialMemory(bytes_of_blocks(SIZES))
    with memory.opened(Stream(), SIZES) as places:
        assert places.keys() == SIZES.keys()
        assert taken == [memory.bytes]
        for name, size in SIZES.items():
            around = array_at(places[name] - GUARD, np.uint8, size + 2 * GUARD)
            assert (around == 0xFF).all()
            around[GUARD : GUARD + size] = 0


def test_what_is_more_than_may_be_taken_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(trial_memory, "DeviceBuffer", None)
    memory = TrialMemory(bytes_of_blocks(SIZES) - 1)
    with (
        pytest.raises(DeviceMemoryError, match="larger setting vram-limit") as refused,
        memory.opened(Stream(), SIZES),
    ):
        pass
    assert refused.value.wanted == memory.bytes + 1
