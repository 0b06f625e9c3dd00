"""What to do when a value leaves the range of a precision: the same work in a wider one."""

import threading
from collections import abc
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from .errors import PrecisionOverflowError
from .generator import AnyGenerator
from .options import Precision

T = TypeVar("T")
OpenInPrecision: TypeAlias = abc.Callable[[Precision], AbstractContextManager[AnyGenerator]]

WIDER: dict[Precision, Precision] = {"fp16": "bf16", "bf16": "fp32", "tf32": "fp32"}
"""The precision to go on with where a value left the range of another."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What came out, in which precision, and a line for each time that it was begun again.

    result: what came out. notes: those lines.
    """

    result: T
    precision: Precision
    notes: tuple[str, ...]


@contextmanager
def shared_generator(
    open_generator: OpenInPrecision, precisions: abc.Collection[Precision]
) -> abc.Generator["SharedGenerator"]:
    """The one owner of what is open on a device, until the end of the block.

    precisions: which there are on the device.
    """
    with ExitStack() as opened:
        yield SharedGenerator(open_generator, precisions, opened)


class SharedGenerator:
    """A network that is open in one precision at a time, so that a device holds one program.

    For threads to share, and for one batch after another: it stays open until work in another
    precision comes. That waits until all are done with what is open, closes it and opens its own;
    work that comes later waits for its turn. opened: closes what is open at last.
    """

    def __init__(
        self,
        open_generator: OpenInPrecision,
        precisions: abc.Collection[Precision],
        opened: ExitStack,
    ) -> None:
        self._open_generator = open_generator
        self._precisions = precisions
        self._opened = opened
        self._open: tuple[Precision, AnyGenerator] | None = None
        self._users = 0
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    def open(self, precision: Precision) -> str:
        """Have it open in a precision; what computes then."""
        with self._in_use(precision) as generator:
            return generator.device

    def do(self, work: abc.Callable[[AnyGenerator], T], precision: Precision) -> Outcome[T]:
        """Do work that can be repeated from the start, such as one study.

        After an overflow it is done again in the next wider precision; any other error passes
        through, and so does what keeps a generator from opening.
        """
        notes = list[str]()
        while True:
            try:
                with self._in_use(precision) as generator:
                    return Outcome(work(generator), precision, tuple(notes))
            except PrecisionOverflowError as error:
                wider = self._wider(precision)
                if wider is None:
                    raise PrecisionOverflowError.of(precision) from error
                notes.append(
                    f"A value left the range of {precision}. It was done again in {wider}."
                )
                precision = wider

    def _wider(self, precision: Precision) -> Precision | None:
        wider = WIDER.get(precision)
        while wider and wider not in self._precisions:
            wider = WIDER.get(wider)
        return wider

    @contextmanager
    def _in_use(self, precision: Precision) -> abc.Generator[AnyGenerator]:
        with self._turn, self._changed:
            if self._open is not None and self._open[0] == precision:
                generator = self._open[1]
            else:
                self._changed.wait_for(lambda: not self._users)
                generator = self._switch(precision)
            self._users += 1
        try:
            yield generator
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _switch(self, precision: Precision) -> AnyGenerator:
        self._open = None
        self._opened.close()
        generator = self._opened.enter_context(self._open_generator(precision))
        self._open = precision, generator
        return generator
