"""A batch on two GPUs: a process each, which sees its own alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml as _pynvml
import pytest
from support.batch_world import scan
from support.bench_batches import write_model
from support.processes import children_of, runs, started
from support.waiting import eventually

from cuda_cyclegan.engine.probe.gpus import cuda_devices

pytestmark = pytest.mark.skipif(len(cuda_devices()) < 2, reason="there is one GPU")

pynvml: Any = _pynvml
STUDIES = 16


class Batch:
    """Studies of some patches each, and where their results go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = write_model(root / "model.safetensors", 8, 1, (32, 32, 32))
        for number in range(STUDIES):
            scan(root / "scans" / f"{number}.nii", number, (96, 80, 72))

    def command(self, output: str, device: str) -> list[str]:
        command = [sys.executable, "-m", "cuda_cyclegan", "translate", str(self.root / "scans")]
        command += ["--model", str(self.model), "--output", str(self.root / output)]
        command += ["--device", device, "--report", str(self.root / f"{output}.json")]
        return [*command, "--tune", "off", "--quiet"]

    def results(self, output: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / output).glob("*.nii")}

    def report(self, output: str) -> dict[str, Any]:
        return json.loads((self.root / f"{output}.json").read_text())

    @contextmanager
    def running(self, output: str, device: str) -> Generator["subprocess.Popen[str]"]:
        pipe = subprocess.PIPE
        with started(self.command(output, device), stderr=pipe, text=True) as process:
            yield process


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return Batch(tmp_path)


@pytest.fixture
def gpus() -> Generator[list[Any]]:
    """NVML's handles of the first two GPUs."""
    pynvml.nvmlInit()
    yield [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(2)]
    pynvml.nvmlShutdown()


def test_each_process_is_on_one_gpu_and_the_command_on_none(batch: Batch, gpus: list[Any]) -> None:
    seen: dict[int, set[int]] = {}
    with batch.running("two", "cuda:0,1") as process:
        while process.poll() is None:
            for number, gpu in enumerate(gpus):
                for holder in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                    seen.setdefault(holder.pid, set()).add(number)
        assert process.returncode == 0, process.stderr and process.stderr.read()
        assert process.pid not in seen
    assert sorted(map(sorted, seen.values())) == [[0], [1]]
    subprocess.run(batch.command("one", "cuda:1"), check=True)
    assert batch.results("two") == batch.results("one")
    assert len(batch.results("two")) == STUDIES
    one, two = batch.report("one"), batch.report("two")
    assert two["device"] == f"{one['device']}, {one['device']}"
    assert two["energy"]


def test_a_worker_that_is_killed_costs_no_study(batch: Batch) -> None:
    with batch.running("results", "cuda:1,0") as process:
        eventually(lambda: any(batch.results("results")))
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        assert process.wait() == 0, process.stderr and process.stderr.read()
    assert len(batch.results("results")) == STUDIES


def test_ctrl_c_leaves_no_process(batch: Batch) -> None:
    with batch.running("results", "cuda:0,1") as process:
        eventually(lambda: len(children_of(process.pid)) == 2)
        workers = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT
    eventually(lambda: not any(map(runs, workers)))
