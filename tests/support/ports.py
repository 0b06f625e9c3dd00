"""Ports of this machine that only the test has that reserved them."""

import socket
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def reserved_port(address: str = "127.0.0.1") -> Generator[int]:
    """A port at which nothing answers until somebody listens there, as all may who reuse addresses.

    Nobody else is given it meanwhile, not even as the near end of a connection.
    """
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address, 0))
        port: int = taken.getsockname()[1]
        yield port
