"""Fixtures of the node's tests."""

from collections.abc import Generator
from pathlib import Path

import pytest
from support.node_in_process import NodeInProcess


@pytest.fixture
def world(tmp_path: Path) -> Generator[NodeInProcess]:
    """A node with one route, at work."""
    with NodeInProcess(tmp_path) as found:
        yield found
