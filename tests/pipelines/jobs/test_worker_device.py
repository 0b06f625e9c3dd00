"""The device of a worker: its open program, its loss, and which job a death counts against."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from support.batch_world import scan
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import Phantom
from support.io_users import open_folder, ordinary_user
from support.numerics_models import FunctionGenerator
from support.queue_jobs import jobs
from support.queue_world import QueueWorld
from support.waiting import ENOUGH
from support.watched_calls import watch_calls

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import CudaError, PrecisionOverflowError
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import FloatArray, Triple
from cuda_cyclegan.engine.options import Precision, Progress
from cuda_cyclegan.io.discovery import discover, images_sha256
from cuda_cyclegan.io.errors import UnreadableScanError
from cuda_cyclegan.pipelines.events import Remark, Tuning
from cuda_cyclegan.pipelines.jobs import source, worker
from cuda_cyclegan.pipelines.jobs.events import (
    JobEnded,
    WorkerEvent,
    WorkerSettings,
)
from cuda_cyclegan.pipelines.jobs.planner import JobPlanner, find_study
from cuda_cyclegan.pipelines.jobs.queue.claims import Claims
from cuda_cyclegan.pipelines.jobs.queue.job import Claim, StudyJob
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.queue.schedule import SchedulingClass
from cuda_cyclegan.pipelines.jobs.source import QueueSource
from cuda_cyclegan.pipelines.jobs.worker import work
from cuda_cyclegan.pipelines.run import networks
from cuda_cyclegan.pipelines.study import translator as study_run

nibabel: Any = _nibabel


class Card:
    """A GPU with room for one program, on which one run of the usual precision overflows.

    Each program is tuned when it is opened for the first time.
    """

    def __init__(self, patch: pytest.MonkeyPatch, overflows_at: int) -> None:
        self.log: list[str] = []
        self._tuned: set[Precision] = set()
        self._runs, self._overflows_at = iter(range(99)), overflows_at
        device = Device("cuda", "fp16", ("fp16", "bf16"))
        patch.setattr(worker, "choose_device", lambda *_: device)
        patch.setattr(networks, "open_generator", self.open)

    @contextmanager
    def open(
        self, _: Network, __: Device, precision: Precision, ___: Triple, progress: Progress
    ) -> Iterator[FunctionGenerator]:
        if precision not in self._tuned:
            progress("convolution 3x3x3", 0.0)
            progress("convolution 7x7x7", 0.5)
            progress("", 1.0)
        self._tuned.add(precision)

        def run(patches: FloatArray) -> FloatArray:
            if precision == "fp16" and next(self._runs) == self._overflows_at:
                raise PrecisionOverflowError("A value exceeded the range of fp16.")
            return patches

        self.log.append(f"open {precision}")
        yield FunctionGenerator(run)
        self.log.append(f"close {precision}")


def test_a_job_that_overflows_has_the_gpu_alone_and_the_next_one_as_before(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch, overflows_at=0)
    world.scans(4)
    batch = world.submit()
    reported = world.work()
    assert world.states(batch) == ["done"] * 4
    notes = [job["result"]["notes"] for job in world.jobs(batch)]
    assert ["range of fp16" in "".join(each) for each in notes].count(True) == 1
    there = ["open fp16", "close fp16", "open bf16", "close bf16", "open fp16", "close fp16"]
    assert card.log == there
    assert [event.share for event in reported if isinstance(event, Tuning)] == [0.0, 0.5, 1.0] * 2


def test_a_program_stays_open_from_job_to_job(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program also stays open between jobs that are not claimed together."""
    card = Card(monkeypatch, overflows_at=-1)
    world.scans(2)
    for overlap in ("0", "0.5"):
        world.submit("--overlap", overlap, "--overwrite")
    world.work()
    assert card.log == ["open fp16", "close fp16"]


class Tunable(FunctionGenerator):
    """A network whose search for tactics is the test's."""

    def __init__(self, tune: Callable[[float, Progress], None]) -> None:
        super().__init__(lambda patches: patches)
        self.tune = tune


