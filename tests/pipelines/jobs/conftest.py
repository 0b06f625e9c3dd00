"""Fixtures of the tests of a queue's worker."""

from collections.abc import Generator
from pathlib import Path

import pytest
from support.queue_world import QueueWorld


@pytest.fixture
def world(tmp_path: Path) -> Generator[QueueWorld]:
    made = QueueWorld(tmp_path)
    yield made
    made.close()
