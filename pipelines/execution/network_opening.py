"""How a batch comes by its network: open for all its threads, and while studies are looked for."""

import threading
from collections.abc import Callable, Collection
from collections.abc import Generator as Iterated
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias

from ...engine.generator import AnyGenerator, SharedGenerator, shared_generator
from ...engine.options import Precision, Progress

OpenGenerator: TypeAlias = Callable[[Precision, Progress], AbstractContextManager[AnyGenerator]]
"""Opens the network in some precision, and tells of the search for plans."""
ShareGenerator: TypeAlias = Callable[[Progress], AbstractContextManager[SharedGenerator]]
"""Lets the threads of a batch have the network, which tells of the search for plans."""


def opened_for_a_batch(
    open_generator: OpenGenerator, precisions: Collection[Precision] = ()
) -> ShareGenerator:
    """The network of one batch only. precisions: which there are on the device."""
    return lambda progress: shared_generator(
        lambda precision: open_generator(precision, progress), precisions
    )


@contextmanager
def early_opening(open_generator: OpenGenerator, precision: Precision) -> Iterated["EarlyOpening"]:
    """Begin to open a network; what nobody has taken by the end is closed, if it is open by then.

    What is still opening is left to the end of the process.
    """
    opening = EarlyOpening(open_generator, precision)
    threading.Thread(target=opening.open, name="opening", daemon=True).start()
    try:
        yield opening
    finally:
        opening.close()


class EarlyOpening:
    """Stands where what opens a network stands: the first in its precision is given what opened."""

    def __init__(self, open_generator: OpenGenerator, precision: Precision) -> None:
        self._open_generator = open_generator
        self._precision: Precision = precision
        self._opened: Future[tuple[AnyGenerator, ExitStack]] = Future()
        self._is_taken = False
        self._hearing = threading.Lock()
        self._progress: Progress | None = None
        self._unheard_progress: list[tuple[str, float | None]] = []

    def open(self) -> None:
        """In a thread of its own."""
        try:
            with ExitStack() as opened:
                entered = opened.enter_context(self._open_generator(self._precision, self._hear))
                self._opened.set_result((entered, opened.pop_all()))
        except BaseException as error:
            self._opened.set_exception(error)

    def __call__(
        self, precision: Precision, progress: Progress
    ) -> AbstractContextManager[AnyGenerator]:
        """The network, open or soon to be. Raises what kept it from opening."""
        if self._is_taken or precision != self._precision:
            return self._open_generator(precision, progress)
        self._is_taken = True
        return self._taken(progress)

    @contextmanager
    def _taken(self, progress: Progress) -> Iterated[AnyGenerator]:
        with self._hearing:
            for told in self._unheard_progress:
                progress(*told)
            self._progress = progress
        generator, opened = self._opened.result()
        with opened:
            yield generator

    def _hear(self, what: str, share: float | None) -> None:
        with self._hearing:
            if self._progress is None:
                self._unheard_progress.append((what, share))
            else:
                self._progress(what, share)

    def close(self) -> None:
        """Close what was opened for nobody."""
        if self._is_taken or not self._opened.done() or self._opened.exception():
            return
        _, opened = self._opened.result()
        opened.close()
