"""Exit status of a command whose output no disk takes, and of one whose reader stops."""

import os
import subprocess
from pathlib import Path

import pytest
from support.queue_world import COMMAND, QueueWorld

from cuda_cyclegan.cli.errors import Exit

FULL = Path("/dev/full")
SAID = "Error: Standard output was not written completely"
COMMANDS = [
    ["--version"],
    pytest.param(["jobs", "--help"], marks=pytest.mark.slow),
    ["jobs", "--json", "--queue", "QUEUE"],
    pytest.param(["jobs", "--queue", "QUEUE"], marks=pytest.mark.slow),
    pytest.param(["discover", "INPUTS", "--json"], marks=pytest.mark.slow),
    ["translate", "INPUTS", "--model", "MODEL", "--output", "OUTPUT", "--report", "-"],
]


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> QueueWorld:
    """One that knows of a batch."""
    made = QueueWorld(tmp_path_factory.mktemp("unwritten"))
    made.scans(1)
    made.submit()
    return made


def command(queue: QueueWorld, words: list[str]) -> list[str]:
    places = {
        "QUEUE": queue.queue,
        "INPUTS": queue.inputs,
        "MODEL": queue.model,
        "OUTPUT": queue.output,
    }
    return [*COMMAND, *(str(places.get(word, word)) for word in words)]


@pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")
@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_output_that_no_disk_takes_fails_a_command(queue: QueueWorld, words: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            command(queue, words), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == Exit.SOME_FAILED
    assert SAID in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
@pytest.mark.skipif(not FULL.exists(), reason="this system has no file that is always full")
def test_a_command_that_fails_keeps_its_status(queue: QueueWorld) -> None:
    words = command(queue, ["jobs", "none", "--queue", "QUEUE"])
    with FULL.open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=full, check=False)
    assert done.returncode == Exit.USAGE


@pytest.mark.process
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_reader_that_has_seen_enough_is_no_failure(queue: QueueWorld, words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            command(queue, words), stdout=pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == Exit.DONE, done.stderr
    assert SAID not in done.stderr
