"""Several processes with one device each, here the CPU."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import stored
from support.processes import processes_left
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.worker_generators import Opener

from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.pipelines.events import DeviceOpened, Event, StudyDone, TilesDone, Worked
from cuda_cyclegan.pipelines.results.manifest import load


@pytest.fixture
def world(tmp_path: Path) -> SharedBatchWorld:
    return SharedBatchWorld(tmp_path)


@pytest.mark.process
def test_the_studies_are_shared_and_the_rows_are_one_summary(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, together=2)
    rows = world.run(opener, opener)
    assert [row.name for row in rows] == NAMES
    assert {row.status for row in rows} == {"translated"}
    assert len(opener.processes()) == 2
    assert sum(isinstance(event, DeviceOpened) for event in world.events) == 2
    tracks = {event.span.track for event in world.events if isinstance(event, Worked)}
    threads = "read", "infer", "blend", "write"
    assert tracks == {f"cpu:{n}: {thread}" for n in range(2) for thread in threads}
    entries = load(world.output)
    assert {name: entry.status for name, entry in entries.items()} == dict.fromkeys(
        NAMES, "written"
    )
    assert processes_left() == []


@pytest.mark.process
def test_a_killed_workers_studies_are_given_to_another(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, holding=0)
    begun, handle = set[str](), world.handle

    def kill_one_once_both_have_begun(event: Event) -> None:
        handle(event)
        if isinstance(event, TilesDone) and len(begun) < 2:
            begun.add(event.study)
            if len(begun) == 2:
                os.kill(processes_left()[0], signal.SIGKILL)
                opener.let_go()

    world.handle = kill_one_once_both_have_begun  # type: ignore[method-assign]
    rows = world.run(opener, opener)
    assert {row.status for row in rows} == {"translated"}
    assert any("SIGKILL" in note for row in rows for note in row.notes)
    assert world.made() == NAMES
    assert world.parts() == []
    done = [event.row.name for event in world.events if isinstance(event, StudyDone)]
    assert sorted(done) == NAMES


@pytest.mark.process
@pytest.mark.parametrize("here", [False, True])
def test_a_scan_with_two_names_is_stored_for_both(world: SharedBatchWorld, here: bool) -> None:
    os.link(world.inputs / NAMES[0], world.inputs / "z.nii")
    opener = Opener(world.calls)
    rows = world.run_here(opener) if here else world.run(opener, opener)
    assert [row.name for row in rows] == [*NAMES, "z.nii"]
    assert {row.status for row in rows} == {"translated"}
    assert world.made() == [*NAMES, "z.nii"]
    assert sum(isinstance(event, TilesDone) and event.done == 0 for event in world.events) == 6
    assert load(world.output)["z.nii"].status == "written"


@pytest.mark.slow
def test_both_names_share_the_fate_of_a_scan_that_kills_its_workers(
    world: SharedBatchWorld,
) -> None:
    stored(world.inputs / NAMES[2], np.full((8, 8, 8), 900, np.int16))
    os.link(world.inputs / NAMES[2], world.inputs / "z.nii")
    rows = world.run(Opener(world.calls, brightest=800), Opener(world.calls, brightest=800))
    assert [row.name for row in rows if row.status == "failed"] == [NAMES[2], "z.nii"]
    assert world.made() == [name for name in NAMES if name != NAMES[2]]


@pytest.mark.slow
def test_a_worker_killed_from_outside_is_made_up_for(world: SharedBatchWorld) -> None:
    opener = Opener(world.calls, holding=1)
    victims: list[int] = []

    def kill_one(event: Event) -> None:
        if isinstance(event, StudyDone) and not victims:
            victims.append(int(sorted(opener.processes())[0]))
            os.kill(victims[0], signal.SIGKILL)
            opener.let_go()

    world.handle = kill_one  # type: ignore[method-assign]
    rows = world.run(opener, opener)
    assert [row.status for row in rows] == ["translated"] * 6
    assert victims
    assert world.parts() == []


@pytest.mark.process
def test_a_study_that_kills_every_worker_fails_and_the_others_do_not(
    world: SharedBatchWorld,
) -> None:
    stored(world.inputs / "c2.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    opener = Opener(world.calls, brightest=2000)
    rows = world.run(opener, opener)
    assert [row.name for row in rows if row.status == "failed"] == ["c2.nii"]
    assert world.made() == NAMES
    failure = next(row.failure for row in rows if row.failure)
    assert failure is not None
    assert failure.kind == "engine"
    assert "SIGKILL" in failure.reason


@pytest.mark.slow
def test_the_first_study_may_kill_its_worker_and_the_others_are_done(
    world: SharedBatchWorld,
) -> None:
    """The others are done although neither that worker nor its successors have finished a study."""
    stored(world.inputs / "a.nii", np.full((8, 8, 8), 5000, np.int16) + np.eye(8, dtype=np.int16))
    rows = world.run(Opener(world.calls, brightest=2000))
    assert [row.status for row in rows] == ["failed", *["translated"] * 5]
    assert len(list(world.calls.glob("open *"))) in (4, 5)  # it died of it alone three times


@pytest.mark.slow
@pytest.mark.parametrize("broken", [1, 3])
def test_a_process_that_is_killed_while_it_opens_its_device_is_replaced(
    world: SharedBatchWorld, broken: int
) -> None:
    rows = world.run(Opener(world.calls, broken=broken))
    assert {row.status for row in rows} == {"translated"}


@pytest.mark.slow
def test_processes_that_are_always_killed_end_the_batch(world: SharedBatchWorld) -> None:
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        world.run(Opener(world.calls, broken=100))
    assert len(list(world.calls.glob("broken *"))) <= 5
