"""Both generators of a pair are open on one card at the same time, within one limit of memory."""

import json
from pathlib import Path

import pytest
from support.driver_in_memory import needs_compiler, output_of

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

LIMIT = 24 << 20


@pytest.mark.process
@needs_compiler
def test_two_programs_share_the_memory_of_a_card(tmp_path: Path) -> None:
    found = json.loads(output_of(tmp_path, "support.pair_in_memory", str(tmp_path), str(LIMIT)))
    assert found["half"] == LIMIT // 2
    assert found["of all"] > 1 << 30
    assert all(0 < held <= LIMIT // 2 for held in found["held"])
    assert found["again"] == found["held"]
    assert found["both"] >= sum(found["held"])
    assert found["closed"] == 0
    assert found["refused"] == 0
