"""Limits on threads and processes, as `ulimit -u` and a container's --pids-limit set them."""

import errno
import os
import shutil
import subprocess
import sys

import pytest
from support.batch_world import scan, tiny_model
from support.io_users import NOBODY, open_folder

from cuda_cyclegan.cli.errors import Exit, sentence, status
from cuda_cyclegan.pipelines.host.thread_limits import NO_MORE_THREADS, is_out_of_threads
from cuda_cyclegan.pipelines.report.report import failure_of

REFUSALS = [
    RuntimeError("can't start new thread"),
    RuntimeError("env.cc:327 PosixThread pthread_create failed, error code: 11"),
    BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
]


@pytest.mark.parametrize("error", REFUSALS, ids=str)
def test_a_thread_that_is_refused_is_reported_by_the_limit(error: Exception) -> None:
    assert is_out_of_threads(error)
    assert sentence(error) == NO_MORE_THREADS
    assert status(error) == Exit.SOME_FAILED
    failure = failure_of(error, "infer")
    assert (failure.kind, failure.reason) == ("memory", NO_MORE_THREADS)


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), OSError(errno.EAGAIN, "again", "a.nii"), ValueError("thread")]
)
def test_other_errors_are_none_of_it(error: Exception) -> None:
    assert not is_out_of_threads(error)


def with_threads(count: int) -> list[str]:
    """Return a prefix that limits a command to so many threads, its first included."""
    if os.geteuid() != 0 or not shutil.which("prlimit") or not shutil.which("setpriv"):
        pytest.skip("needs root, who counts another user's threads from none, and util-linux")
    rights = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    user = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *rights]
    return [*user, "prlimit", f"--nproc={count}"]


@pytest.mark.process
@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_commands_say_which_limit_they_met(count: int) -> None:
    """OpenBLAS alone would end the process as Ctrl-C does."""
    with open_folder() as folder:
        model = tiny_model(folder / "model.safetensors")
        scan(folder / "in" / "a.nii")
        words = ["translate", "in", "--model", model, "--output", "out", "--device", "cpu"]
        command = [*with_threads(count), sys.executable, "-m", "cuda_cyclegan", *map(str, words)]
        environment = {**os.environ, "HOME": str(folder)}
        environment.pop("OPENBLAS_NUM_THREADS", None)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == Exit.SOME_FAILED, done.stderr
    assert NO_MORE_THREADS in done.stderr
    for never in ("Traceback", "Stopped", "OpenBLAS", "looks like a bug"):
        assert never not in done.stdout + done.stderr
