"""Messages to systemd, which started this program as a service of type `notify`.

The protocol is that of sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names. Without it,
nothing is sent.
"""

import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress


def notify(state: str) -> None:
    """Send a state such as READY=1; a lost message does no harm."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)


@contextmanager
def service_of_manager(post: Callable[[Callable[[], None]], None]) -> Generator[None]:
    """Report the block as a running service, and its main loop as alive as long as it is.

    post: runs an action in the main loop, soon. If the loop is stuck, systemd gets no sign of life
    and restarts the service.
    """
    notify("READY=1")
    ended = threading.Event()
    if interval := _watchdog_seconds():

        def report() -> None:
            while not ended.wait(interval / 3):
                post(lambda: notify("WATCHDOG=1"))

        threading.Thread(target=report, name="watchdog", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        notify("STOPPING=1")


def _watchdog_seconds() -> float | None:
    """Return the seconds after which systemd misses a sign of life, or None if it expects none."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    is_ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(microseconds) / 1e6 if microseconds.isdecimal() and is_ours else None
