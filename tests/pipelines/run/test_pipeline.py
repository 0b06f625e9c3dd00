"""Stages that overlap: what waits for what, and what a failure leaves."""

import json
import os
import struct
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any
from weakref import ref

import pytest
from support.batch_world import scan
from support.numerics_models import FunctionGenerator
from support.pipeline_world import PLENTY, PipelineWorld, threads_at_work
from support.waiting import ENOUGH, ToldCondition, eventually
from support.watched_calls import watch_calls

from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.network.layers import FloatArray
from cuda_cyclegan.engine.options import Progress
from cuda_cyclegan.pipelines.events import Event, Tuning, Worked
from cuda_cyclegan.pipelines.host import memory
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.file_states import FileState
from cuda_cyclegan.pipelines.results.manifest import load
from cuda_cyclegan.pipelines.run import in_flight, pipeline, study_run
from cuda_cyclegan.pipelines.run.concurrency import WeightedSemaphore
from cuda_cyclegan.pipelines.run.in_flight import StudyProgress
from cuda_cyclegan.pipelines.run.input_files import InputFiles
from cuda_cyclegan.pipelines.run.outcomes import BatchEvents
from cuda_cyclegan.pipelines.run.pipeline import Concurrency
from cuda_cyclegan.pipelines.run.study_run import StudyRun
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.translator import Scans, StudyTranslator, Translated
from cuda_cyclegan.pipelines.timeline import Timeline, Trace


