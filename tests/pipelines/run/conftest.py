"""Fixtures of the tests of a batch at work."""

from pathlib import Path

import pytest
from support.pipeline_world import PipelineWorld


@pytest.fixture
def world(tmp_path: Path) -> PipelineWorld:
    """Five studies that go through a pipeline of this process."""
    return PipelineWorld(tmp_path)
