"""Jobs of DICOM series to which more images come before a worker takes them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.dicom_phantoms import Phantom
from support.queue_world import QueueWorld

MR = Phantom("MR", slices=20, intercept=0.0)
OTHER = replace(MR, series="1.2.3.4.5.7", number=4)


@pytest.fixture
def world(tmp_path: Path) -> QueueWorld:
    """World with the first sixteen slices of a series."""
    made = QueueWorld(tmp_path)
    replace(MR, slices=16).write(made.inputs / "mr")
    os.utime(made.inputs / "mr", (1, 1))  # kernels keep time in steps, and this test is fast
    return made


def reason(world: QueueWorld, batch: str) -> str:
    [job] = world.jobs(batch)
    return str(job["reason"])


def test_a_part_of_a_series_is_not_translated_and_all_of_it_is_when_submitted_again(
    world: QueueWorld,
) -> None:
    early = world.submit()
    MR.write(world.inputs / "mr")
    late = world.submit()
    world.work()
    assert (world.states(early), world.states(late)) == (["failed"], ["done"])
    reported = "holds 4 more images of this series than when it was submitted (im016)"
    assert reported in reason(world, early)
    [series] = (world.output / "mr").iterdir()
    assert len([*series.iterdir()]) == 20


def test_to_try_again_is_no_submission(world: QueueWorld) -> None:
    batch = world.submit()
    MR.write(world.inputs / "mr")
    world.work()
    world.did("jobs", "retry", batch)
    world.work()
    assert "submit it again when it is complete" in reason(world, batch)
    assert not (world.output / "mr").exists()


@pytest.mark.slow
def test_images_of_other_series_leave_a_job_as_it_was(world: QueueWorld) -> None:
    """The job keeps its name too, so that a second submission adds nothing."""
    early = world.submit()
    OTHER.write(world.inputs / "mr", prefix="other")
    late = world.submit()
    assert len(world.jobs(late)) == 1, "the other series alone"
    world.work()
    assert (world.states(early), world.states(late)) == (["done"], ["done"])


def test_files_that_were_named_one_by_one_are_what_was_asked_for(world: QueueWorld) -> None:
    files = sorted(str(file) for file in (world.inputs / "mr").iterdir())
    paths = ["--model", str(world.model), "--output", str(world.output)]
    batch = world.did("submit", *files, *paths).strip()
    MR.write(world.inputs / "mr")
    world.work()
    assert world.states(batch) == ["done"]
