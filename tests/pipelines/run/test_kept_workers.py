"""Workers that keep their networks open between batches."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.batch_world import scan, stored, tiny_model
from support.processes import processes_left, runs
from support.shared_batch_world import NAMES, SharedBatchWorld
from support.waiting import eventually
from support.worker_generators import Opener

from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.pipelines.run.kept_workers import KeptWorkers


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SharedBatchWorld]:
    yield SharedBatchWorld(tmp_path)
    eventually(lambda: processes_left() == [])


@pytest.fixture
def kept(world: SharedBatchWorld) -> Iterator[KeptWorkers]:
    workers = KeptWorkers(world.model)
    yield workers
    workers.close()


@pytest.mark.process
def test_batches_share_processes_and_their_open_networks(
    world: SharedBatchWorld, kept: KeptWorkers
) -> None:
    opener = Opener(world.calls, opens=1)  # a second opening fails
    assert done(world, kept, opener) == {*NAMES}
    first = opener.processes()
    scan(world.inputs / "later.nii", 77, (8, 8, 8))
    assert done(world, kept, opener) == {"later.nii"}
    assert opener.processes() == first == {*map(str, processes_left())}
    kept.close()
    assert processes_left() == []


@pytest.mark.process
def test_a_batch_takes_the_process_that_was_prepared_for_it(
    world: SharedBatchWorld, kept: KeptWorkers
) -> None:
    kept.prepare("cpu:0")
    prepared = {*map(str, processes_left())}
    opener = Opener(world.calls)
    assert done(world, kept, opener) == {*NAMES}
    assert opener.processes() == prepared


@pytest.mark.process
def test_idle_processes_that_died_are_replaced(world: SharedBatchWorld, kept: KeptWorkers) -> None:
    for _ in range(6):  # more than may end in vain
        kept.prepare("cpu:0")
    prepared = processes_left()
    for process in prepared:
        os.kill(process, signal.SIGKILL)
    eventually(lambda: not any(map(runs, prepared)))
    opener = Opener(world.calls)
    assert done(world, kept, opener) == {*NAMES}
    assert not opener.processes() & {*map(str, prepared)}


@pytest.mark.slow
def test_a_study_that_kills_a_kept_process_fails_alone(
    world: SharedBatchWorld, kept: KeptWorkers
) -> None:
    opener = Opener(world.calls, brightest=2000)
    assert done(world, kept, opener) == {*NAMES}
    bright = np.random.default_rng(9).integers(3000, 4000, (8, 8, 8))
    stored(world.inputs / "deadly.nii", bright.astype(np.int16))
    for seed in range(3):
        scan(world.inputs / f"later-{seed}.nii", 70 + seed, (8, 8, 8))
    rows = world.run_with(kept, opener)
    failed = {row.name: row for row in rows if row.status == "failed"}
    assert {*failed} == {"deadly.nii"}
    assert failed["deadly.nii"].failure is not None
    assert "killed by SIGKILL" in failed["deadly.nii"].failure.reason
    assert len([row for row in rows if row.status == "translated"]) == 3


@pytest.mark.process
def test_a_model_that_was_replaced_meanwhile_is_reported(
    world: SharedBatchWorld, tmp_path: Path
) -> None:
    other = tiny_model(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(EngineError, match="safetensors is another file than the model of the bat"):
        world.run_with(KeptWorkers(other), Opener(world.calls))
    assert world.made() == []


@pytest.mark.slow
def test_an_idle_process_ends_by_itself(world: SharedBatchWorld, kept: KeptWorkers) -> None:
    done(world, kept, Opener(world.calls))
    [idle] = processes_left()
    eventually(lambda: not runs(idle))


def done(world: SharedBatchWorld, kept: KeptWorkers, opener: Opener) -> set[str]:
    """Return the names of the studies that a batch with these workers translated."""
    return {row.name for row in world.run_with(kept, opener) if row.status == "translated"}