@pytest.mark.parametrize("ends", ["the search", "the worker"])
def test_an_idle_worker_searches_for_tactics_until_none_is_left_or_it_is_stopped(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(source, "PAUSE_SECONDS", 0.0)  # the first search uses all of it
    world.scans(1)
    world.submit()
    searches: list[int] = []
    stops: list[Callable[[], None]] = []
    reported: list[WorkerEvent] = []

    def tune(until: float, progress: Progress) -> None:
        searches.append(sum(isinstance(event, JobEnded) for event in reported))
        if len(searches) == 1:  # it has more to try
            assert time.monotonic() >= until
            monkeypatch.setattr(source, "PAUSE_SECONDS", 0.1)
            progress("a plan is rejected", None)
        elif ends == "the worker":
            stops[0]()
            progress("a convolution", 0.5)
            raise AssertionError("it was not stopped")

    pauses = count()

    def close_folder(planner: JobPlanner) -> None:
        if len(searches) >= 2 and next(pauses) == 2:
            stops[0]()
        usual(planner)

    usual = JobPlanner.close_folder
    monkeypatch.setattr(JobPlanner, "close_folder", close_folder)
    opened: Any = lambda *_: nullcontext(Tunable(tune))  # noqa: E731
    monkeypatch.setattr(networks, "open_generator", opened)
    ready = lambda worker: stops.append(worker.finish)  # noqa: E731
    assert (
        work(queue_place(world.queue), "cpu", WorkerSettings(), reported.append, ready) == "stopped"
    )
    assert searches == [1, 1]
    assert reported.count(Remark("a plan is rejected")) == 1


def test_jobs_with_other_settings_take_turns(world: QueueWorld) -> None:
    world.scans(2)
    paths = [str(world.inputs), "--model", str(world.model)]
    for name, overlap in (("a", "0"), ("b", "0.5")):
        direct, queued = world.folder / f"direct-{name}", world.folder / f"queued-{name}"
        world.did("translate", *paths, "--output", str(direct), "--overlap", overlap)
        world.did("submit", *paths, "--output", str(queued), "--overlap", overlap)
    world.work()
    for name in "ab":
        for made in ("000.nii", "001.nii"):
            direct = world.folder / f"direct-{name}" / made
            assert (world.folder / f"queued-{name}" / made).read_bytes() == direct.read_bytes()


@pytest.mark.process
def test_a_job_that_this_device_cannot_do_fails_as_translate_does(world: QueueWorld) -> None:
    world.scans(1)
    batch = world.submit("--precision", "fp16")
    world.work()
    reported = world.command("translate", "--device", "cpu", "--precision", "fp16").stderr
    for complaint in (world.jobs(batch)[0]["reason"], reported):
        assert re.search("The CPU computes only in .*, not in fp16", complaint)


@pytest.mark.slow
def test_a_job_is_blamed_for_deaths_that_it_had_alone(world: QueueWorld) -> None:
    world.scans(4)
    scan(world.inputs / "001.nii", shape=(40, 18, 16))
    batch = world.submit()

    def status(read_ahead: int) -> int:
        poison = ["support.queue_poison", world.queue, "1", str(read_ahead)]
        command = [sys.executable, "-m", *poison]
        return subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode

    died_in_company = died_alone = -signal.SIGKILL
    assert [status(3), status(1), status(1)] == [died_in_company, died_alone, 0]
    poison = world.jobs(batch)[1]
    assert poison["state"] == "given up"
    assert "1 workers crashed while running it" in poison["reason"]
    others = [job for job in world.jobs(batch) if job is not poison and job["study"] != "001.nii"]
    assert [(job["state"], job["tries"]) for job in others] == [("done", 1)] * 3


def test_a_lost_device_fails_the_job_that_had_it_alone(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_is_read = threading.Event()

    def lose(number: int) -> None:
        if number == 0:
            assert second_is_read.wait(ENOUGH)
        if number < 2:
            raise CudaError("cuStreamSynchronize", "ECC error", "start again", is_sticky=True)

    watch_calls(monkeypatch, "prepare", lambda number: number == 1 and second_is_read.set())
    watch_calls(monkeypatch, "infer", lose)
    world.scans(3)
    batch = world.submit()

    def end() -> str:
        reported: list[WorkerEvent] = []
        settings = WorkerSettings(until_empty=True)
        return work(queue_place(world.queue), "cpu", settings, reported.append)

    assert end() == "restart"
    assert world.states(batch) == ["queued"] * 3
    assert end() == "restart"
    assert world.states(batch) == ["failed", "queued", "queued"]
    assert "ECC error" in world.jobs(batch)[0]["reason"]
    assert end() == "empty"
    assert world.states(batch) == ["failed", "done", "done"]


def test_a_claim_in_progress_at_the_loss_of_the_device_is_no_try(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue has recorded it, and its answer comes when the worker puts its jobs back."""
    is_recorded, puts_back = threading.Event(), threading.Event()
    claim, release_all, numbers = Claims.claim, QueueSource.release_all, iter(range(9))

    def answered_late(claims: Claims, scheduling: SchedulingClass) -> Claim | None:
        found = claim(claims, scheduling)
        if next(numbers) == 1:
            is_recorded.set()
            assert puts_back.wait(ENOUGH)
        return found

    def told_release(source: QueueSource) -> None:
        puts_back.set()
        release_all(source)

    def lose(_: int) -> None:
        assert is_recorded.wait(ENOUGH)
        raise CudaError("cuStreamSynchronize", "ECC error", "start again", is_sticky=True)

    monkeypatch.setattr(Claims, "claim", answered_late)
    monkeypatch.setattr(QueueSource, "release_all", told_release)
    watch_calls(monkeypatch, "infer", lose)
    world.scans(2)
    batch = world.submit()
    place, settings = queue_place(world.queue), WorkerSettings(until_empty=True)
    assert work(place, "cpu", settings, lambda _: None) == "restart"
    assert [(row.state, row.tries) for row in world.rows(batch)] == [("failed", 1), ("queued", 0)]


def test_a_failure_in_the_network_has_the_process_replaced(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        if number == 0:
            raise CudaError("cuLaunchKernel", "invalid value", "report it")

    watch_calls(monkeypatch, "translate_array", fail, where=study_run)
    world.scans(2)
    batch = world.submit()
    reported: list[WorkerEvent] = []
    place, settings = queue_place(world.queue), WorkerSettings(until_empty=True)
    assert work(place, "cpu", settings, reported.append) == "restart"
    assert world.states(batch)[0] == "failed"
    assert work(place, "cpu", settings, reported.append) == "empty"
    assert world.states(batch) == ["failed", "done"]


def test_a_scan_that_the_workers_user_may_not_reach_is_not_reported_to_be_missing() -> None:
    with open_folder() as folder:
        closed = folder / "closed"
        closed.mkdir()
        [job] = jobs(closed, 1)
        closed.chmod(0)
        with (
            ordinary_user(),
            pytest.raises(UnreadableScanError, match="Permission denied") as reported,
        ):
            find_study(job, None)
        closed.chmod(0o700)
        Path(job.files[0]).unlink()
        with pytest.raises(UnreadableScanError, match="does not exist on"):
            find_study(job, None)
    assert "give this user access to its folders" in str(reported.value)


def echoes(folder: Path) -> Path:
    """One file, whose two echoes are two series: equal, but 100 apart in all their values."""
    file = folder / "one"
    write_enhanced(Phantom("MR"), file, echoes=(10.0, 90.0))
    return file


def test_each_job_does_its_own_series_of_several_in_one_file(world: QueueWorld) -> None:
    echoes(world.inputs)
    first, second = world.rows(world.submit("--format", "nifti"))
    assert first.study != second.study
    world.work()
    made = [nibabel.load(world.output / row.study).get_fdata() for row in (first, second)]
    np.testing.assert_allclose(made[1] - made[0], 100.0, atol=1.0)


def test_a_job_of_a_filtered_series_does_that_one(world: QueueWorld) -> None:
    echoes(world.inputs)
    [row] = world.rows(world.submit("--series", "-2$"))
    [job] = [StudyJob.from_json(row.payload)]
    assert find_study(job, None).series.label == PurePosixPath(job.study).name  # type: ignore[attr-defined]


def test_channels_of_one_file_keep_their_order(tmp_path: Path) -> None:
    file = echoes(tmp_path)
    scans = discover([file], None).studies
    job = replace(jobs(tmp_path, 1)[0], study="any", files=(str(file),) * 2)
    for order in (scans, scans[::-1]):
        asked = replace(job, images=tuple(map(images_sha256, order)))
        assert [each.name for each in find_study(asked, None).scans] == [s.name for s in order]


def test_a_job_of_before_is_reported_by_the_name_of_its_result(tmp_path: Path) -> None:
    """Jobs then did not state yet which images of their file they were about."""
    file = echoes(tmp_path)
    for scan_ in discover([file], None).studies:
        name = f"study/1/{scan_.name}"
        job = replace(jobs(tmp_path, 1)[0], study=name, files=(str(file),))
        assert find_study(job, None).series == scan_.series
    with pytest.raises(UnreadableScanError, match="submit it again"):
        find_study(replace(job, study="another"), None)
