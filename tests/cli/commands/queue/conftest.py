"""Fixtures of the tests of the queue's commands."""

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from support.queue_world import QueueWorld


@pytest.fixture
def world(tmp_path: Path) -> Generator[QueueWorld]:
    made = QueueWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of a quarter of a megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
