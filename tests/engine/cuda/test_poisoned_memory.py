"""Memory of the stand-in for a GPU, by which a read of what was never written shows."""

import numpy as np
from support.gpu_on_cpu.memory import NAN, Buffer, array_at

SIZE = (1 << 24) + 5000
"""Bytes that take two mappings, and end within a page."""


def test_memory_is_poison_until_it_is_written_and_again_once_it_is_freed() -> None:
    with Buffer(SIZE) as used, Buffer(SIZE) as other:
        content = used.array((SIZE,), np.uint8)
        assert (content == NAN).all()
        content[[0, 1 << 24, -1]] = 1
        assert np.count_nonzero(content == 1) == 3
        assert (other.array((SIZE,), np.uint8) == NAN).all()
    assert (array_at(used.address, np.uint8, SIZE) == NAN).all()
