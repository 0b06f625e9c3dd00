"""What to do when a value leaves the range of a precision: the same work in a wider one."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from .cpu import Generator
from .devices import Precision
from .errors import PrecisionOverflowError

T = TypeVar("T")

WIDER: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp32", "tf32": "fp32"}
"""The precision to go on with where a value left the range of another."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came out, in which precision, and a line for each time that it was begun again."""

    result: T
    precision: Precision
    notes: tuple[str, ...]


def with_recovery(
    open_generator: Callable[[Precision], AbstractContextManager[Generator]],
    precision: Precision,
    work: Callable[[Generator], T],
) -> Outcome[T]:
    """Do work that can be repeated from the start, such as one study.

    After an overflow it is done again in the next wider precision; any other error passes through.
    """
    notes: list[str] = []
    while True:
        try:
            with open_generator(precision) as generator:
                return Outcome(work(generator), precision, tuple(notes))
        except PrecisionOverflowError as error:
            if precision not in WIDER:
                raise
            notes.append(f"{error} It was done again in {WIDER[precision]}.")
            precision = WIDER[precision]
