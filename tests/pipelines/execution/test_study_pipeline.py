"""Stages that overlap: what waits for what, and what a stop or a failure leaves."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from support.batch_world import scan
from support.numerics_models import CARD, FunctionGenerator, card
from support.waiting import ToldCondition

from cuda_cyclegan.engine.cuda.plan_cache import Progress
from cuda_cyclegan.engine.errors import DeviceMemoryError, EngineError, PrecisionOverflowError
from cuda_cyclegan.engine.generator import Generator
from cuda_cyclegan.engine.model.model import Model
from cuda_cyclegan.engine.network.graph import FloatArray, Network
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.io import writing
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.execution import batch, stages, study_pipeline
from cuda_cyclegan.pipelines.execution.batch import run_batch
from cuda_cyclegan.pipelines.execution.concurrency import WeightedSemaphore
from cuda_cyclegan.pipelines.execution.stages import StudyTask, opened_for_a_batch
from cuda_cyclegan.pipelines.execution.study_pipeline import Concurrency, StudyPipeline
from cuda_cyclegan.pipelines.progress.events import (
    DeviceOpened,
    Event,
    Remark,
    StudyStarted,
    TilesDone,
    Tuning,
    Worked,
)
from cuda_cyclegan.pipelines.progress.timeline import Timeline
from cuda_cyclegan.pipelines.progress.trace import Trace
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.input_files import InputFiles
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe, load
from cuda_cyclegan.pipelines.results.resume import Planner
from cuda_cyclegan.pipelines.results.storing import Store
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stopwatch

OPTIONS = TranslateOptions((16, 16, 16), overlap=0.0, precision="fp32")
RECIPE = Recipe("model", "settings")
PLENTY = 1 << 30
SOON = 60.0  # seconds; only a test that fails waits so long


@dataclass
class World:
    """Five studies of one tile each."""

    root: Path
    events: list[Event] = field(default_factory=list[Event])

    def __post_init__(self) -> None:
        for seed, name in enumerate("abcde"):
            scan(self.root / "scans" / f"{name}.nii", seed, (16, 16, 16))

    def run(
        self,
        network: Callable[[FloatArray], FloatArray] = lambda p: p,
        concurrency: Concurrency | None = None,
    ) -> list[StudyReport]:
        opened: Any = nullcontext(FunctionGenerator(network))
        return self.run_opened(lambda *_: opened, concurrency)

    def run_opened(
        self,
        opened: Callable[[Precision, Progress], Any],
        concurrency: Concurrency | None = None,
        precision: Precision = "fp32",
    ) -> list[StudyReport]:
        self.events.clear()
        graph = FunctionGenerator().graph
        empty: Any = None
        model = Model(card(patch=(16, 16, 16)), Network(graph, {}), empty, empty, "")
        output = self.root / "results"
        with Manifest(output) as manifest:
            planner = Planner(output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.root / "scans"], output).studies)
            task = StudyTask(
                model,
                replace(OPTIONS, precision=precision),
                opened_for_a_batch(opened, ("fp16", "bf16", "fp32")),
                Store(manifest, RECIPE, CARD),
            )
            line = StudyPipeline(task, planned, concurrency or Concurrency(PLENTY))
            return list(run_batch(planned, line, self.hear))

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def made(self) -> list[str]:
        return sorted(path.name for path in (self.root / "results").glob("*.nii"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def watch_calls(monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[], object]) -> None:
    place = InputFiles if name == "states" else stages
    real = getattr(place, name)

    def watched(*arguments: Any) -> Any:
        before()
        return real(*arguments)

    monkeypatch.setattr(place, name, watched)


def test_the_next_study_is_read_and_the_last_one_stored_while_one_is_translated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage of the second study waits for its neighbours, so only an overlap gets on."""
    third_is_read, first_is_finished = threading.Event(), threading.Event()
    reads, finishes, runs = iter(range(9)), iter(range(9)), iter(range(9))
    watch_calls(monkeypatch, "read_study", lambda: next(reads) == 2 and third_is_read.set())
    watch_calls(
        monkeypatch, "finish_study", lambda: next(finishes) == 0 and first_is_finished.set()
    )

    def network(patches: FloatArray) -> FloatArray:
        if next(runs) == 1:
            assert third_is_read.wait(SOON)
            assert first_is_finished.wait(SOON)
        return patches

    assert [row.status for row in world.run(network)] == ["translated"] * 5


