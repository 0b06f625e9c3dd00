"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest
from support.translate_world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Scans, a model, and a folder for results that is not there yet."""
    return World(tmp_path)
