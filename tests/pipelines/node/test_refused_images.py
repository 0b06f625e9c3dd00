"""Studies of which the node refused images: they are no whole series until these have come."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pynetdicom.sop_class import MRImageStorage
from support.dicom_network import associate
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom

from cuda_cyclegan.pipelines.node.events import Emptied, LeftOut, Queued
from cuda_cyclegan.pipelines.node.folder import status_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeInProcess]:
    with NodeInProcess(tmp_path) as found:
        yield found


def slices(number: int = 0) -> list[Any]:
    return list(phantom(number, 12).datasets())


def without_study(data: Any) -> Any:
    """An image that no node can file, under the identifier that it has."""
    made = copy.deepcopy(data)
    del made.StudyInstanceUID
    return made


def send_some_refused(world: NodeInProcess, refused: set[int], *, number: int = 0) -> list[Any]:
    sent = slices(number)
    statuses = world.send(
        without_study(one) if at in refused else one for at, one in enumerate(sent)
    )
    assert [status != 0 for status in statuses] == [at in refused for at in range(12)]
    return sent


@pytest.mark.parametrize("refused", [{10, 11}, {0, 1}, {3, 7}])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_study_waits_for_images_that_were_refused(
    world: NodeInProcess, refused: set[int], is_restarted: bool
) -> None:
    sent = send_some_refused(world, refused)
    if is_restarted:
        world.stop()
        world.start()
        world.pass_time(301)
    world.queue_up()
    assert world.events(Queued) == []
    [left_out] = world.events(LeftOut)
    assert "refused 2 images that came with its 10" in left_out.reason
    [record] = status_of(world.folder).studies
    assert (record.refused, record.images) == (2, 10)
    world.send(sent[at] for at in sorted(refused))
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12]
    [record] = world.node.ledger.studies()
    assert (record.refused, record.left_out) == (0, ())


def test_an_image_that_comes_again_in_its_association_was_not_refused(
    world: NodeInProcess,
) -> None:
    sent = slices()
    world.send([without_study(sent[0]), *sent[1:], sent[0]])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12]


def test_an_image_that_is_here_already_is_missed_by_nobody(world: NodeInProcess) -> None:
    sent = slices()
    world.send(sent)
    world.send([sent[0], without_study(sent[1])])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12]


def test_a_route_may_take_what_is_here(world: NodeInProcess) -> None:
    send_some_refused(world, {11})
    world.queue_up()
    request = world.route.request
    options = replace(request.options, allow_uneven=True)
    world.with_route(request=replace(request, options=options))
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [11]
    [record] = world.node.ledger.studies()
    assert record.left_out[0].endswith("what is here is translated")


def test_other_studies_of_the_association_wait_no_longer_than_for_the_image(
    world: NodeInProcess,
) -> None:
    sent = slices()
    association = associate(world.node.port, MRImageStorage)
    for one in (*sent[:11], without_study(sent[11]), *slices(1)):
        association.send_c_store(one)
    association.release()
    world.wait_until_over()
    world.queue_up()
    assert world.events(Queued) == []  # nobody knows of which study the image is
    world.send([sent[11]])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12, 12]


def test_images_for_which_there_is_no_room_are_awaited(world: NodeInProcess) -> None:
    sent = slices()
    world.send(sent[:10])
    world.with_settings(most=1)
    for one in sent[10:]:
        assert world.send([one]) == [0xA700]
    world.with_settings(most=1 << 30)
    world.pass_time(301)
    assert world.events(Queued) == []
    world.send(sent[10:])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12]


def test_images_of_which_the_first_are_refused_are_awaited(world: NodeInProcess) -> None:
    sent = slices()
    settings = world.node._reception._inbox
    settings._most = 0
    assert world.send(sent[:2]) == [0xA700] * 2
    settings._most = 1 << 30
    world.send(sent[2:])
    world.stop()
    world.start()
    world.pass_time(301)
    assert world.events(Queued) == []
    world.send(sent[:2])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [12]


def test_a_study_that_waits_is_kept_as_a_failed_one(world: NodeInProcess) -> None:
    send_some_refused(world, {11})
    world.queue_up()
    world.pass_time(29 * DAY)
    assert world.events(Emptied) == []
    world.pass_time(2 * DAY)
    assert len(world.events(Emptied)) == 1
    assert world.objects() == []
