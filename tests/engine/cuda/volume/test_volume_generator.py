"""A generator of volumes on a GPU whose memory is host memory: what it takes, keeps and leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.driver_in_memory import needs_compiler, output_of

from cuda_cyclegan.engine.compiler.volume.volume_memory import KERNEL_BYTES

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

_BESIDES = 2 * (16 << 20) - KERNEL_BYTES
"""Bytes of the pinned slots, which this driver takes from the same memory; but of no kernels."""


def check_memory(one: dict[str, Any]) -> None:
    """Check that memory is taken once and given back."""
    assert one["device"] == "Card in memory, cuDNN 0/0, fp16"
    assert one["opened"] == 0
    taken = one["bytes"] + one["lane"] + one["host"] + _BESIDES
    assert one["ready"] == one["held"] == one["again"] == taken
    assert one["parts"] == ["compute", "copy in", "copy out"]
    assert one["shares"] == [True, 1.0]
    assert one["rows"] == [True, 302]
    assert one["closed"] == 0


@pytest.mark.process
@needs_compiler
def test_memory_of_a_gpu_is_taken_once_and_given_back(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    found = json.loads(output_of(tmp_path, "support.volume_in_memory", cache, "card"))
    check_memory(found["card"])
    assert found["card"]["lanes"] == 3
    assert found["card"]["host"] == 0


@pytest.mark.slow
@needs_compiler
def test_memory_is_taken_once_and_given_back_wherever_maps_are(tmp_path: Path) -> None:
    found = json.loads(output_of(tmp_path, "support.volume_in_memory", str(tmp_path / "cache")))
    for name in ("card", "host", "wide", "recomputed", "elsewhere"):
        check_memory(found[name])
        assert found[name]["lanes"] == (3 if name in ("card", "wide") else 1)
    assert found["card"]["host"] == 0
    assert found["host"]["host"] > 0
    assert found["host"]["bytes"] <= found["card"]["bytes"] * 4 // 5
    ways = {name: found[name]["residence"] for name in ("wide", "recomputed", "elsewhere")}
    assert ways == {"wide": "card", "recomputed": "recomputed", "elsewhere": "host"}
    assert found["refused"] == 0
