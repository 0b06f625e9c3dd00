"""A user's command after failures."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from support.waiting import ENOUGH

from cuda_cyclegan.pipelines.host.failure_hook import FailureHook

NAMES, FAILURES = ("translated", "failed"), ("failed",)


def hook(command: str, reported: list[str], gather: float = 3600.0) -> FailureHook:
    return FailureHook(command, NAMES, FAILURES, gather, reported.append)


@pytest.mark.process
def test_the_command_gets_the_counts_since_the_last_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_CYCLEGAN_QUEUE", "postgresql://me:secret@host/jobs")
    reported: list[str] = []
    found = hook(f"env | grep ^CUDA_CYCLEGAN_ | sort >> '{tmp_path}/counts'", reported)
    found.count("translated")
    found.close()
    assert not (tmp_path / "counts").exists()
    for name in ("failed", "failed", "translated"):
        found.count(name)
    found.close()
    found.count("failed")
    found.close()
    assert (tmp_path / "counts").read_text().splitlines() == [
        "CUDA_CYCLEGAN_FAILED=2",
        "CUDA_CYCLEGAN_TRANSLATED=2",
        "CUDA_CYCLEGAN_FAILED=1",
        "CUDA_CYCLEGAN_TRANSLATED=0",
    ]
    assert reported == []


@pytest.mark.process
def test_a_command_that_fails_is_reported() -> None:
    reported: list[str] = []
    found = hook("exit 3", reported)
    found.count("failed")
    found.close()
    assert reported == ["Setting on-failure: the command ended with status 3"]


@pytest.mark.process
def test_the_end_waits_for_a_command_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker, for instance, ends immediately after its last job."""
    begins, ends, run = threading.Event(), threading.Event(), subprocess.run

    def run_at_the_end(*arguments: Any, **options: Any) -> Any:
        begins.set()
        assert ends.wait(ENOUGH)
        return run(*arguments, **options)

    monkeypatch.setattr(subprocess, "run", run_at_the_end)
    found = hook(f"touch '{tmp_path}/done'", [])
    found.count("failed")
    found.run_now()
    assert begins.wait(ENOUGH)
    ends.set()
    found.close()
    assert (tmp_path / "done").exists()


def test_without_a_command_nothing_runs() -> None:
    found = hook("", [])
    found.count("failed")
    assert found.run_now() is None
