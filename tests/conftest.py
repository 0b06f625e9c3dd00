"""What holds for every test."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

import pytest
from support.processes import command_of, processes_left

from cuda_cyclegan.engine import disable_telemetry
from cuda_cyclegan.engine.probe.gpus import why_no_cuda
from cuda_cyclegan.pipelines.host.signals import STOP_SIGNALS

# OpenBLAS and OpenMP read it when they are loaded, also in processes that tests start. Their idle
# threads take whole cores from the tests beside this one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The servers of tests are on this machine, and a proxy would look for them on its own.
for name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)

pytest_plugins = ["support.tiers"]
if find_spec("typer"):  # kernels are compiled where no command can run
    pytest_plugins.append("support.evidence")

_no_gpu = why_no_cuda()
collect_ignore = ["gpu"] if _no_gpu else []


def pytest_report_header() -> str | None:
    return f"tests/gpu is not collected: {_no_gpu}" if _no_gpu else None


def pytest_configure() -> None:
    """A shell has what it starts in the background pass over Ctrl-C, and nohup over a terminal that
    closes; our processes must handle them.
    """
    disable_telemetry()  # some tests import ONNX Runtime before anything of ours
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(
            signal.SIGHUP, lambda *_: None
        )  # which processes that we start do not inherit


@pytest.fixture(autouse=True)
def signals_are_heard_as_before() -> Iterator[None]:
    """A handler that a command leaves behind would handle what a later test sends to itself."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    after = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(autouse=True)
def processes_end_with_their_test() -> Iterator[None]:
    """What a test leaves running, or not waited for, a later one would take for its own."""
    before = processes_left()
    yield
    left = {each: command_of(each) for each in processes_left() if each not in before}
    for process in left:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert left == {}


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the user has of this program changes no test, nor does another run of them beside it."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cache", "config", "state"):
            folder = tmp_path_factory.mktemp(kind)
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(folder))
        yield
