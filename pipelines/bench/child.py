"""A process for one measurement, which may crash, hang or fill the card without harm to others."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, cast

from ...engine.errors import EngineError
from .rivals import CudnnTask, Fallen, Result, Task

_START = "from cuda_cyclegan.pipelines.bench.child import main; main()"
_LONGEST_REASON = 200


def in_child(task: Task, seconds: float) -> Result:
    """Run a task in a process of its own; what does not end well within `seconds` has fallen."""
    here, there = Pipe()
    with tempfile.TemporaryFile() as output, here:
        with there:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(there.fileno())],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(task),
                start_new_session=True,
            )
        try:
            return _answer(cast("Connection[object, Result]", here), task, seconds)
        except (EOFError, OSError):
            return Fallen(task.name, _death(process.wait(), output))
        finally:
            with suppress(ProcessLookupError):  # with all that it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answer(connection: "Connection[object, Result]", task: Task, seconds: float) -> Result:
    connection.send(sys.path)
    connection.send(task)
    if not connection.poll(seconds):
        return Fallen(task.name, f"took longer than {seconds:g} s")
    return connection.recv()


def _environment(task: Task) -> dict[str, str]:
    if not isinstance(task, CudnnTask):
        return dict(os.environ)
    inherited = os.environ.get("LD_LIBRARY_PATH")
    places = [str(task.folder.resolve()), *([inherited] if inherited else [])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(places)}


def _death(status: int, output: IO[bytes]) -> str:
    """Why a process ended without an answer, with the last that it printed."""
    output.seek(0)
    lines = output.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"its process ended by {name}" + (f": {last[:_LONGEST_REASON]}" if last else "")


def main() -> None:
    """The process; its argument is the descriptor of the connection."""
    connection = cast("Connection[Result, object]", Connection(int(sys.argv[1])))
    sys.path[:] = cast("list[str]", connection.recv())
    task = cast(Task, connection.recv())
    connection.send(_done(task))
    sys.stderr.flush()
    os._exit(0)


def _done(task: Task) -> Result:
    try:
        return task.run()
    except EngineError as error:
        return Fallen(task.name, str(error))
    except Exception as error:  # the boundary: whatever a library raises ends this way alone
        said = next(iter(str(error).splitlines()), "")
        return Fallen(task.name, f"{type(error).__name__}: {said[:_LONGEST_REASON]}")
