"""Every test in this folder needs a card, and skips itself without one."""

import pytest

from cuda_cyclegan.engine.probe.cards import why_no_cuda


def pytest_collection_modifyitems(items):
    obstacle = why_no_cuda()
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker("gpu")
            if obstacle:
                item.add_marker(pytest.mark.skip(reason=obstacle))
