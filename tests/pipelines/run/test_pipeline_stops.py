"""Effects of an interrupt on studies that are on their way to the disk."""

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.fake_networks import networks_of
from support.interrupts import done_at_last, interrupted
from support.numerics_models import CARD, FunctionGenerator
from support.pipeline_world import OPTIONS, PLENTY, RECIPE, PipelineWorld, threads_at_work
from support.waiting import ENOUGH

from cuda_cyclegan.engine.model.model_file import Model
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.io.files import streams
from cuda_cyclegan.pipelines.events import (
    Event,
    StudyStarted,
    TilesDone,
)
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.manifest import Manifest, load
from cuda_cyclegan.pipelines.results.storing import DiskSpace
from cuda_cyclegan.pipelines.run import batch, pipeline
from cuda_cyclegan.pipelines.run.outcomes import Outcomes
from cuda_cyclegan.pipelines.run.pipeline import Concurrency, StudyPipeline
from cuda_cyclegan.pipelines.run.source import BatchStudies, JobKind, ListSource
from cuda_cyclegan.pipelines.study.translator import StudyTranslator


def test_an_interrupt_keeps_what_the_network_has_done_with(world: PipelineWorld) -> None:
    """The third study is in the network; the first two are stored, the fourth is only read."""
    runs = iter(range(9))

    def network(patches: FloatArray) -> FloatArray:
        if next(runs) == 2:
            raise KeyboardInterrupt
        return patches

    rows = world.run(network)
    assert [row.status for row in rows] == ["translated", "translated", "interrupted"]
    assert world.made() == ["a.nii", "b.nii"]
    begun = [event.study for event in world.events if isinstance(event, TilesDone)]
    assert set(begun) == {"a.nii", "b.nii", "c.nii"}
    started = [event for event in world.events if isinstance(event, StudyStarted)]
    assert len(started) <= 4


@dataclass
class Interruption:
    """The first study comes to a place on its way to the disk; then a signal comes and no patience
    is left. Anything that stands there goes on at the latest when the run is over.

    last_moment: seconds for what is in place. is_cut: all parts are removed.
    """

    monkeypatch: pytest.MonkeyPatch
    last_moment: float
    is_there: threading.Event = field(default_factory=threading.Event)
    is_cut: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    def stand_at(self, module: Any, name: str, until: Callable[[], object]) -> None:
        real = getattr(module, name)

        def stand(*arguments: Any) -> Any:
            self.is_there.set()
            until()
            return real(*arguments)

        self.monkeypatch.setattr(module, name, stand)

    def run(self, world: PipelineWorld) -> list[StudyReport]:
        runs = iter(range(9))

        def network(patches: FloatArray) -> FloatArray:
            if next(runs) == 1:
                assert self.is_there.wait(ENOUGH)
                raise KeyboardInterrupt
            return patches

        remove = pipeline.remove_parts_of_this_process

        def remove_and_tell(folder: Path) -> int:
            removed = remove(folder)
            self.is_cut.set()
            return removed

        self.monkeypatch.setattr(pipeline, "remove_parts_of_this_process", remove_and_tell)
        self.monkeypatch.setattr(batch, "PATIENCE", 0.0)
        self.monkeypatch.setattr(batch, "LAST_MOMENT", self.last_moment)
        rows = world.run(network)
        self.is_over.set()
        for thread in threads_at_work():
            thread.join(ENOUGH)
        return rows


@pytest.mark.parametrize(
    ("module", "name"), [(StudyTranslator, "finish"), (storing, "write")], ids=["finish", "write"]
)
def test_study_that_reaches_the_disk_after_a_stop_leaves_nothing_there(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    stop = Interruption(monkeypatch, last_moment=0.0)
    stop.stand_at(module, name, lambda: stop.is_over.wait(ENOUGH))
    rows = stop.run(world)
    assert [row.status for row in rows] == ["interrupted"] * 2
    files = [path.name for path in (world.root / "results").rglob("*") if path.is_file()]
    assert files == []
    assert [row.status for row in world.run()] == ["translated"] * 5


def test_a_result_whose_part_a_stop_removes_is_no_failure(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Interruption(monkeypatch, last_moment=ENOUGH)
    stop.stand_at(streams, "write_voxels", lambda: stop.is_cut.wait(ENOUGH))
    assert [row.status for row in stop.run(world)] == ["interrupted"] * 2
    assert world.made() == []


def test_a_result_that_is_in_place_at_a_stop_is_recorded(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Interruption(monkeypatch, last_moment=ENOUGH)
    stop.stand_at(storing, "files_at", lambda: stop.is_cut.wait(ENOUGH))
    assert [row.status for row in stop.run(world)] == ["translated", "interrupted"]
    assert world.made() == ["a.nii"]
    assert load(world.root / "results")["a.nii"].status == "written"


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Callable[[], StudyPipeline]]:
    """Function that makes pipelines without studies."""
    empty: Any = None
    model = Model(CARD, Network(FunctionGenerator().graph, {}), empty, empty, "")
    kind = JobKind(model, OPTIONS, RECIPE, opens=False)
    with Manifest(tmp_path) as manifest:

        def made() -> StudyPipeline:
            source = ListSource(kind, BatchStudies(()), manifest)
            disk_space = DiskSpace(tmp_path)
            return StudyPipeline(
                kind, source, networks_of(None), Concurrency(PLENTY), disk_space, Outcomes()
            )

        yield made


def run(pipeline: StudyPipeline) -> list[Event]:
    pipeline.start()
    events = list(pipeline.rest())
    pipeline.join()
    return events


def test_a_stop_that_is_interrupted_can_be_asked_for_again(
    pipelines: Callable[[], StudyPipeline],
) -> None:
    for _ in range(500):
        pipeline = pipelines()
        interrupted(pipeline.stop)
        done_at_last(pipeline.stop)
        assert run(pipeline) == []


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_pipeline_that_is_over_needs_no_collector_to_go(
    pipelines: Callable[[], StudyPipeline], is_stopped: bool
) -> None:
    """All the memory that it keeps for its studies' volumes goes too."""
    pipeline = pipelines()
    gone = weakref.ref(pipeline)
    assert run(pipeline) == []
    if is_stopped:
        pipeline.stop()
    gc.disable()
    try:
        del pipeline
        assert gone() is None
    finally:
        gc.enable()
