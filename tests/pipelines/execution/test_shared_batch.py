"""Several processes with one device each, here the CPU."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch_world import scan, stored
from support.numerics_models import FunctionGenerator, card
from support.waiting import ENOUGH, eventually
from support.worker_generators import LOSS, Opener

from cuda_cyclegan.engine.cuda.plan_cache import Progress
from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.model.model import Model
from cuda_cyclegan.engine.network.graph import FloatArray, Network
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.execution.batch import Execution, run_batch
from cuda_cyclegan.pipelines.execution.batch_worker import Setup
from cuda_cyclegan.pipelines.execution.failover import Failover
from cuda_cyclegan.pipelines.execution.messages import StopStoring
from cuda_cyclegan.pipelines.execution.outcomes import Outcomes
from cuda_cyclegan.pipelines.execution.shared_batch import SharedBatch
from cuda_cyclegan.pipelines.execution.stages import OpenGenerator
from cuda_cyclegan.pipelines.execution.study_pipeline import Concurrency, StudyPipeline
from cuda_cyclegan.pipelines.execution.supervisor import Supervisor
from cuda_cyclegan.pipelines.progress.events import (
    DeviceOpened,
    Event,
    StudyDone,
    StudyStarted,
    TilesDone,
    Worked,
)
from cuda_cyclegan.pipelines.report.report import StudyReport
from cuda_cyclegan.pipelines.results import storing
from cuda_cyclegan.pipelines.results.aliases import with_aliases
from cuda_cyclegan.pipelines.results.manifest import Manifest, Recipe, load
from cuda_cyclegan.pipelines.results.resume import PlannedStudy, Planner
from cuda_cyclegan.pipelines.settings import TranslateOptions

NAMES = [f"{letter}.nii" for letter in "abcdef"]
RECIPE = Recipe("model", "settings")


class World:
    """Six studies of one tile each, and two workers."""

    def __init__(self, root: Path) -> None:
        self.inputs, self.output = root / "scans", root / "results"
        self.calls = root / "calls"
        self.calls.mkdir()
        self.events: list[Event] = []
        for seed, name in enumerate(NAMES):
            scan(self.inputs / name, seed, (8, 8, 8))

    def run(self, *openers: Opener) -> list[StudyReport]:
        return self._run(
            lambda planned, manifest: SharedBatch(
                self._setups(openers, manifest), planned, manifest
            )
        )

    def run_suspects(self, suspects: Sequence[str], *openers: Opener) -> list[StudyReport]:
        """As if a card had been lost over these studies already."""

        def begun(planned: Sequence[PlannedStudy], manifest: Manifest) -> SharedBatch:
            outcomes = Outcomes()
            for study in planned:
                if str(study.study.name) in suspects:
                    outcomes.hear(StudyStarted(study))
                    outcomes.hear(TilesDone(str(study.study.name), 0, 1))
            return SharedBatch(self._setups(openers, manifest), planned, manifest, outcomes)

        return self._run(begun)

    def run_here(self, opener: OpenGenerator) -> list[StudyReport]:
        """In this process, as long as its device works."""

        def line(planned: Sequence[PlannedStudy], manifest: Manifest) -> Failover:
            setups = self._setups([opener], manifest)
            [setup] = setups
            concurrency = Concurrency(1 << 30, readers=2, networks=2)
            return Failover(
                planned,
                StudyPipeline(setup.task(manifest, opener), planned, concurrency),
                lambda left, outcomes: SharedBatch(setups, left, manifest, outcomes),
            )

        return self._run(line)

    def _run(
        self, line: Callable[[Sequence[PlannedStudy], Manifest], Execution]
    ) -> list[StudyReport]:
        with Manifest(self.output) as manifest:
            planner = Planner(self.output, manifest.entries, RECIPE, overwrite=False)
            planned = planner.plan(discover([self.inputs], self.output).studies)
            line_at_work = line(with_aliases(planned), manifest)
            return list(run_batch(planned, line_at_work, self.hear))

    def hear(self, event: Event) -> None:
        self.events.append(event)

    def made(self) -> list[str]:
        return sorted(path.name for path in self.output.glob("*.nii"))

    def parts(self) -> list[Path]:
        return list(self.output.glob("*.part"))

    def _setups(self, openers: Sequence[OpenGenerator], manifest: Manifest) -> list[Setup]:
        empty: Any = np.empty(0, np.float32)
        model = Model(card(), Network(FunctionGenerator().graph, {}), empty, empty, "")
        options = TranslateOptions((8, 8, 8), precision="fp32")
        concurrency = Concurrency(1 << 30)
        return [
            Setup(
                f"cpu:{n}",
                model,
                options,
                opener,
                (),
                manifest.place,
                RECIPE,
                concurrency,
            )
            for n, opener in enumerate(openers)
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def processes_left() -> list[int]:
    """Children of this process that still run."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return [int(child) for child in children.read_text().split()]