def test_the_next_study_is_read_and_the_last_one_stored_while_one_is_translated(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage of the second study waits for its neighbours, so only an overlap gets on."""
    third_is_read, first_is_finished = threading.Event(), threading.Event()
    runs = iter(range(9))
    watch_calls(monkeypatch, "read", lambda number: number == 2 and third_is_read.set())
    watch_calls(monkeypatch, "finish", lambda number: number == 0 and first_is_finished.set())

    def network(patches: FloatArray) -> FloatArray:
        if next(runs) == 1:
            assert third_is_read.wait(ENOUGH)
            assert first_is_finished.wait(ENOUGH)
        return patches

    assert [row.status for row in world.run(network)] == ["translated"] * 5


@pytest.mark.parametrize("stage", ["read", "prepare"])
def test_a_file_is_hashed_while_it_is_read_and_prepared(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    begun = threading.Event()

    def wait_for_stage(_: int) -> None:
        assert begun.wait(ENOUGH)

    watch_calls(monkeypatch, stage, lambda _: begun.set())
    watch_calls(monkeypatch, "states", wait_for_stage, where=InputFiles)
    assert [row.status for row in world.run()] == ["translated"] * 5


def test_a_study_that_changes_before_it_is_hashed_fails(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan was read whole by then, but its hash would be that of other bytes."""
    path, changed = world.root / "scans" / "a.nii", threading.Event()

    def change(number: int) -> None:
        if number == 0:
            os.utime(path, (1, 1))
            changed.set()

    watch_calls(monkeypatch, "prepare", change)
    watch_calls(monkeypatch, "states", lambda _: changed.wait(ENOUGH), where=InputFiles)
    rows = world.run()
    assert [row.status for row in rows] == ["failed", *["translated"] * 4]
    assert rows[0].failure
    assert "a.nii changed while it was read" in rows[0].failure.reason


@pytest.mark.parametrize("damage", [b"", b"more", None])
def test_a_study_that_changes_while_it_is_read_fails_alone(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    """Whether it can be read or not; the next run does it."""
    path = world.root / "scans" / "b.nii"
    whole = path.read_bytes()

    def change(number: int) -> None:
        if number == 1:
            path.write_bytes(whole + damage if damage is not None else whole[:1000])
            os.utime(path, (1, 1))

    watch_calls(monkeypatch, "read", change)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert rows[1].failure
    assert "b.nii changed while it was read" in rows[1].failure.reason
    path.write_bytes(whole)
    assert [row.status for row in world.run()].count("translated") == 1


def give_way(path: Path, other: Path) -> None:
    """Put other voxels in a scan's place, with its size and its dates, as copies may keep them."""
    before = path.stat()

    def is_later() -> bool:
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        return other.stat().st_ctime_ns > before.st_ctime_ns

    eventually(is_later)  # file systems keep time in steps
    assert other.stat().st_size == before.st_size
    other.replace(path)


@pytest.mark.parametrize("stage", ["states", "infer"])
def test_a_scan_that_gives_way_to_another_of_its_size_and_date_fails(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The change is before or after hashing: the hash of one and the voxels of another are not a
    result.
    """
    path, other = world.root / "scans" / "b.nii", scan(world.root / "other.nii", 9, (16, 16, 16))

    def change(number: int) -> None:
        if number == 1:
            give_way(path, other)

    watch_calls(
        monkeypatch, stage, change, where=InputFiles if stage == "states" else StudyTranslator
    )
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert rows[1].failure
    assert "b.nii changed while it was read" in rows[1].failure.reason
    assert world.made() == ["a.nii", "c.nii", "d.nii", "e.nii"]
    assert [row.status for row in world.run()].count("translated") == 1


def test_a_scan_that_gets_other_rights_while_it_is_translated_is_the_same(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file does of which a backup makes another hard link."""
    path, hashed, states = world.root / "scans" / "b.nii", threading.Event(), InputFiles.states

    def told_states(files: InputFiles, go_on: Callable[[], None]) -> tuple[FileState, ...]:
        known = states(files, go_on)
        if known[0].name == path.name:
            hashed.set()
        return known

    def change(number: int) -> None:
        if number == 1:
            assert hashed.wait(ENOUGH)
            path.chmod(0o600)

    monkeypatch.setattr(InputFiles, "states", told_states)
    watch_calls(monkeypatch, "infer", change)
    assert [row.status for row in world.run()] == ["translated"] * 5
    assert [row.status for row in world.run()] == ["up to date"] * 5


def test_a_refused_study_is_hashed_no_further(world: PipelineWorld) -> None:
    """The file may claim more than fits, and be as long: hashing these zeros would take hours."""
    path = world.root / "scans" / "b.nii"
    header, extent = bytearray(path.read_bytes()[:352]), 16_000
    header[42:48] = struct.pack("<3h", extent, extent, extent)
    path.write_bytes(header)
    os.truncate(path, 352 + 2 * extent**3)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert rows[1].failure
    assert "b.nii needs 7629.4 GiB of memory, but" in rows[1].failure.reason


def test_a_study_that_no_memory_suffices_for_fails_alone(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(world.root / "scans" / "b.nii", 1, (48, 48, 48))
    monkeypatch.setattr(memory, "most_memory", lambda: 48**3 * 4)
    rows = world.run()
    assert [row.status for row in rows] == ["translated", "failed", *["translated"] * 3]
    assert rows[1].failure
    assert rows[1].failure.kind == "preparation"
    assert "GiB of memory, and this program may use only" in rows[1].failure.reason


def test_stored_study_keeps_no_voxels_while_others_are_translated(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread may still hold a study whose result is stored."""
    arrays, first_is_stored, left = list[ref[Any]](), threading.Event(), list[bool]()
    finish, store = StudyTranslator.finish, StudyRun.store
    runs = iter(range(9))

    def finishes(*arguments: Any) -> Translated:
        translated = finish(*arguments)
        arrays.append(ref(translated.volumes[0].voxels))
        return translated

    def stores(run: StudyRun) -> None:
        store(run)
        del run  # whose caller has it still
        first_is_stored.set()

    def network(patches: FloatArray) -> FloatArray:
        if next(runs) == 2:
            assert first_is_stored.wait(ENOUGH)
            left.append(arrays[0]() is not None)
        return patches

    monkeypatch.setattr(StudyTranslator, "finish", finishes)
    monkeypatch.setattr(StudyRun, "store", stores)
    assert [row.status for row in world.run(network)] == ["translated"] * 5
    assert left == [False]


def test_no_more_is_under_way_than_the_concurrency_allows(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds if reading is much faster than the network."""
    reads: list[None] = []
    seen: list[int] = []
    watch_calls(monkeypatch, "read", lambda _: reads.append(None))
    waits: SimpleQueue[int] = SimpleQueue()

    class Places(WeightedSemaphore):
        """Places that report which one a thread waits for."""

        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._asked = 0
            self._changed = ToldCondition(lambda: waits.put(self._asked), self._lock)

        def acquire(self, amount: int = 1) -> bool:
            self._asked += 1
            return super().acquire(amount)

    def network(patches: FloatArray) -> FloatArray:
        next_place = len(seen) + 3
        while next_place <= 6 and waits.get(timeout=ENOUGH) != next_place:
            pass
        seen.append(len(reads))
        return patches

    monkeypatch.setattr(pipeline, "WeightedSemaphore", Places)
    world.run(network)
    assert seen == [2, 3, 4, 5, 5]


def test_studies_that_do_not_fit_together_are_worked_on_one_by_one(world: PipelineWorld) -> None:
    under_way: list[int] = []

    def network(patches: FloatArray) -> FloatArray:
        under_way.append(len(list((world.root / "results").glob("*.nii"))))
        return patches

    rows = world.run(network, Concurrency(host_bytes=1))
    assert [row.status for row in rows] == ["translated"] * 5
    assert under_way == [0, 1, 2, 3, 4]


def test_readers_hold_no_more_than_the_limit(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three studies have room: the third waits before its scan is read, not behind that."""
    for name in "abc":
        scan(world.root / "scans" / f"{name}.nii", 1, (128, 128, 96))
    for name in "de":
        (world.root / "scans" / f"{name}.nii").unlink()
    held, most, lock = 0, 0, threading.Lock()
    asked, third_asked, needs = iter(range(9)), threading.Event(), list[int]()
    read, real = StudyTranslator.read, StudyProgress
    take, settle, end = real.take_memory, real.adjust_memory, real.end

    def counted(amount: int) -> None:
        nonlocal held, most
        with lock:
            held += amount
            most = max(most, held)

    def takes(self: StudyProgress, foreseen: int) -> None:
        needs.append(foreseen)
        if next(asked) == 2:
            third_asked.set()
        take(self, foreseen)

    def reads(*arguments: Any) -> Scans:
        scans = read(*arguments)
        counted(scans.volumes[0].voxels.nbytes)
        return scans

    def settles(self: StudyProgress, needed: int) -> None:
        settle(self, needed)
        counted(needed - SCAN_BYTES)

    def ends(self: StudyProgress, *aliases: Any) -> None:
        counted(-self._held)
        end(self, *aliases)

    def network(patches: FloatArray) -> FloatArray:
        assert third_asked.wait(ENOUGH)
        return patches

    monkeypatch.setattr(StudyTranslator, "read", reads)
    monkeypatch.setattr(real, "take_memory", takes)
    monkeypatch.setattr(real, "adjust_memory", settles)
    monkeypatch.setattr(real, "end", ends)
    need = 5 * SCAN_BYTES  # the scan, and in float32 what the network makes, and the result
    rows = world.run(network, Concurrency(2 * need + SCAN_BYTES // 2, readers=3))
    assert [row.status for row in rows] == ["translated"] * 3
    assert set(needs) == {need}
    assert (most, held) == (2 * need, 0)


SCAN_BYTES = 128 * 128 * 96 * 2


def test_a_scan_that_is_more_than_its_header_let_expect_waits_for_nobody(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for what the other holds."""
    look = study_run.look_at_study

    def too_little(*arguments: Any) -> Any:
        return replace(look(*arguments), volumes=(), reading_bytes=0)

    monkeypatch.setattr(study_run, "look_at_study", too_little)
    rows = world.run(concurrency=Concurrency(1, readers=3, writers=2))
    assert [row.status for row in rows] == ["translated"] * 5
    assert threads_at_work() == []


@pytest.mark.parametrize("function", ["states", "read", "prepare", "infer", "finish"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x"), EngineError("The card fell.")])
def test_a_study_that_raises_in_any_stage_fails_alone(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception
) -> None:
    def second(number: int) -> None:
        if number == 1:
            raise error

    where = InputFiles if function == "states" else StudyTranslator
    watch_calls(monkeypatch, function, second, where)
    rows = world.run()
    assert len({row.name for row in rows}) == 5
    failed = {row.name for row in rows if row.status == "failed"}
    translated = [row.name for row in rows if row.status == "translated"]
    assert (len(failed), len(translated)) == (1, 4)
    if function != "states":  # Threads that hash begin in any order.
        assert failed == {"b.nii"}
    assert world.made() == translated
    assert threads_at_work() == []


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("x"), OSError(28, "No space left")])
def test_a_study_that_cannot_be_stored_fails_alone(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def second_fails(number: int) -> None:
        if number == 1:
            raise error

    watch_calls(monkeypatch, "write", second_fails, where=storing)
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


def test_several_readers_and_writers_make_the_same_rows_in_order(world: PipelineWorld) -> None:
    rows = world.run(concurrency=Concurrency(PLENTY, readers=3, writers=2))
    assert [row.name for row in rows] == ["a.nii", "b.nii", "c.nii", "d.nii", "e.nii"]
    assert {row.status for row in rows} == {"translated"}
    assert {entry.status for entry in load(world.root / "results").values()} == {"written"}
    assert threads_at_work() == []


def test_seconds_are_those_of_work_and_not_of_waiting(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock only goes on in the network, while the threads before and after it wait."""
    now, runs = [100.0], iter(range(9))
    message, reported, report = threading.Condition(), list[Event](), BatchEvents.report
    monkeypatch.setattr(in_flight, "Stopwatch", partial(Stopwatch, clock=lambda: now[0]))

    def reported_by(events: BatchEvents, event: Event) -> None:
        report(events, event)
        with message:
            reported.append(event)
            message.notify_all()

    def others_wait(run: int) -> bool:
        spans = [event.span for event in reported if isinstance(event, Worked)]
        stages = [span.stage for span in spans]
        prepared = 3 * min(run + 2, 5)
        return stages.count("write") == run and stages.count("prepare") == prepared

    def network(patches: FloatArray) -> FloatArray:
        run = next(runs)
        with message:
            assert message.wait_for(lambda: others_wait(run), ENOUGH)
        now[0] += 1.0
        return patches

    monkeypatch.setattr(BatchEvents, "report", reported_by)
    timeline = Timeline(now[0])
    rows = world.run(network)
    for event in world.events:
        timeline.handle(event)
    use = timeline.use()
    moments = [row.in_flight or (0.0, 0.0) for row in timeline.dated(rows)]
    assert moments == [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5)]
    for row in rows:
        assert row.seconds == sum(row.stages.values()) == row.stages["infer"] == 1.0
    assert (use.computing, use.busy, use.wall, use.computing_share) == (5.0, 5.0, 5.0, 1.0)


def test_a_trace_shows_every_span_on_the_row_of_its_thread(
    world: PipelineWorld, tmp_path: Path
) -> None:
    trace = Trace()
    world.run()
    for event in world.events:
        trace.handle(event)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    seen = {(tracks[e["tid"]], e["name"]) for e in spans}
    assert seen == {
        *(("read", stage) for stage in ("read", "prepare")),
        *(("infer", stage) for stage in ("infer", "blend")),
        ("blend", "blend"),
        *(("write", stage) for stage in ("finish", "write")),
    }
    assert {e["args"]["study"] for e in spans} == {f"{name}.nii" for name in "abcde"}
    for track in tracks:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == track)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(own))


class Tunable:
    """A network that can find faster tactics; the search is the test's."""

    graph, device = FunctionGenerator().graph, "numpy"

    def __init__(self, tune: Callable[[float, Progress], None]) -> None:
        self.tune = tune
        self.patches = 0

    def __call__(self, patches: FloatArray) -> FloatArray:
        self.patches += len(patches)
        return patches


def test_a_short_batch_leaves_no_time_for_tuning(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(_until: float, _progress: Progress) -> None:
        raise AssertionError("a result waited for it")

    moments = iter((100.0, 109.0))
    monkeypatch.setattr(pipeline, "monotonic", lambda: next(moments))
    rows = world.run_opened(lambda *_: nullcontext(Tunable(tune)))
    assert [row.status for row in rows] == ["translated"] * 5


def test_a_batch_leaves_a_tenth_of_its_time_for_tuning_once_all_is_translated(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.pipeline._LEAST_TUNING", 0.0)
    found: list[tuple[float, int]] = []
    network = Tunable(lambda until, _: found.append((until, network.patches)))
    begin = monotonic()
    rows = world.run_opened(lambda *_: nullcontext(network))
    end = monotonic()
    assert [row.status for row in rows] == ["translated"] * 5
    [(until, patches)] = found
    assert patches == 5
    assert begin < until < end + (end - begin) / 10


def test_an_interrupt_ends_the_search_for_later_starts_at_its_next_step(
    world: PipelineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuda_cyclegan.pipelines.run.pipeline._LEAST_TUNING", 0.0)

    def tune(_until: float, progress: Progress) -> None:
        end = monotonic() + ENOUGH
        while monotonic() < end:
            progress("a convolution", 0.5)
        raise AssertionError("it was not stopped")

    def interrupt(event: Event) -> None:
        if isinstance(event, Tuning):
            raise KeyboardInterrupt

    world.handle = interrupt
    rows = world.run_opened(lambda *_: nullcontext(Tunable(tune)))
    assert rows[0].status == "translated"
    assert {row.status for row in rows} <= {"translated", "interrupted"}
