"""The own kernels compiled for the CPU, once for all tests."""

from pathlib import Path

import pytest
from support import cuda_on_cpu


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cuda_on_cpu.libraries(tmp_path_factory)
