"""Start of a worker process, its connection to the supervisor, and its exit status."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, TypeAlias, TypeVar

from ...engine.startup import early_gpu_context, isolated_device
from ...io.formats.nibabel_alone import import_nibabel_alone
from ..host.processes import collect_seldom, kill_session, start_with, unnamed_file
from ..host.signals import STOP_SIGNALS
from ..host.thread_limits import NO_MORE_THREADS, is_out_of_threads

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Order = TypeVar("Order")
News = TypeVar("News")


class Channel(Generic[Sent, Received]):
    """One end of the connection between a supervisor and one of its worker processes.

    Any thread of a process may send; each message is a frozen dataclass.
    """

    def __init__(self, connection: "Connection[Sent, Received]") -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Sent) -> None:
        """Send a message; it is lost if the other end is gone."""
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def receive(self, seconds: float | None = None) -> Received:
        """Return the next message from the other end.

        Raises EOFError when the other end is gone, and TimeoutError after `seconds` without one.
        """
        if not self._connection.poll(seconds):
            raise TimeoutError
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def fileno(self) -> int:
        """Return the descriptor that becomes ready when a message has come or the peer is gone."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


Target: TypeAlias = Callable[[Channel[News, Order]], int | None]
"""Function that a worker runs with its end of the connection; picklable.

It returns an exit status, or None for 0.
"""


def process_names(devices: Iterable[str]) -> tuple[str, ...]:
    """Return a name for the process of each device: the device's, numbered from the second on."""
    counts = Counter[str]()
    names: list[str] = []
    for device in devices:
        counts[device] += 1
        names.append(device if counts[device] == 1 else f"{device} ({counts[device]})")
    return tuple(names)


def device_of(process: str) -> str:
    """Return the name of the device of a process that was named by `process_names`."""
    return process.partition(" ")[0]


_START = "from cuda_cyclegan.pipelines.run.process import main; main()"


@dataclass(frozen=True, slots=True, eq=False)
class WorkerProcess(Generic[Order, News]):
    """Worker process that was started, and the supervisor's end of the connection to it.

    channel: that end.
    """

    channel: Channel[Order, News]
    process: "subprocess.Popen[bytes]"

    def reap(self) -> int:
        """Wait for its end; return the exit status, or a negative signal number."""
        self.channel.close()
        return self.process.wait()

    def let_go(self) -> None:
        """Close the connection and let a thread wait for the end of the process."""
        self.channel.close()
        threading.Thread(target=self.process.wait, name="ending", daemon=True).start()

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        kill_session(self.process)


def launch(
    target: Target[News, Order],
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    device: str = "cpu",
) -> WorkerProcess[Order, News]:
    """Start a new process of this interpreter, which imports nothing from the working directory,
    to run a target.

    The process has a session of its own, which no signal of a terminal reaches. environment:
    replaces this process's. output: replaces this process's standard output and error. device: if
    that is a GPU, the only one that the process sees, and whose context it creates while it loads
    its libraries. Raises PipelineError if the system cannot start it.
    """
    alone, variables = isolated_device(device)
    if variables:
        environment = {**(os.environ if environment is None else environment), **variables}
    ours, theirs = Pipe()
    descriptor = theirs.fileno()
    with unnamed_file() as orders:  # through a pipe it would wait for the process to read it
        for order in (sys.path, alone, target):
            pickle.dump(order, orders)
        orders.seek(0)
        command = [sys.executable, "-P", "-c", _START, str(descriptor)]
        process = start_with(descriptor, command, orders, output, environment)
    theirs.close()
    connection: Any = ours
    return WorkerProcess(Channel(connection), process)


def ending(status: int) -> str:
    """Describe an exit status in words."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def main() -> None:
    """Run the worker process.

    Its argument is the descriptor of the connection, and standard input is what `launch` wrote.
    The process ignores stop signals, which a service manager sends to every process: the
    supervisor stops its workers in order, or is gone.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    collect_seldom()
    connection: Any = Connection(int(sys.argv[1]))
    sys.path[:] = pickle.load(sys.stdin.buffer)
    try:
        with early_gpu_context(pickle.load(sys.stdin.buffer)):
            import_nibabel_alone()
            target: Target[Any, Any] = pickle.load(sys.stdin.buffer)
            status = target(Channel(connection))
    except Exception as error:
        if not is_out_of_threads(error):
            raise
        print(f"Error: {NO_MORE_THREADS}", file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)
