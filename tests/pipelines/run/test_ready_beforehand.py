"""Memory for the first volume of a batch is taken while that is read."""

import threading
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from support.numerics_models import FunctionGenerator
from support.pipeline_world import PipelineWorld
from support.waiting import ENOUGH
from support.watched_calls import watch_calls

from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.graph import Graph
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.patch_grid import Timing
from cuda_cyclegan.engine.scaling import Stored


class CopyingGenerator:
    """Generator that returns volumes unchanged. asked: extents for which it was to take memory."""

    device = "numpy"

    def __init__(self, on_ready: Callable[[], object] = lambda: None) -> None:
        self.graph: Graph = FunctionGenerator().graph
        self.asked: list[Triple] = []
        self._on_ready = on_ready

    def make_ready(self, extents: Triple) -> None:
        self.asked.append(extents)
        self._on_ready()

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        target.values[...] = source.values
        on_share(1.0)
        return []


def test_memory_is_taken_before_the_first_volume_is_read(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_ready = threading.Event()

    def wait_until_ready(number: int) -> None:
        assert number or is_ready.wait(ENOUGH)

    watch_calls(monkeypatch, "read", wait_until_ready)
    generator = CopyingGenerator(is_ready.set)
    rows = world.run_opened(lambda *_: nullcontext(generator), inference="volume")
    assert [row.status for row in rows] == ["translated"] * 5
    assert generator.asked == [(16, 16, 16)]


def test_obstacle_is_reported_by_the_study(world: PipelineWorld) -> None:
    def refuse() -> None:
        raise DeviceMemoryError("The host has no memory left that can be pinned.")

    generator = CopyingGenerator(refuse)
    rows = world.run_opened(lambda *_: nullcontext(generator), inference="volume")
    assert [row.status for row in rows] == ["translated"] * 5
    assert len(generator.asked) == 1


def test_a_scan_whose_header_is_damaged_fails_alone(world: PipelineWorld) -> None:
    (world.root / "scans" / "a.nii").write_bytes(bytes(400))
    generator = CopyingGenerator()
    rows = world.run_opened(lambda *_: nullcontext(generator), inference="volume")
    assert [row.status for row in rows] == ["failed", *["translated"] * 4]
    assert generator.asked == []


def test_patches_take_nothing_beforehand(world: PipelineWorld) -> None:
    class Ready(FunctionGenerator):
        def make_ready(self, extents: Triple) -> None:
            raise AssertionError(extents)

    assert world.run_opened(lambda *_: nullcontext(Ready()))[0].status == "translated"
