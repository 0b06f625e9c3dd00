"""--yield-to-others, against a driver whose cards the test fills."""

import os
from pathlib import Path

import pytest
from support.queue_nvml import Card, FakeDriver, Holder, Sample
from support.queue_world import QueueWorld

from cuda_cyclegan.pipelines.errors import QueueError
from cuda_cyclegan.pipelines.jobs import gpu_sharing, worker
from cuda_cyclegan.pipelines.jobs.events import WorkerSettings, YieldLimits
from cuda_cyclegan.pipelines.jobs.gpu_sharing import OtherPrograms
from cuda_cyclegan.pipelines.jobs.queue.location import queue_place
from cuda_cyclegan.pipelines.jobs.worker import work

MIB = 1 << 20
LIMITS = YieldLimits(memory=1024 * MIB, load=20)
OWN, OTHER = os.getpid(), 1


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    card = Card("GPU-a")
    monkeypatch.setattr(gpu_sharing, "pynvml", FakeDriver(card, Card("GPU-b")))
    return card


def test_an_idle_gpu_and_our_own_use_hinder_nothing(card: Card) -> None:
    watched = OtherPrograms("cuda:0", LIMITS)
    assert watched.hindrance() is None
    card.computing.append(Holder(OWN, 40_000 * MIB))
    card.samples.append(Sample(OWN, 1, 100))
    assert watched.hindrance() is None


def test_memory_of_others_counts_together(card: Card) -> None:
    watched = OtherPrograms("cuda:0", LIMITS)
    card.computing.append(Holder(OTHER, 1000 * MIB))
    card.drawing.append(Holder(OTHER + 1, 24 * MIB))
    assert watched.hindrance() is None
    card.drawing.append(Holder(OTHER + 2, 1 * MIB))
    assert watched.hindrance() == "other programs use 1025 MiB of GPU memory"
    card.computing.clear()
    assert watched.hindrance() is None


def test_a_process_that_computes_and_draws_counts_once(card: Card) -> None:
    both = Holder(OTHER, 600 * MIB)
    card.computing.append(both)
    card.drawing.append(both)
    assert OtherPrograms("cuda:0", LIMITS).hindrance() is None


def test_memory_that_the_driver_does_not_show_counts_as_none(card: Card) -> None:
    card.computing.append(Holder(OTHER, None))
    assert OtherPrograms("cuda:0", LIMITS).hindrance() is None


def test_only_the_newest_load_of_each_process_counts(card: Card) -> None:
    watched = OtherPrograms("cuda:0", LIMITS)
    card.samples += [Sample(OTHER, 2, 20), Sample(OTHER, 1, 90)]
    assert watched.hindrance() is None
    card.samples += [Sample(OTHER, 3, 15), Sample(OTHER + 1, 3, 6)]
    assert watched.hindrance() == "other programs keep the GPU busy 21 % of the time"
    assert watched.hindrance() is None  # nothing new since


def test_a_gpu_that_does_not_answer_gets_no_job(card: Card) -> None:
    watched = OtherPrograms("cuda:0", LIMITS)
    card.is_lost = True
    assert "does not respond" in (watched.hindrance() or "")


def test_part_of_a_gpu_is_known_by_its_memory_alone(card: Card) -> None:
    card.is_part = True
    watched = OtherPrograms("cuda:0", LIMITS)
    assert watched.hindrance() is None
    card.computing.append(Holder(OTHER, 2000 * MIB))
    assert watched.hindrance()


@pytest.mark.parametrize("visible", ["1,0", "GPU-b,GPU-a"])
def test_gpus_are_counted_as_cuda_counts_them(
    card: Card, visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    card.computing.append(Holder(OTHER, 2000 * MIB))
    assert OtherPrograms("cuda:0", LIMITS).hindrance() is None
    assert OtherPrograms("cuda:1", LIMITS).hindrance()


def test_without_the_driver_the_option_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "pynvml", FakeDriver(is_there=False))
    with pytest.raises(QueueError, match="omit setting yield-to-others"):
        OtherPrograms("cuda:0", LIMITS)


def test_a_worker_gives_way_between_jobs(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the CPU that looks at the fake card: no job begins while others use it."""
    watched = OtherPrograms("cuda:0", LIMITS)
    monkeypatch.setattr(worker, "_hindrance", lambda *_: watched.hindrance)
    world = QueueWorld(tmp_path)
    world.scans(1)
    batch = world.submit()
    card.computing.append(Holder(OTHER, 2000 * MIB))
    settings = WorkerSettings(until_empty=True, yield_limits=LIMITS)
    assert work(queue_place(world.queue), "cpu", settings, lambda _: None) == "empty"
    assert world.jobs(batch)[0]["state"] == "queued"
    card.computing.clear()
    world.work()
    assert world.jobs(batch)[0]["state"] == "done"