def test_the_studies_are_shared_and_the_rows_are_one_summary(world: World) -> None:
    opener = Opener(world.calls, together=2)
    rows = world.run(opener, opener)
    assert [row.name for row in rows] == NAMES
    assert {row.status for row in rows} == {"translated"}
    assert len(opener.processes()) == 2
    assert sum(isinstance(event, DeviceOpened) for event in world.events) == 2
    tracks = {event.span.track for event in world.events if isinstance(event, Worked)}
    assert tracks == {f"cpu:{n}: {track}" for n in range(2) for track in ("read", "infer", "write")}
    entries = load(world.output)
    assert {name: entry.status for name, entry in entries.items()} == dict.fromkeys(
        NAMES, "written"
    )
    assert processes_left() == []


def test_a_killed_workers_studies_are_given_to_another(world: World) -> None:
    opener = Opener(world.calls, deaths=1)
    rows = world.run(opener, opener)
    assert {row.status for row in rows} == {"translated"}
    assert any("SIGKILL" in note for row in rows for note in row.notes)
    assert world.made() == NAMES
    assert world.parts() == []
    done = [event.row.name for event in world.events if isinstance(event, StudyDone)]
    assert sorted(done) == NAMES


@pytest.mark.parametrize("here", [False, True])
def test_a_scan_with_two_names_is_stored_for_both(world: World, here: bool) -> None:
    os.link(world.inputs / NAMES[0], world.inputs / "z.nii")
    opener = Opener(world.calls)
    rows = world.run_here(opener) if here else world.run(opener, opener)
    assert [row.name for row in rows] == [*NAMES, "z.nii"]
    assert {row.status for row in rows} == {"translated"}
    assert world.made() == [*NAMES, "z.nii"]
    assert sum(isinstance(event, TilesDone) and event.done == 0 for event in world.events) == 6
    assert load(world.output)["z.nii"].status == "written"


def test_both_names_share_the_fate_of_a_scan_that_kills_its_workers(world: World) -> None:
    stored(world.inputs / NAMES[2], np.full((8, 8, 8), 900, np.int16))
    os.link(world.inputs / NAMES[2], world.inputs / "z.nii")
    rows = world.run(Opener(world.calls, brightest=800), Opener(world.calls, brightest=800))
    assert [row.name for row in rows if row.status == "failed"] == [NAMES[2], "z.nii"]
    assert world.made() == [name for name in NAMES if name != NAMES[2]]


