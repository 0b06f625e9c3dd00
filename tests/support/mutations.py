"""Files of strangers: sound ones, changed by a seed."""

import os
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from random import Random

_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_REALS = (0.0, -1.0, 1e-40, 1e38, float("nan"), float("inf"), -float("inf"), -352.0, 352.5, 1e18)
MOST_SECONDS = 5.0


def mutated(content: bytes, seed: int, start: int = 0, end: int | None = None) -> bytes:
    """The content with one to six changes between two offsets, which the seed alone decides."""
    random = Random(seed)
    changed = bytearray(content)
    rest = len(content) - (len(content) if end is None else end)
    for _ in range(random.randint(1, 6)):
        at = random.randrange(start, len(changed) - rest)
        match random.randrange(8):
            case 0:
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                changed[at] = random.randrange(256)
            case 2:
                number = random.choice(_NUMBERS) & 0xFFFF
                changed[at : at + 2] = struct.pack(random.choice("<>") + "H", number)
            case 3:
                number = random.choice(_NUMBERS)
                changed[at : at + 4] = struct.pack(random.choice("<>") + "I", number)
            case 4:
                del changed[at : min(at + random.randrange(1, 9), len(changed) - rest)]
            case 5:
                form, aligned = random.choice("<<<>") + random.choice("fffd"), at - at % 4
                real = struct.pack(form, random.choice(_REALS))
                changed[aligned : aligned + len(real)] = real
            case 6:
                changed[at:at] = changed[at : at + random.randrange(1, 40)]
            case _:
                end_of_it = at + random.randrange(1, 9)
                changed[at:end_of_it] = random.randbytes(end_of_it - at)
    return bytes(changed)


@contextmanager
def within_seconds(what: object) -> Generator[None]:
    """No more processor time than MOST_SECONDS for the block, its child processes included."""
    begun = time.process_time(), _of_children()
    yield
    took = time.process_time() - begun[0] + _of_children() - begun[1]
    assert took < MOST_SECONDS, f"{what} took {took:.1f} s"


def _of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system
