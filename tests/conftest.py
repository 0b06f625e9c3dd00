"""Fixtures and hooks of every test."""

import faulthandler
import os
import re
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.tmpdir import tmppath_result_key
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


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """Start one worker more than `-n auto` says: each waits a fifth of its time."""
    workers = yield
    return workers if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else workers + 1


HANGING = 600.0
"""Seconds after which a test hangs, twice what any wait may take."""
_numbers = count()
_watched_since = -inf


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have a hanging test show where each of its threads is.

    `faulthandler_timeout` of pytest starts a thread for each test and waits for its end: 0.6 ms of
    processor time, and 7 ms beside five busy processes. One a minute does.
    """
    global _watched_since
    if monotonic() - _watched_since > 60:
        _watched_since = monotonic()
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(HANGING, file=stderr)


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder for one test, kept if it fails.

    pytest's own lists the folders of all tests before to number the next one, which takes 3 ms
    after 4,000 tests.
    """
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    folder.mkdir(0o700)
    yield folder
    if request.node.stash[tmppath_result_key].get("call"):
        shutil.rmtree(folder, ignore_errors=True)


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
    """Fail a test that leaves a process running or not waited for: a later one would take it for
    its own.
    """
    before = processes_left()
    yield
    left = {each: command_of(each) for each in processes_left() if each not in before}
    for process in left:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert left == {}


@pytest.fixture(autouse=True, scope="session")
def disk_is_not_waited_for() -> Iterator[None]:
    """No test of this process cuts the power, which is all that a flush is for. Those of a closed
    file still fail, and processes that tests start flush as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True, scope="session")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set folders of this test run, so that neither the user's files nor a concurrent run change a
    test.
    """
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("cache", "config", "state"):
            folder = tmp_path_factory.mktemp(kind)
            patch.setenv(f"XDG_{kind.upper()}_HOME", str(folder))
        yield
