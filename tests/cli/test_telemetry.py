"""Telemetry: nothing of a run leaves this machine, by the system calls of usual commands."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model
from support.lazy_modules import torch
from support.lazy_modules import torch_generators as made
from support.processes import started

from cuda_cyclegan.cli.app import main
from cuda_cyclegan.engine.cpu.session import SessionGenerator
from cuda_cyclegan.pipelines.bench.rivals import in_child
from cuda_cyclegan.pipelines.doctor.installation import examine_installation
from cuda_cyclegan.pipelines.jobs.worker import work
from cuda_cyclegan.pipelines.run.pipe_worker import PipeWorker

ISOLATED = ["unshare", "--net", "--map-root-user"]
TRACED = ["strace", "-f", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o"]
COMMAND = shlex.join([sys.executable, "-m", "cuda_cyclegan"])
WORK = "--model model.safetensors --output"
SCRIPTS = {
    "translate": f"{COMMAND} translate in --device cpu {WORK} out --preview --report report.json",
    "plan": f"{COMMAND} plan in --device cpu {WORK} planned",
    "queue": (
        f"{COMMAND} submit in {WORK} queued && {COMMAND} worker --device cpu --until-empty && "
        f"{COMMAND} jobs && test -e queued/a.nii"
    ),
    "doctor": f"{COMMAND} doctor",
    "import": (
        f"{COMMAND} model import net.pth --output imported.safetensors --code mfazampour "
        "--source T1 --target CT --intensity-in identity --intensity-out identity --axes RAS "
        f"--spacing native --patch 32,32,32 && {COMMAND} model verify model.safetensors"
    ),
    "bench": f"{COMMAND} bench --device cpu --ngf 4 --blocks 1 --patch 16,16,16 --seconds 0.05",
}


def can_be_watched() -> bool:
    """Whether this machine has the programs, and grants a namespace and tracing."""
    if not all(map(shutil.which, ("unshare", "strace"))):
        return False
    trial = [*ISOLATED, *TRACED, os.devnull, "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_no_command_connects_or_leaves_files_of_onnx_runtime(tmp_path: Path) -> None:
    if not can_be_watched():
        pytest.skip("needs strace and network namespaces")
    home = tmp_path / "home"
    home.mkdir()
    scan(tmp_path / "in" / "a.nii")
    tiny_model(tmp_path / "model.safetensors")
    torch.save(made.trained(made.unpadded_resnet()).state_dict(), tmp_path / "net.pth")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment = kept | {"HOME": str(home), "ORT_DISABLE_TELEMETRY": "0"}
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                started(
                    [*ISOLATED, *TRACED, f"{name}.calls", "sh", "-c", script],
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for name, script in SCRIPTS.items()
        }
        reported = {name: process.communicate()[0] for name, process in running.items()}
    for name, process in running.items():
        assert process.returncode == 0, reported[name]
        calls = (tmp_path / f"{name}.calls").read_text()
        assert "exited with 0" in calls, "the calls were recorded"
        # Not even of the loopback, where a machine's resolver may listen.
        assert [line for line in calls.splitlines() if "sa_family=AF_INET" in line] == []
    files = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert files, "our own cache and queue are there"
    assert [str(file) for file in files if "cuda-cyclegan" not in file.parts] == []


@pytest.mark.process
@pytest.mark.parametrize(
    "entry", [main, PipeWorker, in_child, work, examine_installation, SessionGenerator]
)
def test_each_process_has_it_off_before_onnx_runtime_is_loaded(
    entry: Callable[..., object],
) -> None:
    """entry: of a module that a process starts with, or that loads the library."""
    code = (
        f"import {entry.__module__}, os, sys; assert 'onnxruntime' not in sys.modules; "
        "print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "0"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment) == b"1\n"
