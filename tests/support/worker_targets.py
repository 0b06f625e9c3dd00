"""Targets of worker processes in tests, found there by name."""

import os
import signal
import time
from typing import Any

LONG = 600.0  # seconds; only a process that nobody ends lives so long


def end(status: int, channel: Any) -> int:
    """Tell who this is, and end with a status or, below zero, by a signal."""
    channel.send(os.getpid())
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


def echo(channel: Any) -> None:
    """Say everything back that is heard."""
    while True:
        channel.send(channel.receive())


def be_signalled(channel: Any) -> None:
    """Live on after the signals that a service manager sends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    channel.send("alive")


def tell_variable(name: str, channel: Any) -> None:
    """Tell an environment variable."""
    channel.send(os.environ.get(name))


def hang(channel: Any) -> None:
    """Tell of a process that was started, and hang with it."""
    child = os.fork()
    if child:
        channel.send(child)
    time.sleep(LONG)


def wait_for_end(channel: Any) -> None:
    """Say hello, and end after the first order."""
    channel.send("hello")
    channel.receive()
