"""Studies of which the node refused images: they are no whole series until these have come."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from pynetdicom.sop_class import MRImageStorage
from support.dicom_network import archive, associate
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom

from cuda_cyclegan.pipelines.node.events import Emptied, Held, Queued, Received
from cuda_cyclegan.pipelines.node.folder import status_of

ELEVEN = "the source was incomplete: 11 images of the study received, 1 image not taken"


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
    [held] = world.events(Held)
    assert held.gap == "10 images of the study received, 2 images not taken"
    [record] = status_of(world.folder).studies
    assert (record.refused, record.images) == (2, 10)
    assert record.until - record.held == 3600
    world.send(sent[at] for at in sorted(refused))
    world.queue_up()
    assert [(event.images, event.remark) for event in world.events(Queued)] == [(12, "")]
    [record] = world.node.store.studies()
    assert (record.refused, record.held, record.left_out) == (0, 0, ())


def test_an_image_sent_twice_in_one_association_counts_as_received(
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
    assert [(event.images, event.remark) for event in world.events(Queued)] == [(11, ELEVEN)]


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


def test_images_for_which_there_is_no_space_are_awaited(world: NodeInProcess) -> None:
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
    settings = world.node._inbox
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


def test_a_study_of_which_nothing_can_be_made_is_kept_as_a_failed_one(
    world: NodeInProcess,
) -> None:
    send_some_refused(world, {3, 7})
    world.queue_up()
    world.pass_time(3600)
    world.translate()
    assert world.states() == ["failed"]
    world.pass_time(29 * DAY)
    assert world.events(Emptied) == []
    world.pass_time(2 * DAY)
    assert len(world.events(Emptied)) == 1
    assert world.objects() == []


def test_an_image_that_is_refused_after_its_study_was_queued_is_missed(
    world: NodeInProcess,
) -> None:
    sent = slices()
    world.send(sent[:11])
    world.queue_up()
    inbox = world.node._inbox
    inbox._most = 0
    assert world.send(sent[11:]) == [0xA700]
    world.queue_up()
    assert [event.gap for event in world.events(Held)] == [
        "11 images of the study received, 1 image not taken"
    ]
    world.pass_time(3600)
    assert [event.remark for event in world.events(Queued)] == ["", ELEVEN]
    inbox._most = 1 << 30
    world.send(sent[11:])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [11, 11, 12]
    assert world.states() == ["queued"]


def test_a_damaged_image_that_is_sent_again_and_again_is_no_news(world: NodeInProcess) -> None:
    for is_aborted in (False, False, True, False):
        association = associate(world.node.port, MRImageStorage)
        for one in [*slices()[:11], without_study(slices()[11])]:
            association.send_c_store(one)
        (association.abort if is_aborted else association.release)()
        world.wait_until_over()
        world.queue_up()
        world.pass_time(3600)
    assert len(world.events(Held)) == 1
    assert [event.remark for event in world.events(Queued)] == [ELEVEN]


def test_the_log_says_why_images_were_refused(world: NodeInProcess) -> None:
    send_some_refused(world, {2, 11})
    world.with_settings(most=1)
    world.send(slices(1)[:3])
    reported = [event.refusals for event in world.events(Received)]
    reason = "its header has no StudyInstanceUID"
    assert reported == [((reason, 2),), (("the inbox of the node is full", 3),)]


def test_only_studies_beside_an_unknown_image_wait_for_it(world: NodeInProcess) -> None:
    studies = [slices(number)[:8] for number in range(8)]
    lost, *others = studies[1]
    world.send([*studies[0], without_study(lost), *others, *studies[2], *studies[3]])
    *others, lost = studies[5]
    world.send([*studies[4], *others, without_study(lost), *studies[6], *studies[7]])
    world.queue_up()
    assert [event.images for event in world.events(Queued)] == [8] * 4
    assert sorted(event.gap for event in world.events(Held)) == [
        *["7 images of the study received, 1 image not taken"] * 2,
        *["8 images of the study received, 1 image not taken"] * 2,
    ]


def test_studies_with_odd_identifiers_are_translated(world: NodeInProcess) -> None:
    odd = slices()
    for at, one in enumerate(odd):
        one.StudyInstanceUID, one.SeriesInstanceUID = "study-A_07", "a/../b c"
        one.SOPInstanceUID = f"1.2.00{at}.x"
    assert world.send(odd) == [0] * 12
    assert {len(path.name) for path in world.objects()} == {37}
    world.queue_up()
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
    assert {one.StudyInstanceUID for one in held} == {"study-A_07"}
    assert len(held) == 12