def test_a_worker_killed_from_outside_is_made_up_for(world: World) -> None:
    opener = Opener(world.calls, holding=1)
    victims: list[int] = []

    def kill_one(event: Event) -> None:
        if isinstance(event, StudyDone) and not victims:
            victims.append(int(sorted(opener.processes())[0]))
            os.kill(victims[0], signal.SIGKILL)
            opener.let_go()

    world.hear = kill_one  # type: ignore[method-assign]
    rows = world.run(opener, opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert victims
    assert world.parts() == []


def test_a_study_that_kills_every_worker_fails_and_the_others_do_not(world: World) -> None:
    stored(world.inputs / "c2.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    opener = Opener(world.calls, brightest=2000)
    rows = world.run(opener, opener)
    assert [row.name for row in rows if row.status == "failed"] == ["c2.nii"]
    assert world.made() == NAMES
    failure = next(row.failure for row in rows if row.failure)
    assert failure is not None
    assert failure.kind == "engine"
    assert "SIGKILL" in failure.reason


def test_a_card_that_falls_off_leaves_its_studies_to_the_other(world: World) -> None:
    rows = world.run(Opener(world.calls, losses=2), Opener(world.calls))
    assert [row.status for row in rows] == ["translated"] * 6
    assert processes_left() == []


def test_a_lost_card_is_opened_again_in_another_process(world: World) -> None:
    opener = Opener(world.calls, losses=1)
    rows = world.run_here(opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert world.made() == NAMES
    [notes, *_] = [row.notes for row in rows if row.notes]
    assert "ECC error" in notes[0]
    assert "begun again in another process" in notes[0]
    assert str(os.getpid()) in opener.processes()
    assert len(opener.processes()) == 2
    done = [event.row.name for event in world.events if isinstance(event, StudyDone)]
    assert sorted(done) == NAMES
    assert sum(isinstance(event, DeviceOpened) for event in world.events) == 1
    assert processes_left() == []


def test_a_card_that_is_lost_after_an_interrupt_is_not_opened_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the loss, heard while a result is stored, end the batch in another way."""
    is_storing, is_stopped = threading.Event(), threading.Event()
    write, stop, calls = storing.write, StudyPipeline.stop, iter(range(9))

    def write_after_the_loss(*arguments: Any) -> Any:
        is_storing.set()
        assert is_stopped.wait(ENOUGH)
        for thread in threading.enumerate():
            if thread.name.startswith("infer"):
                thread.join(ENOUGH)
        return write(*arguments)

    def stop_and_tell(pipeline: StudyPipeline) -> None:
        stop(pipeline)
        is_stopped.set()

    def interrupted_and_lost(patches: FloatArray) -> FloatArray:
        call = next(calls)
        if call == 0:
            return patches
        assert is_storing.wait(ENOUGH)
        if call == 1:
            os.kill(os.getpid(), signal.SIGINT)
        assert is_stopped.wait(ENOUGH)
        raise LOSS

    @contextmanager
    def opened(_: Precision, __: Progress) -> Iterator[FunctionGenerator]:
        yield FunctionGenerator(interrupted_and_lost)

    monkeypatch.setattr(storing, "write", write_after_the_loss)
    monkeypatch.setattr(StudyPipeline, "stop", stop_and_tell)
    monkeypatch.setattr("cuda_cyclegan.pipelines.execution.batch.PATIENCE", ENOUGH)
    rows = world.run_here(opened)
    assert sorted(row.status for row in rows)[-1] == "translated"
    assert len(world.made()) == 1
    assert processes_left() == []


def test_a_study_that_loses_every_card_alone_is_tried_three_times_and_fails_alone(
    world: World,
) -> None:
    stored(world.inputs / "a.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    opener = Opener(world.calls, losing=2000)
    rows = world.run_here(opener)
    assert [row.status for row in rows] == ["failed", *["translated"] * 5]
    failure = rows[0].failure
    assert failure is not None
    assert failure.kind == "engine"
    assert "ECC error" in failure.reason
    assert world.made() == NAMES[1:]
    assert len(list(world.calls.glob("lost *"))) in (3, 4)  # the first perhaps not alone


def test_a_card_that_stays_away_fails_what_is_left(world: World) -> None:
    rows = world.run_here(Opener(world.calls, losses=100))
    assert {row.status for row in rows} == {"failed"}
    assert len(list(world.calls.glob("loss *"))) < 12
    assert processes_left() == []


def test_a_card_that_does_not_open_again_fails_what_is_left_and_keeps_the_rest(
    world: World,
) -> None:
    stored(world.inputs / "d.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    rows = world.run_here(Opener(world.calls, losing=2000, opens=1))
    assert [row.name for row in rows] == NAMES
    made = [row.name for row in rows if row.status == "translated"]
    assert made == world.made() != []
    assert {row.failure and row.failure.reason for row in rows if row.status == "failed"} == {
        "The card fell off the bus."
    }


@pytest.mark.parametrize("suspects", [1, 6])
def test_studies_over_which_a_card_was_lost_are_each_worked_on_alone(
    world: World, suspects: int
) -> None:
    rows = world.run_suspects(NAMES[:suspects], Opener(world.calls, seconds=0.05))
    assert {row.status for row in rows} == {"translated"}
    told = [type(event) for event in world.events if isinstance(event, StudyStarted | StudyDone)]
    assert told[: 2 * suspects] == [StudyStarted, StudyDone] * suspects


def test_the_first_study_may_kill_its_worker_and_the_others_are_done(world: World) -> None:
    """Although neither that worker nor its successors have finished a study."""
    stored(world.inputs / "a.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    rows = world.run(Opener(world.calls, brightest=2000))
    assert [row.status for row in rows] == ["failed", *["translated"] * 5]
    assert len(list(world.calls.glob("open *"))) in (4, 5)  # it died of it alone three times


@pytest.mark.parametrize("broken", [1, 3])
def test_a_process_that_is_killed_while_it_opens_its_device_is_replaced(
    world: World, broken: int
) -> None:
    rows = world.run(Opener(world.calls, broken=broken))
    assert {row.status for row in rows} == {"translated"}


def test_processes_that_are_always_killed_end_the_batch(world: World) -> None:
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        world.run(Opener(world.calls, broken=100))
    assert len(list(world.calls.glob("broken *"))) <= 5


def test_a_device_that_does_not_open_leaves_the_work_to_the_other(world: World) -> None:
    rows = world.run(Opener(world.calls, refuse=True), Opener(world.calls))
    assert {row.status for row in rows} == {"translated"}


def test_without_any_device_the_batch_ends_with_its_error(world: World) -> None:
    with pytest.raises(EngineError, match="fell off the bus"):
        world.run(Opener(world.calls, refuse=True), Opener(world.calls, refuse=True))
    assert world.made() == []
    assert processes_left() == []


def test_an_interrupt_stops_all_workers_and_the_next_run_does_the_rest(world: World) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, StudyDone):
            raise KeyboardInterrupt

    opener = Opener(world.calls, holding=2)
    hear, world.hear = world.hear, interrupt  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cuda_cyclegan.pipelines.execution.batch.PATIENCE", 0.5)
        rows = world.run(opener, opener)
    world.hear = hear  # type: ignore[method-assign]
    made = world.made()
    assert 1 <= len(made) < 6
    assert [row.name for row in rows if row.status == "translated"] == made
    assert processes_left() == []
    assert world.parts() == []
    opener.let_go()
    again = world.run(opener, opener)
    assert sum(row.status == "up to date" for row in again) == len(made)
    assert world.made() == NAMES


def test_results_that_are_in_place_at_a_stop_are_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = iter([KeyboardInterrupt])

    def interrupt(event: Event) -> None:
        if isinstance(event, TilesDone) and world.made() and (error := next(interrupts, None)):
            raise error

    opener = Opener(world.calls, recording_late=True)
    stop = Supervisor.stop

    def stop_and_let_go(supervisor: Any, order: Any) -> None:
        stop(supervisor, order)
        if isinstance(order, StopStoring):
            opener.let_go()

    monkeypatch.setattr(Supervisor, "stop", stop_and_let_go)
    monkeypatch.setattr("cuda_cyclegan.pipelines.execution.shared_batch.LAST_MOMENT", ENOUGH)
    monkeypatch.setattr(world, "hear", interrupt)
    monkeypatch.setattr("cuda_cyclegan.pipelines.execution.batch.PATIENCE", 0.0)
    world.run(opener, opener)
    written = [name for name, e in load(world.output).items() if e.status == "written"]
    assert sorted(written) == world.made() != []
    assert processes_left() == []


def test_a_study_whose_worker_a_stop_ends_is_not_blamed_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, TilesDone):
            raise KeyboardInterrupt

    opener = Opener(world.calls, holding=0)
    monkeypatch.setattr(world, "hear", interrupt)
    monkeypatch.setattr("cuda_cyclegan.pipelines.execution.batch.PATIENCE", 0.1)
    rows = world.run_suspects(NAMES, opener, opener)
    assert {row.status for row in rows} == {"interrupted"}
    assert processes_left() == []


def test_a_service_managers_signal_leaves_the_workers_to_their_holder(world: World) -> None:
    opener = Opener(world.calls, together=2)

    def terminate(event: Event) -> None:
        if isinstance(event, StudyDone):
            for worker in processes_left():
                os.kill(worker, signal.SIGTERM)

    world.hear = terminate  # type: ignore[method-assign]
    rows = world.run(opener, opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert len(opener.processes()) == 2


def test_workers_end_when_their_holder_is_gone(world: World) -> None:
    holder = os.fork()
    if holder == 0:
        opener = Opener(world.calls, holding=0)
        world.run(opener, opener)
    eventually(lambda: len(children_of(holder)) == 2)
    workers = children_of(holder)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    eventually(lambda: not any(map(runs, workers)))


def children_of(process: int) -> list[int]:
    try:
        return [
            int(child)
            for task in Path(f"/proc/{process}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def runs(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False
