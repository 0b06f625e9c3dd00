"""How a worker process is started, how it and its supervisor talk, and how it ended."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Generic, TypeAlias, TypeVar

from ...engine.startup import early_card_context, seen_alone
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

    For all threads of a process; each message is a frozen dataclass.
    """

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


Target: TypeAlias = Callable[[Channel[News, Order]], int | None]
"""What a worker runs, given its end of the connection: an exit status, or None for 0. Picklable."""

_START = "from cuda_cyclegan.pipelines.run.process import main; main()"


@dataclass(frozen=True, slots=True, eq=False)
class WorkerProcess(Generic[Order, News]):
    """A process that was started, and our end of the connection to it.

    channel: that end.
    """

    channel: Channel[Order, News]
    process: "subprocess.Popen[bytes]"

    def reap(self) -> int:
        """Wait for its end; the exit status, or a signal's number below zero."""
        self.channel.close()
        return self.process.wait()

    def let_go(self) -> None:
        """Have nothing more to do with it; a thread waits for its end."""
        self.channel.close()
        threading.Thread(target=self.process.wait, name="ending", daemon=True).start()

    def kill(self) -> None:
        """End it, and all that it has started."""
        kill_session(self.process)


def launch(
    target: Target[News, Order],
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    device: str = "cpu",
) -> WorkerProcess[Order, News]:
    """Start this interpreter anew, with nothing of the working directory, to run a target.

    It has a session of its own, which no signal of a terminal reaches. environment: instead of this
    process's. output: where it prints, instead of where this process does. device: if that is a
    card, the only one that the process sees, and of which it makes the context while it loads its
    libraries. Raises PipelineError where the system cannot do so.
    """
    alone, variables = seen_alone(device)
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
    """How a process ended, in words."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def main() -> None:
    """The process; its argument is the descriptor of the connection, its input what `launch` wrote.

    Signals are the supervisor's business, which stops its workers in order or is gone: those of a
    service manager, which reach every process, are passed over.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    collect_seldom()
    connection: Any = Connection(int(sys.argv[1]))
    sys.path[:] = pickle.load(sys.stdin.buffer)
    try:
        with early_card_context(pickle.load(sys.stdin.buffer)):
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
