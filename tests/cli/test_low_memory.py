"""Messages about too little memory, as a job's `ulimit -v` may leave."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_world import scan, tiny_model

from cuda_cyclegan.cli.errors import Exit, sentence, status
from cuda_cyclegan.pipelines.host import memory
from cuda_cyclegan.pipelines.report.report import failure_of

MIB = 1 << 20


def run(limit: int, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command with an address space of so many bytes."""
    return subprocess.run(
        [sys.executable, "-m", "cuda_cyclegan", *map(str, arguments)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "limit",
    [400, 800, *(pytest.param(each, marks=pytest.mark.slow) for each in (100, 770, 830, 860))],
)
def test_a_limit_of_the_address_space(tmp_path: Path, limit: int) -> None:
    model = tiny_model(tmp_path / "model.safetensors")
    scan(tmp_path / "in" / "a.nii")
    where = ["--model", model, "--output", tmp_path / "out", "--device", "cpu"]
    done = run(limit * MIB, "translate", tmp_path / "in", *where)
    assert done.returncode in (0, 1), done.stderr
    if done.returncode:
        assert "There is not enough memory" in done.stderr, done.stderr
    for never in ("Traceback", "looks like a bug", "install", "EP Error", "Stopped"):
        assert never not in done.stdout + done.stderr


def test_a_limit_below_all_need_names_itself_and_the_way_out(tmp_path: Path) -> None:
    done = run(300 * MIB, "discover", tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: There is not enough memory: this program is limited to 300 MiB of address space; "
        "raise the limit (ulimit -v) or use a smaller patch.\n"
    )


@pytest.mark.process
def test_a_limit_of_the_address_space_counts_in_figures() -> None:
    """The limit bounds what a batch may take at a time, and what a scan may need."""
    code = (
        "from cuda_cyclegan.io.files.machine_limits import most_memory\n"
        "from cuda_cyclegan.pipelines.host.memory import available_memory\n"
        "print(most_memory(), available_memory())"
    )
    limit = 700 * MIB
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    most, available = map(int, done.stdout.split())
    assert most == limit
    assert 0 < available < limit


@pytest.mark.parametrize("error", [ImportError("x", name="x"), RuntimeError("x"), OSError("x")])
def test_errors_that_come_of_too_little_memory(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failure_of(error, None).kind == "internal"
    assert "memory" not in sentence(error)

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "mmap", refuse)
    assert failure_of(error, None).kind == "memory"
    assert "not enough memory" in sentence(error)
    assert status(error) == Exit.SOME_FAILED
