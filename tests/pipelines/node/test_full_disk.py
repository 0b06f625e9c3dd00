"""A full disk: objects are refused with A700, which is stored, and taken when there is room."""

import json
import random
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydicom.uid import RLELossless
from pynetdicom.sop_class import MRImageStorage
from support.dicom_network import archive, associate
from support.node_in_process import NodeInProcess
from support.node_world import NodeWorld, phantom
from support.processes import started
from support.waiting import eventually

from cuda_cyclegan.pipelines.node import inbox
from cuda_cyclegan.pipelines.settings import TranslateOptions

SMALL_DISK = (
    "mount -t tmpfs -o size={size} none '{state}' || exit 99; echo mounted; exec sleep 1200"
)
STUDIES, SLICES, ROWS = 12, 30, 128


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeWorld]:
    found = NodeWorld(tmp_path, options=("--reserve", "0.001MB"))
    try:
        yield found
    finally:
        found.close()


def can_mount(folder: Path) -> bool:
    trial = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs none '{folder}'"]
    tools = all(map(shutil.which, ("unshare", "nsenter")))
    return tools and subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeInProcess]:
    with NodeInProcess(tmp_path) as found:
        yield found


SCAN, RESULT = 35_000, 43_000
"""Bytes of a slice of `slices`, rounded up: as a scan, and as expected of its result."""


def slices(number: int = 0, count: int = 8) -> list[Any]:
    return list(replace(phantom(number, count), rows=ROWS, columns=ROWS).datasets())


