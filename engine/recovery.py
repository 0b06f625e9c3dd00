"""What to do when a value leaves the range of a precision: the same work in a wider one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from .cpu import Generator
from .errors import PrecisionOverflowError
from .precision import Precision

T = TypeVar("T")
OpenGenerator: TypeAlias = Callable[[Precision], AbstractContextManager[Generator]]

WIDER: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp32", "tf32": "fp32"}
"""The precision to go on with where a value left the range of another."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came out, in which precision, and a line for each time that it was begun again."""

    result: T
    precision: Precision
    notes: tuple[str, ...]


def with_recovery(
    generator: Generator,
    precision: Precision,
    open_generator: OpenGenerator,
    work: Callable[[Generator], T],
) -> Outcome[T]:
    """Do work that can be repeated from the start, such as one study, with an open generator.

    After an overflow it is done again in the next wider precision, in a generator that is opened
    for it alone; any other error passes through.
    """
    notes: list[str] = []
    with ExitStack() as opened:
        while True:
            try:
                return Outcome(work(generator), precision, tuple(notes))
            except PrecisionOverflowError as error:
                if precision not in WIDER:
                    raise
                precision = WIDER[precision]
                notes.append(f"{error} It was done again in {precision}.")
            opened.close()
            generator = opened.enter_context(open_generator(precision))
