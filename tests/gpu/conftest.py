"""Tests that need a GPU.

Without one the folder is not collected, and its tests are skipped where it is named.
"""

import pytest

from cuda_cyclegan.engine.probe.gpus import why_no_cuda


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_cuda()
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker("gpu")
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
