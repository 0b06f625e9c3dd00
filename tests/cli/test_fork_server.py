"""What the tests' commands are forked by gives what a process started anew would be."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fork_server import forked, run_forked
from support.processes import children_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there it forks")

TELLING = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "main": __name__, "folder": os.getcwd(),
    "environment": dict(os.environ), "parent": os.getppid(), "read": sys.stdin.read(),
    "files": sorted(os.listdir("/proc/self/fd"))[:-1], "group_is_own": os.getpgrp() == os.getpid(),
    "streams": [
        (stream.encoding, stream.errors, stream.line_buffering, stream.write_through)
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "handlers": [str(signal.getsignal(number)) for number in (2, 13, 15)],
}))
"""


@pytest.mark.parametrize("has_session", [False, True])
def test_it_is_what_it_would_be(tmp_path: Path, *, has_session: bool) -> None:
    def told(popen: Callable[..., "subprocess.Popen[Any]"]) -> dict[str, Any]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        asked = {"cwd": tmp_path, "env": {**os.environ, "OWN": "é"}}
        words = [sys.executable, "-c", TELLING, "a", "é"]
        with popen(words, **pipes, **asked, start_new_session=has_session) as process:
            out, _ = process.communicate("some words")
        assert process.returncode == 0
        return json.loads(out)

    anew, by_fork = told(subprocess.Popen), told(forked)
    assert by_fork == anew
    assert by_fork["parent"] == os.getpid()
    assert by_fork["group_is_own"] == has_session


def test_a_module_and_a_file_know_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("import sys; print(sys.argv, sys.path[0], __name__, __file__)")
    for words in (["-m", "module", "a"], [str(file), "a"]):
        command = [sys.executable, *words]
        anew = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
        assert run_forked(command, text=True, cwd=tmp_path).stdout == anew.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_its_status(number: signal.Signals) -> None:
    program = "import time; print('there', flush=True); time.sleep(600)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with forked([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout.readline() == b"there\n"
        assert process.pid in children_of(os.getpid())
        process.send_signal(number)
        assert process.wait() == -number
    assert process.pid not in children_of(os.getpid())


def test_its_own_children_are_left_to_the_system_when_it_is_killed() -> None:
    program = (
        "import subprocess, sys, time\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)"
    )
    with forked([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        process.kill()
    assert child not in children_of(os.getpid())
    os.kill(child, signal.SIGKILL)


def test_an_uncaught_error_is_status_1_and_an_exit_its_own() -> None:
    failed = run_forked([sys.executable, "-c", "1 / 0"], text=True)
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert run_forked([sys.executable, "-c", "raise SystemExit(7)"]).returncode == 7


def test_the_command_finds_its_imports_done() -> None:
    program = "import sys; print('onnxruntime' in sys.modules, 'dbos' in sys.modules)"
    assert run_forked([sys.executable, "-c", program], text=True).stdout == "True True\n"


def test_what_an_interpreter_reads_at_its_start_takes_a_start() -> None:
    program = "import sys; print('numpy' in sys.modules, sys.stdout.encoding)"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = run_forked([sys.executable, "-c", program], text=True, env=environment)
    assert done.stdout == "False iso8859-1\n"
