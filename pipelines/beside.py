"""Work beside other work on the same study."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

Made = TypeVar("Made")


@contextmanager
def running_beside(work: Callable[[], Made]) -> Generator[Callable[[], Made]]:
    """Do `work` in a thread of its own during the block, which may ask for what came of it.

    The thread is a daemon: who cannot wait for a disk that does not answer may leave.
    """
    made: Future[Made] = Future()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    thread = threading.Thread(target=run, name="beside", daemon=True)
    thread.start()
    try:
        yield made.result
    finally:
        thread.join()
