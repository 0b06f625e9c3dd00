"""PyTorch, which tests of kernels compare with, is only imported when one of them runs."""

from typing import Any

import pytest


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch")
