"""Parameters of a test of which any two values meet, instead of all of them."""

from collections.abc import Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


def each_pair(first: Sequence[A], second: Sequence[B], third: Sequence[C]) -> list[tuple[A, B, C]]:
    """Return all of the first with all of the second, and those of the third in turn.

    first, second: at least as many as third, so that all of the third meet each of them.
    """
    assert len(third) <= min(len(first), len(second))
    return [
        (one, other, third[(at + number) % len(third)])
        for at, one in enumerate(first)
        for number, other in enumerate(second)
    ]
