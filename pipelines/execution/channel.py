"""The connection between a supervisor and one of its worker processes."""

import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Channel(Generic[Sent, Received]):
    """One end of it, for all threads of a process; each message is a frozen dataclass."""

    def __init__(self, connection: "Connection[Sent, Received]") -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Sent) -> None:
        """Tell the other end something; what nobody is there to hear is lost."""
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def receive(self, seconds: float | None = None) -> Received:
        """What the other end says next. Raises EOFError when it is gone, TimeoutError before."""
        if not self._connection.poll(seconds):
            raise TimeoutError
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def fileno(self) -> int:
        """What becomes ready when the other end said something, or is gone."""
        return self._connection.fileno()

    def close(self) -> None:
        """Say and hear nothing more."""
        self._connection.close()
