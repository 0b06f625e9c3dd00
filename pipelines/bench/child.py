"""A process for one measurement, which may crash, hang or fill the card without harm to others."""

import os
import tempfile
from functools import partial
from typing import IO

from ...engine.errors import EngineError
from ..execution.channel import Channel
from ..execution.launch import WorkerProcess, ending, launch
from .rivals import CudnnTask, FailedRival, RivalResult, RivalTask

_LONGEST_REASON = 200


def in_child(task: RivalTask, seconds: float) -> RivalResult:
    """Run a task in a process of its own; what does not end well within `seconds` has failed."""
    with tempfile.TemporaryFile() as output:
        process: WorkerProcess[object, RivalResult]
        process = launch(partial(_measure, task), _environment(task), output)
        try:
            return process.channel.receive(seconds)
        except TimeoutError:
            return FailedRival(task.name, f"took longer than {seconds:g} s")
        except EOFError:
            return FailedRival(task.name, _death(process.reap(), output))
        finally:
            process.kill()
            process.reap()


def _environment(task: RivalTask) -> dict[str, str]:
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
    return f"its process ended ({ending(status)})" + (f": {last[:_LONGEST_REASON]}" if last else "")


def _measure(task: RivalTask, channel: Channel[RivalResult, object]) -> None:
    """What the process does."""
    channel.send(_done(task))


def _done(task: RivalTask) -> RivalResult:
    try:
        return task.run()
    except EngineError as error:
        return FailedRival(task.name, str(error))
    except Exception as error:  # the boundary: whatever a library raises ends this way alone
        said = next(iter(str(error).splitlines()), "")
        return FailedRival(task.name, f"{type(error).__name__}: {said[:_LONGEST_REASON]}")
