"""A measurement's process: whatever becomes of it, the caller gets a row."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bench_tasks import Task
from support.processes import processes_left
from support.waiting import ENOUGH

from cuda_cyclegan.engine.benchmark.measurement import Budget
from cuda_cyclegan.engine.devices import choose_device
from cuda_cyclegan.engine.errors import DeviceUnavailableError
from cuda_cyclegan.engine.network.architectures import ResNetSpec
from cuda_cyclegan.pipelines.bench import rivals
from cuda_cyclegan.pipelines.bench.measurement import Bench, Setting, Subject, measure
from cuda_cyclegan.pipelines.bench.rivals import (
    CudnnTask,
    FailedRival,
    PytorchTask,
    Rival,
    in_child,
)

TINY = Bench(
    Subject(ResNetSpec(1, 1, 4, 1)),
    Setting(choose_device("cpu"), (16, 16, 16), 2, "fp32"),
    Budget(0.05, layers=False),
)


def failed(end: str, seconds: float = ENOUGH) -> str:
    task: Any = Task(end)
    found = in_child(task, seconds)
    assert isinstance(found, FailedRival)
    assert found.name == "a task"
    return found.reason


def test_it_runs_elsewhere() -> None:
    task: Any = Task("well")
    assert in_child(task, ENOUGH) != os.getpid()


@pytest.mark.slow
def test_every_bad_end_has_its_reason() -> None:
    assert failed("crash") == "its process ended (killed by SIGSEGV): Segmentation fault is near"
    assert failed("exit") == "its process ended (exit status 3): last words"
    assert failed("raise") == "RuntimeError: CUDA out of memory"
    assert failed("no room") == "The card is full; use smaller patches."


def test_one_that_hangs_is_ended_in_time() -> None:
    assert failed("hang", 2.0) == "took longer than 2 s"
    assert processes_left() == []


@pytest.mark.slow
def test_pytorch_is_measured_on_the_same_network() -> None:
    pytest.importorskip("torch")
    own = measure(TINY)
    found = in_child(PytorchTask("eager fp32", TINY, own.output), ENOUGH)
    assert isinstance(found, Rival), found
    assert found.difference < 1e-4
    assert found.latency.median > 0
    other = in_child(PytorchTask("eager fp32", TINY, own.output[..., ::-1]), ENOUGH)
    assert isinstance(other, Rival)
    assert other.difference > 0.1


def test_a_library_that_cannot_be_loaded_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "libcudnn.so.9").write_bytes(b"no library")
    found = in_child(CudnnTask(tmp_path, TINY, np.zeros((1, 1, 1, 1, 1), np.float32)), ENOUGH)
    assert isinstance(found, FailedRival)
    assert str(tmp_path) in found.reason
    assert "cannot be loaded" in found.reason


def test_a_library_finds_its_parts_before_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    task = CudnnTask(tmp_path, TINY, np.zeros((1, 1, 1, 1, 1), np.float32))
    places = rivals._environment(task)["LD_LIBRARY_PATH"]
    assert places == f"{tmp_path}:/elsewhere"


def test_a_folder_without_the_library_is_refused(tmp_path: Path) -> None:
    from cuda_cyclegan.engine.benchmark.alternatives import cudnn_library

    with pytest.raises(DeviceUnavailableError, match=r"libcudnn\.so\.9"):
        cudnn_library(tmp_path)
