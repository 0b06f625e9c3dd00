"""Commands in processes that find their imports done, which are most of what a short command takes.

A server that has loaded what commands load forks, and what it forked is left to this process as a
child of its own, which gets signals, ends and is waited for as any other. What that starts in its
turn starts from nothing. A program that replaces a name does so in each module that took it over:
all are loaded before it runs. Run as a program, this file is the server.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("cli", "pipelines.jobs", "pipelines.node", "pipelines.translate", "engine.onnxruntime")
"""Of ours, with all their modules and what those import."""

LIBRARIES = ("onnxruntime", "rich.progress", "sqlalchemy.dialects.sqlite")
"""What our modules import when they use it, which most commands do."""

STREAMS = ("stdin", "stdout", "stderr")
READ_AT_START = ("PYTHON", "LANG", "LC_", "LD_", "OMP_")
"""Environment variables that an interpreter or a library reads before any command runs."""

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: whoever set it is the parent of descendants that lost theirs."""


@dataclass(frozen=True)
class Start:
    """What a process is to be; words: what follows the interpreter."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    has_session: bool


class Server:
    """The process that forks, and our end of the connection to it."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            none = subprocess.DEVNULL
            self._process = subprocess.Popen([sys.executable, __file__], stdin=theirs, stdout=none)
        self._one_at_a_time = threading.Lock()

    def forks(self, command: Sequence[object], environment: Mapping[str, str]) -> bool:
        """Whether a command is this interpreter with a program, and would be started alike."""
        ours, theirs = (
            {name: value for name, value in each.items() if name.startswith(READ_AT_START)}
            for each in (self._environment, environment)
        )
        has_program = command[1] in ("-c", "-m") or Path(str(command[1])).suffix == ".py"
        return command[0] == sys.executable and has_program and ours == theirs

    def fork(self, start: Start, streams: Sequence[int]) -> int:
        """A new process, which is a child of this one. streams: its input, output and errors."""
        with self._one_at_a_time, _orphans_taken():
            socket.send_fds(self._connection, [json.dumps(asdict(start)).encode()], streams)
            [process] = struct.unpack("i", self._connection.recv(4))
        return process

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


_server: Server | None = None


@contextmanager
def serving() -> Generator[None]:
    """In the block `forked` forks, where this is Linux."""
    global _server
    if sys.platform != "linux":
        yield
        return
    _server = Server()
    try:
        yield
    finally:
        _server.close()
        _server = None


def forked(command: Sequence[str | os.PathLike[str]], **options: Any) -> "subprocess.Popen[Any]":
    """As `subprocess.Popen`, and just that where the server cannot fork what is asked for."""
    can_fork = _server and _server.forks(command, options.get("env") or os.environ)
    return (_Forked if can_fork else subprocess.Popen)(command, **options)


def run_forked(
    command: Sequence[str | os.PathLike[str]], timeout: float | None = None, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """As `subprocess.run`, whose output is captured, of a process as from `forked`."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with forked(command, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


class _Forked(subprocess.Popen[Any]):
    def _execute_child(self, *given: Any) -> None:
        assert _server
        in_place_of = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        asked = in_place_of.bind(self, *given).arguments
        refused = asked["preexec_fn"] or asked["pass_fds"]
        assert not refused, "what is forked cannot have that"
        start = Start(
            words=[os.fspath(word) for word in asked["args"][1:]],
            environment=dict(asked["env"] or os.environ),
            folder=os.fspath(asked["cwd"] or Path.cwd()),
            has_session=asked["start_new_session"],
        )
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        streams = [own if end == -1 else end for own, end in enumerate(ends)]
        self.pid = _server.fork(start, streams)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


@contextmanager
def _orphans_taken() -> Generator[None]:
    set_option = ctypes.CDLL(None).prctl
    set_option(SUBREAPER, 1)
    try:
        yield
    finally:
        set_option(SUBREAPER, 0)


def _load() -> None:
    importlib.import_module("cuda_cyclegan.io.formats.nibabel_alone").import_nibabel_alone()
    for name in PACKAGES:
        package = importlib.import_module(f"cuda_cyclegan.{name}")
        places = getattr(package, "__path__", ())
        for module in pkgutil.walk_packages(places, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "other threads are not forked"
    gc.freeze()


def _serve(connection: socket.socket) -> Start:
    """Fork as often as is asked; in a process that was forked, what it is to be."""
    is_loaded = False
    while True:
        content, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not content:
            sys.exit()
        if not is_loaded:
            _load()
            is_loaded = True
        is_ready, ready = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            process = os.fork()
            if process:
                os.write(ready, struct.pack("i", process))
                os._exit(0)  # the other is an orphan now
            os.close(is_ready)
            connection.detach()  # whose number becomes the input's
            start = Start(**json.loads(content))
            _become(start, streams)
            while os.getppid() == parent:
                time.sleep(0.0002)
            os.close(ready)
            return start
        for number in (ready, *streams):
            os.close(number)
        os.waitpid(between, 0)
        with open(is_ready, "rb") as told:  # noqa: PTH123
            connection.send(told.read())


def _become(start: Start, streams: Sequence[int]) -> None:
    if start.has_session:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, (name, mode) in enumerate(zip(STREAMS, "rww", strict=True)):
        own = getattr(sys, name)
        how = {"encoding": own.encoding, "errors": own.errors, "closefd": False}
        opened: Any = open(number, mode, **how)  # noqa: PTH123, SIM115
        opened.reconfigure(
            line_buffering=own.line_buffering or opened.line_buffering,
            write_through=own.write_through,
        )
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(words: Sequence[str]) -> None:
    match words:
        case ["-m", module, *arguments]:
            sys.argv, sys.path[0] = ["-m", *arguments], str(Path.cwd())
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case ["-c", program, *arguments]:
            sys.argv, sys.path[0] = ["-c", *arguments], ""
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(program, main.__dict__)
        case [file, *_]:
            sys.argv, sys.path[0] = [*words], str(Path(file).parent)
            runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # of a terminal, without a word
    _run(_serve(socket.socket(fileno=0)).words)