@pytest.mark.parametrize("stage", ["read_study", "prepare_study"])
def test_a_file_is_hashed_while_it_is_read_and_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    begun = threading.Event()

    def wait_for_stage() -> None:
        assert begun.wait(SOON)

    watch_calls(monkeypatch, stage, begun.set)
    watch_calls(monkeypatch, "states", wait_for_stage)
    assert [row.status for row in world.run()] == ["translated"] * 5


def test_a_study_that_changes_before_it_is_hashed_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read whole by then, but its hash would be that of other bytes."""
    path, changed = world.root / "scans" / "a.nii", threading.Event()

    def change() -> None:
        if not changed.is_set():
            os.utime(path, (1, 1))
            changed.set()

    watch_calls(monkeypatch, "prepare_study", change)
    watch_calls(monkeypatch, "states", lambda: changed.wait(SOON))
    rows = world.run()
    assert [row.status for row in rows] == ["failed", *["translated"] * 4]
    assert rows[0].failure
    assert "a.nii changed while it was read" in rows[0].failure.reason


@pytest.mark.parametrize("damage", [b"", b"more", None])
def test_a_study_that_changes_while_it_is_read_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    """Whether it can be read or not; the next run does it."""
    path, calls = world.root / "scans" / "b.nii", iter(range(9))
    whole = path.read_bytes()

    def change() -> None:
        if next(calls) == 1:
            path.write_bytes(whole + damage if damage is not None else whole[:1000])
            os.utime(path, (1, 1))

    watch_calls(monkeypatch, "read_study", change)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert rows[1].failure
    assert "b.nii changed while it was read" in rows[1].failure.reason
    path.write_bytes(whole)
    assert [row.status for row in world.run()].count("translated") == 1


def test_no_more_is_under_way_than_the_concurrency_allows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where reading is much faster than the network."""
    reads: list[None] = []
    seen: list[int] = []
    watch_calls(monkeypatch, "read_study", lambda: reads.append(None))
    waits: SimpleQueue[int] = SimpleQueue()

    class Places(WeightedSemaphore):
        """Tells the how manieth place a thread waits for."""

        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._asked = 0
            self._changed = ToldCondition(lambda: waits.put(self._asked))

        def acquire(self, amount: int = 1) -> bool:
            self._asked += 1
            return super().acquire(amount)

    def network(patches: FloatArray) -> FloatArray:
        next_place = len(seen) + 3
        while next_place <= 6 and waits.get(timeout=SOON) != next_place:
            pass
        seen.append(len(reads))
        return patches

    monkeypatch.setattr(study_pipeline, "WeightedSemaphore", Places)
    world.run(network)
    assert seen == [2, 3, 4, 5, 5]


def test_studies_that_do_not_fit_together_are_worked_on_one_by_one(world: World) -> None:
    under_way: list[int] = []

    def network(patches: FloatArray) -> FloatArray:
        under_way.append(len(list((world.root / "results").glob("*.nii"))))
        return patches

    rows = world.run(network, Concurrency(host_bytes=1))
    assert [row.status for row in rows] == ["translated"] * 5
    assert under_way == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "function", ["states", "read_study", "prepare_study", "infer_study", "finish_study"]
)
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x"), EngineError("The card fell.")])
def test_a_study_that_raises_in_any_stage_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception
) -> None:
    calls = iter(range(9))

    def second() -> None:
        if next(calls) == 1:
            raise error

    watch_calls(monkeypatch, function, second)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert len({row.name for row in rows}) == 5
    assert world.made() == ["a.nii", "c.nii", "d.nii", "e.nii"]
    assert threads_at_work() == []


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x"), OSError(28, "No space left")])
def test_a_study_that_cannot_be_stored_fails_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    calls, write = iter(range(9)), storing.write

    def second_fails(*arguments: Any) -> Any:
        if next(calls) == 1:
            raise error
        return write(*arguments)

    monkeypatch.setattr(storing, "write", second_fails)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    failure = rows[1].failure
    assert failure is not None
    assert failure.stage == "write"
    assert world.made() == ["a.nii", "c.nii", "d.nii", "e.nii"]
    assert {e.output for e in load(world.root / "results").values() if e.status == "failed"} == {
        "b.nii"
    }
    assert threads_at_work() == []


def threads_at_work() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.split()[0] in ("read", "infer", "write")]


