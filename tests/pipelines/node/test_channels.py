"""A node whose model takes several series of a study, and makes several."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.batch_world import mixing_model
from support.dicom_network import archive
from support.dicom_phantoms import Phantom
from support.node_in_process import NodeInProcess
from support.waiting import eventually

from cuda_cyclegan.pipelines.node.events import LeftOut, NotSent, Queued, Sent
from cuda_cyclegan.pipelines.node.node import check_routes

SLICES = 8
OF_TWO = ((1, 1), (1, -1))


def series(number: int, text: str, study: str = "1.2.3.4.5") -> list[Any]:
    """A small series of a study, described by a text."""
    phantom = Phantom(
        "MR", slices=SLICES, number=number, study=study, series=f"{study}.{number}", seed=number
    )
    found = list(phantom.datasets())
    for dataset in found:
        dataset.SeriesDescription = text
    return found


def using(folder: Path, **model: Any) -> Iterator[NodeInProcess]:
    with NodeInProcess(folder) as found:
        path = mixing_model(folder / "mixing.safetensors", **model)
        found.with_route(request=replace(found.route.request, model=path))
        check_routes({"NODE": found.route}, None)
        yield found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeInProcess]:
    """Node whose model makes one volume of two."""
    yield from using(tmp_path, targets=("FLAIR",))


@pytest.fixture
def world_of_two(tmp_path: Path) -> Iterator[NodeInProcess]:
    """Node whose model makes two volumes of two."""
    yield from using(tmp_path, mix=OF_TWO, targets=("FLAIR", "PD"))


def sources(dataset: Any) -> set[str]:
    """Series that an object says it is made of."""
    found = {item.ReferencedSOPInstanceUID for item in dataset.SourceImageSequence}
    return {uid.rpartition(".")[0] for uid in found}


def test_series_of_one_study_are_translated_together(world: NodeInProcess) -> None:
    with archive(port=world.destination) as (_, held):
        assert world.send([*series(1, "T1"), *series(2, "T2 axial")]) == [0] * 16
        world.send([*series(1, "T1", "1.2.3.5"), *series(2, "T2", "1.2.3.5")])
        world.queue_up()
        assert [event.images for event in world.events(Queued)] == [16, 16]
        world.translate()
        world.wait_for_sends(2)
    assert len(held) == 16
    for dataset in held:
        study = dataset.StudyInstanceUID
        assert sources(dataset) == {f"{study}.1", f"{study}.2"}
    assert len({dataset.SeriesInstanceUID for dataset in held}) == 2


def test_a_study_waits_for_its_last_channel(world: NodeInProcess) -> None:
    world.send(series(1, "T1"))
    world.queue_up()
    [left] = world.events(LeftOut)
    assert "channel T2 is missing" in left.reason
    assert world.events(Queued) == []
    with archive(port=world.destination) as (_, held):
        world.send(series(2, "T2"))
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
        # What belongs to no channel makes nothing anew.
        world.send(series(3, "FLAIR"))
        world.queue_up()
        world.translate()
    assert len(world.events(Queued)) == 1
    assert len(held) == SLICES
    assert "not recognised as channel T1 or T2" in world.events(LeftOut)[-1].reason


def test_a_series_for_each_channel_that_comes_out_is_sent(world_of_two: NodeInProcess) -> None:
    world = world_of_two
    world.send([*series(1, "T1"), *series(2, "T2")])
    world.queue_up()
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
    [sent] = world.events(Sent)
    assert sent.objects == len(held) == 2 * SLICES
    reported = {dataset.SeriesDescription.partition(" (")[0] for dataset in held}
    assert reported == {"Synthetic FLAIR", "Synthetic PD"}
    assert len({dataset.SOPInstanceUID for dataset in held}) == 2 * SLICES


def test_results_of_which_a_channel_is_gone_are_not_called_sent(
    world_of_two: NodeInProcess,
) -> None:
    world = world_of_two
    world.send([*series(1, "T1"), *series(2, "T2")])
    world.queue_up()
    world.translate()
    [gone] = world.folder.glob("results/NODE/*/*/1/*_PD")
    for file in gone.iterdir():
        file.unlink()
    with archive(port=world.destination):
        eventually(lambda: world.node.step() or world.events(NotSent))
    assert world.states() == ["sending"]


def test_patterns_of_a_route_show_the_channels(world: NodeInProcess) -> None:
    patterns = (("T1", "*mprage*"), ("T2", "*tse*"))
    request = world.route.request
    filters = replace(request.filters, channels=patterns)
    world.with_route(request=replace(request, filters=filters))
    world.send([*series(1, "sag mprage"), *series(2, "ax tse")])
    world.queue_up()
    [queued] = world.events(Queued)
    assert queued.images == 16
