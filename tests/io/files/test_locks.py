"""Locks on open files, by flock and by bytes as on Windows: who holds, shares and is refused."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from cuda_cyclegan.io.files import locks

STAND_IN = Path(__file__).parents[2] / "support" / "without_posix"

PROGRAM = """
import os, sys
from pathlib import Path
from cuda_cyclegan.io.files import locks
how, file = sys.argv[1:]
descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
try:
    if how == "waiting":
        print("waits", flush=True)
        locks.wait_for_lock(descriptor)
    else:
        locks.lock(descriptor, shared=how == "shared")
    print("held", flush=True)
except BlockingIOError:
    print("refused", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["flock", "bytes"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "flock":
        return dict(os.environ)
    if sys.platform != "linux":
        pytest.skip("the stand-in for byte locks needs those of Linux")
    return {**os.environ, "PYTHONPATH": str(STAND_IN)}


class Processes:
    """Each asks for a lock of the same file."""

    def __init__(self, file: Path, environment: dict[str, str]) -> None:
        self._file, self._environment = file, environment
        self.started: list[subprocess.Popen[str]] = []

    def ask(self, how: str) -> "subprocess.Popen[str]":
        self.started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, how, str(self._file)],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        return self.started[-1]


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def processes(tmp_path: Path, environment: dict[str, str]) -> Generator[Processes]:
    made = Processes(tmp_path / "locked", environment)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


def test_a_lone_holder_refuses_all_others_until_it_is_killed(processes: Processes) -> None:
    holder = processes.ask("alone")
    assert answer(holder) == "held"
    assert [answer(processes.ask(how)) for how in ("alone", "shared")] == ["refused"] * 2
    kill(holder)
    assert answer(processes.ask("alone")) == "held"


def test_sharers_refuse_only_who_wants_it_alone(processes: Processes) -> None:
    sharers = [processes.ask("shared") for _ in range(2)]
    assert [answer(each) for each in sharers] == ["held"] * 2
    assert answer(processes.ask("alone")) == "refused"
    kill(sharers[0])
    assert answer(processes.ask("alone")) == "refused"
    kill(sharers[1])
    assert answer(processes.ask("alone")) == "held"


def test_waiting_process_gets_the_lock_when_its_holder_is_killed(processes: Processes) -> None:
    holder = processes.ask("alone")
    assert answer(holder) == "held"
    waiting = processes.ask("waiting")
    assert answer(waiting) == "waits"
    assert answer(processes.ask("alone")) == "refused"
    kill(holder)
    assert answer(waiting) == "held"


def test_a_locked_file_is_read_and_appended_to_as_ever(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Others can do so too: the lock is on bytes beyond the content, and moves no position."""
    script = (
        "import os, sys\n"
        "from cuda_cyclegan.io.files.locks import lock\n"
        "file = os.open(sys.argv[1], os.O_RDWR)\n"
        "os.lseek(file, 2, os.SEEK_SET)\n"
        "lock(file)\n"
        "print(os.read(file, 9).decode(), open(sys.argv[1]).read(), os.fstat(file).st_size)\n"
    )
    (tmp_path / "file").write_text("abcd")
    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "cd abcd 4\n"


@pytest.mark.parametrize("waits", [False, True])
def test_the_lock_of_a_folder_that_was_replaced_meanwhile_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """A run that takes the folder for abandoned removes it between opening and locking."""
    folder, name = tmp_path / "part", "wait_for_lock" if waits else "lock"
    folder.mkdir()
    sound = getattr(locks, name)

    def late(descriptor: int) -> None:
        folder.rename(tmp_path / "away")
        folder.mkdir()
        sound(descriptor)

    monkeypatch.setattr(locks, name, late)
    with pytest.raises(FileNotFoundError), locks.folder_lock(folder, waits=waits):
        pytest.fail("two programs would have a lock of the same name")
    monkeypatch.undo()
    with locks.folder_lock(folder, waits=waits), pytest.raises(BlockingIOError):
        locks.folder_lock(folder).__enter__()


def test_a_link_is_no_folder_to_lock(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "part").symlink_to("there")
    with pytest.raises(OSError, match="part"):
        locks.folder_lock(tmp_path / "part").__enter__()