def test_several_readers_and_writers_make_the_same_rows_in_order(world: World) -> None:
    rows = world.run(concurrency=Concurrency(PLENTY, readers=3, writers=2))
    assert [row.name for row in rows] == ["a.nii", "b.nii", "c.nii", "d.nii", "e.nii"]
    assert {row.status for row in rows} == {"translated"}
    assert {entry.status for entry in load(world.root / "results").values()} == {"written"}
    assert threads_at_work() == []


def test_a_device_that_does_not_open_ends_the_batch_with_its_own_error(world: World) -> None:
    @contextmanager
    def broken(_: Precision, __: Progress) -> Iterator[Generator]:
        raise EngineError("The card fell off.")
        yield

    with pytest.raises(EngineError, match="fell off"):
        world.run_opened(broken)
    assert world.made() == []


def test_the_search_for_plans_is_told_before_the_device_is_there(world: World) -> None:
    @contextmanager
    def opened(_: Precision, progress: Progress) -> Iterator[FunctionGenerator]:
        progress("convolution 3x3x3", 0.0)
        progress("cuDNN's plan eng7 is not used on this card.", None)
        progress("", 1.0)
        yield FunctionGenerator()

    world.run_opened(opened)
    told = [event for event in world.events if isinstance(event, Tuning | DeviceOpened | Remark)]
    refused = Remark("cuDNN's plan eng7 is not used on this card.")
    assert told[:3] == [Tuning("convolution 3x3x3", 0.0), refused, Tuning("", 1.0)]
    assert isinstance(told[3], DeviceOpened)


def test_the_generator_is_closed_when_the_batch_is_over(world: World) -> None:
    states: list[str] = []

    @contextmanager
    def opened(_: Precision, __: Progress) -> Iterator[FunctionGenerator]:
        states.append("open")
        yield FunctionGenerator()
        states.append("closed")

    world.run_opened(opened)
    assert states == ["open", "closed"]