def of_size(node: NodeInProcess, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of a size for the scans and results of the node."""

    def usage(_folder: Path) -> Any:
        files = [*node.folder.glob("in*/**/*.*"), *node.folder.glob("results/**/*.dcm")]
        taken = 0
        for file in files:
            with suppress(FileNotFoundError):  # renamed by the worker meanwhile
                taken += file.stat().st_size
        return SimpleNamespace(free=size - taken)

    monkeypatch.setattr(inbox.shutil, "disk_usage", usage)


def test_a_study_is_accepted_only_if_its_results_fit_too(
    node: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_size(node, 8 * (SCAN + RESULT) + SCAN, monkeypatch)
    assert node.send(slices()) == [0] * 8
    assert set(node.send(slices(1))) == {0xA700}
    node.stop()
    node.start()  # results are expected from the headers on disk
    assert set(node.send(slices(1))) == {0xA700}
    node.pass_time(301)
    node.translate()
    assert node.states() == ["sending"]
    of_size(node, 8 * (SCAN + RESULT) + 17 * RESULT, monkeypatch)
    assert node.send(slices(1)) == [0] * 8, "what is written is expected no more"


def test_a_compressed_image_counts_as_its_result(
    node: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    [image, *_] = slices()
    image.PixelData = bytes(len(image.PixelData))
    image.compress(RLELossless, generate_instance_uid=False)
    assert len(image.PixelData) < 1000
    of_size(node, RESULT // 2, monkeypatch)
    assert node.send([image], RLELossless) == [0xA700]
    of_size(node, SCAN + RESULT, monkeypatch)
    assert node.send([image], RLELossless) == [0]


def test_maps_are_results_too(node: NodeInProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = replace(node.route.request, options=TranslateOptions(spread=2))
    node.with_route(request=spread)  # a result, a mean and a standard deviation
    of_size(node, SCAN + 2 * RESULT, monkeypatch)
    assert node.send(slices()[:1]) == [0xA700]
    of_size(node, SCAN + 3 * RESULT, monkeypatch)
    assert node.send(slices()[:1]) == [0]


def test_space_goes_to_the_rest_of_a_study_before_a_new_one(
    node: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Studies that each lack images could otherwise fill the disk."""
    of_size(node, 14 * (SCAN + RESULT), monkeypatch)
    first, second = slices(0), slices(1)
    assert node.send(first) == [0] * 8
    assert set(node.send(second)) == {0xA700}, "6 of its images would fit, but perhaps not all"
    more = slices(0, 12)[8:]
    assert node.send(more) == [0] * 4


def test_refused_images_have_their_space_before_a_new_study(
    node: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest study here is the one that lacks them, which says nothing of its size."""
    of_size(node, 5 * (SCAN + RESULT), monkeypatch)
    assert node.send(slices()) == [0] * 5 + [0xA700] * 3
    held, of_new = 5 * (SCAN + RESULT), SCAN + RESULT + 2 * 5 * RESULT
    of_size(node, held + of_new, monkeypatch)
    assert set(node.send(slices(1))) == {0xA700}
    of_size(node, held + of_new + 2 * 3 * RESULT, monkeypatch)
    assert node.send(slices(1)[:1]) == [0]


def test_a_study_may_become_as_large_as_one_that_left(
    node: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with archive(port=node.destination, calling="NODE"):
        assert node.send(slices()) == [0] * 8
        node.queue_up()
        node.translate()
        node.wait_for_sends(1)
    of_size(node, 8 * (SCAN + RESULT) + SCAN + RESULT, monkeypatch)
    assert node.send(slices(1)[:1]) == [0xA700]
    of_size(node, 8 * (SCAN + RESULT) + SCAN + RESULT + 2 * 8 * RESULT, monkeypatch)
    assert node.send(slices(1)[:1]) == [0]


@contextmanager
def small_disk(world: NodeWorld, size: str) -> Generator[tuple[str, ...]]:
    """A file system of its own for the node's folder; the words that run a command there."""
    world.state.mkdir(mode=0o700)
    if not can_mount(world.state):
        pytest.skip("needs mount namespaces")
    script = SMALL_DISK.format(state=world.state, size=size)
    with started(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"mounted\n"
        yield ("nsenter", f"--target={holder.pid}", "--mount")


@pytest.mark.slow
def test_object_that_does_not_fit_is_refused_and_received_ones_stay(world: NodeWorld) -> None:
    with small_disk(world, "2600k") as prefix:
        check(world, prefix)


@pytest.mark.slow
def test_a_disk_of_a_few_studies_takes_any_number_of_them_in_time(tmp_path: Path) -> None:
    """The results of what was accepted always fit, so that each study leaves again."""
    route = 'keep = "0.1 s"\nhold = "1 h"'
    world = NodeWorld(tmp_path, route=route, options=("--reserve", "1MiB"))
    pending: list[list[Any]] = []
    for number in range(STUDIES):
        one = replace(phantom(number, SLICES), rows=ROWS, columns=ROWS)
        pending.append(list(one.datasets()))
    with (
        closing(world),
        archive(port=world.destination, calling="T1TOT2") as (_, received),
        small_disk(world, "9m") as prefix,
    ):
        world.start(prefix=prefix)
        world.start("worker", "--device", "cpu", prefix=prefix)

        def all_are_taken() -> bool:
            random.shuffle(pending)
            pending[:] = [left for study in pending if (left := refused(world.port, study))]
            return not pending

        eventually(all_are_taken, evidence=world.said)
        eventually(lambda: len({one.SOPInstanceUID for one in received}) >= STUDIES * SLICES)
    found = {one.SOPInstanceUID for one in received}
    assert len(found) == len(received) == STUDIES * SLICES


def refused(port: int, study: list[Any]) -> list[Any]:
    """Send a study on one association; the objects for which there was no space."""
    association = associate(port, MRImageStorage, called="T1TOT2", calling="MODALITY")
    statuses = [association.send_c_store(one).Status for one in study]
    association.release()
    assert set(statuses) <= {0, 0xA700}
    return [one for one, status in zip(study, statuses, strict=True) if status]


def check(world: NodeWorld, prefix: tuple[str, ...]) -> None:
    """prefix: enters the namespace with the small disk."""

    def inside(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*prefix, *command], capture_output=True, text=True, check=False)

    def taken() -> int:
        return int(inside("sh", "-c", f"ls '{world.state}'/inbox/*/*/*.dcm | wc -l").stdout)

    def studies() -> Any:
        done = inside(*world.command("node", "--status", "--json"))
        assert done.returncode == 0, done.stderr
        found: Any = json.loads(done.stdout)
        assert found["running"] is True
        return found["studies"]

    process = world.start(prefix=prefix)
    files = phantom(0, 300).write(world.folder / "sources")
    assert world.send(files) != 0
    world.wait_for("refused")
    held = taken()
    assert 0 < held < 300
    assert inside("ls", f"{world.state}/incoming").stdout == ""
    gap = {"images": held, "refused": 1}  # storescu stops there
    eventually(lambda: studies() and gap.items() <= studies()[0].items(), evidence=world.said)
    process.kill()
    process.wait()
    process = world.start(prefix=prefix)
    assert world.send(files[held : held + 1]) != 0  # the sender is back, the disk still full
    eventually(lambda: gap.items() <= studies()[0].items(), evidence=world.said)
    grown = inside("mount", "-o", "remount,size=64m", str(world.state))
    assert grown.returncode == 0, grown.stderr
    assert world.send(files) == 0, world.said()
    assert taken() == 300
    eventually(lambda: [each["refused"] for each in studies()] == [0], evidence=world.said)
