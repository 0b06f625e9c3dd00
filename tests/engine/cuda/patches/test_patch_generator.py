"""A generator on a GPU whose memory is host memory: opened, used and closed, nothing is left."""

import json
from pathlib import Path

import pytest
from support.driver_in_memory import needs_compiler, output_of

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

STAGING = 2 * (2 * 16**3 * 4) + 4
"""Bytes of two patches and their translations, and of the flag of overflows."""


@pytest.mark.slow
@needs_compiler
def test_an_open_generator_is_ready_and_a_closed_one_leaves_nothing(tmp_path: Path) -> None:
    found = json.loads(output_of(tmp_path, "support.generator_in_memory", str(tmp_path / "cache")))
    assert found["device"] == "Card in memory, cuDNN 0/0, fp16"
    assert found["batch"] == 2
    assert found["results"] == [3, 1, 16, 16, 16]
    assert found["parts"] == ["blend", "compute", "copy in", "copy out", "cut"]
    assert found["opened"] == found["program"] + STAGING
    assert found["planned"] == found["program"]
    assert found["streamed"] > found["opened"]
    assert found["closed"] == 0
    assert found["refused"] == 0