def test_seconds_are_those_of_work_and_not_of_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock only goes on in the network, while the threads before and after it wait."""
    now, runs = [100.0], iter(range(9))
    told = threading.Condition()
    monkeypatch.setattr(stages, "Stopwatch", partial(Stopwatch, clock=lambda: now[0]))

    def hear(event: Event) -> None:
        with told:
            world.events.append(event)
            told.notify_all()

    def others_wait(run: int) -> bool:
        spans = [event.span for event in world.events if isinstance(event, Worked)]
        stages = [span.stage for span in spans]
        read_and_hashed = 2 * min(run + 2, 5)
        return stages.count("write") == run and stages.count("read") == read_and_hashed

    def network(patches: FloatArray) -> FloatArray:
        run = next(runs)
        with told:
            assert told.wait_for(lambda: others_wait(run), SOON)
        now[0] += 1.0
        return patches

    monkeypatch.setattr(world, "hear", hear)
    timeline = Timeline(now[0])
    rows = world.run(network)
    for event in world.events:
        timeline.hear(event)
    use = timeline.use()
    moments = [row.under_way or (0.0, 0.0) for row in timeline.dated(rows)]
    assert moments == [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5)]
    for row in rows:
        assert row.seconds == sum(row.stages.values()) == row.stages["infer"] == 1.0
    assert (use.computing, use.busy, use.wall, use.computing_share) == (5.0, 5.0, 5.0, 1.0)


def test_a_trace_shows_every_span_on_the_row_of_its_thread(world: World, tmp_path: Path) -> None:
    trace = Trace()
    world.run()
    for event in world.events:
        trace.hear(event)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    seen = {(tracks[e["tid"]], e["name"]) for e in spans}
    assert seen == {
        *(("read", stage) for stage in ("read", "prepare")),
        *(("infer", stage) for stage in ("infer", "blend")),
        *(("write", stage) for stage in ("finish", "write")),
    }
    assert {e["args"]["study"] for e in spans} == {f"{name}.nii" for name in "abcde"}
    for track in tracks:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == track)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(own))


def test_an_interrupt_keeps_what_the_network_has_done_with(world: World) -> None:
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

    def run(self, world: World) -> list[StudyReport]:
        runs = iter(range(9))

        def network(patches: FloatArray) -> FloatArray:
            if next(runs) == 1:
                assert self.is_there.wait(SOON)
                raise KeyboardInterrupt
            return patches

        remove = study_pipeline.remove_parts_of_this_process

        def remove_and_tell(folder: Path) -> int:
            removed = remove(folder)
            self.is_cut.set()
            return removed

        self.monkeypatch.setattr(study_pipeline, "remove_parts_of_this_process", remove_and_tell)
        self.monkeypatch.setattr(batch, "PATIENCE", 0.0)
        self.monkeypatch.setattr(batch, "LAST_MOMENT", self.last_moment)
        rows = world.run(network)
        self.is_over.set()
        for thread in threads_at_work():
            thread.join(SOON)
        return rows


@pytest.mark.parametrize(
    ("module", "name"), [(stages, "finish_study"), (storing, "write")], ids=["finish", "write"]
)
def test_who_comes_to_the_disk_after_a_stop_leaves_nothing_there(
    world: World, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    stop = Interruption(monkeypatch, last_moment=0.0)
    stop.stand_at(module, name, lambda: stop.is_over.wait(SOON))
    rows = stop.run(world)
    assert [row.status for row in rows] == ["interrupted"] * 2
    files = [path.name for path in (world.root / "results").rglob("*") if path.is_file()]
    assert files == ["manifest.jsonl"]
    assert [row.status for row in world.run()] == ["translated"] * 5


def test_a_result_whose_part_a_stop_removes_is_no_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Interruption(monkeypatch, last_moment=SOON)
    stop.stand_at(writing, "write_voxels", lambda: stop.is_cut.wait(SOON))
    assert [row.status for row in stop.run(world)] == ["interrupted"] * 2
    assert world.made() == []


def test_a_result_that_is_in_place_at_a_stop_is_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Interruption(monkeypatch, last_moment=SOON)
    stop.stand_at(storing, "files_at", lambda: stop.is_cut.wait(SOON))
    assert [row.status for row in stop.run(world)] == ["translated", "interrupted"]
    assert world.made() == ["a.nii"]
    assert load(world.root / "results")["a.nii"].status == "written"


def test_a_study_that_overflows_is_done_again_in_a_wider_precision(world: World) -> None:
    patches_seen: list[str] = []
    opened_now: list[str] = []

    @contextmanager
    def opened(precision: Precision, _: Progress) -> Iterator[FunctionGenerator]:
        def run(patches: FloatArray) -> FloatArray:
            assert opened_now == [precision], "a limit on device memory is for one program"
            patches_seen.append(precision)
            if precision == "fp16" and len(patches_seen) == 2:
                raise PrecisionOverflowError("A value left the range of fp16.")
            return patches

        opened_now.append(precision)
        yield FunctionGenerator(run)
        opened_now.remove(precision)

    rows = world.run_opened(opened, precision="fp16")
    assert opened_now == []
    assert patches_seen == ["fp16", "fp16", "bf16", "fp16", "fp16", "fp16"]
    assert [row.status for row in rows] == ["translated"] * 5
    [told] = [row.notes for row in rows if row.notes]
    assert told == ("A value left the range of fp16. It was done again in bf16.",)
    assert rows[1].notes == told


def test_why_a_study_was_blended_on_the_host_stands_in_its_row(world: World) -> None:
    class FullGenerator(FunctionGenerator):
        """Could blend by itself, but for the second study there is no memory."""

        studies = 0

        def run_window(self, source: Any, _: Any, target: Any, on_tiles: Any) -> list[Any]:
            FullGenerator.studies += 1
            if FullGenerator.studies == 2:
                raise DeviceMemoryError("The card is full.")
            target.values[...] = source.values
            on_tiles(1)
            return []

    rows = world.run_opened(lambda *_: nullcontext(FullGenerator()))
    assert [row.status for row in rows] == ["translated"] * 5
    assert [len(row.notes) for row in rows] == [0, 1, 0, 0, 0]
    assert rows[1].notes == (
        "It was cut and blended on the host, which is slower. The card is full.",
    )


def test_memory_that_runs_out_in_the_middle_fails_the_study(world: World) -> None:
    class FullGenerator(FunctionGenerator):
        def run_window(self, _source: Any, _window: Any, _target: Any, on_tiles: Any) -> list[Any]:
            on_tiles(1)
            raise DeviceMemoryError("The card is full.")

    rows = world.run_opened(lambda *_: nullcontext(FullGenerator()))
    assert {row.status for row in rows} == {"failed"}
