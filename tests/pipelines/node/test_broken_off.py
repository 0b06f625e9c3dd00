"""Studies whose transfer broke off are held, for a while; then their results say so."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydicom import Dataset
from pynetdicom import evt
from pynetdicom.sop_class import MRImageStorage, StorageCommitmentPushModel
from support.dicom_network import archive, associate, associated, offered, raw
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom
from support.waiting import eventually

from cuda_cyclegan.io.volume import NOTICE
from cuda_cyclegan.pipelines.jobs.queue.queue import open_queue
from cuda_cyclegan.pipelines.jobs.summary import report_of
from cuda_cyclegan.pipelines.node.events import Emptied, Held, Queued, Reported
from cuda_cyclegan.pipelines.node.folder import release
from cuda_cyclegan.pipelines.node.inbox import Inbox
from cuda_cyclegan.pipelines.node.store import open_store

HOUR = 3600.0
EIGHT = "8 images of the study received, the transfer broke off"
MAY_BE = f"the source may be incomplete: {EIGHT}"


def slices(number: int = 0) -> list[Any]:
    return list(phantom(number, 12).datasets())


def begin(world: NodeInProcess, datasets: Iterable[Any], *classes: str, **how: Any) -> Any:
    """An association that has brought objects."""
    association = associate(world.node.port, MRImageStorage, *classes, **how)
    for one in datasets:
        assert association.send_c_store(one).Status == 0
    return association


def break_off(world: NodeInProcess, datasets: Iterable[Any]) -> None:
    begin(world, datasets).abort()
    world.wait_until_over()


def cut_within(world: NodeInProcess, dataset: Any) -> None:
    with raw(world.node.port) as link:
        associated(link)
        link.sendall(offered(dataset, 0.5))
    world.wait_until_over()


def gaps(world: NodeInProcess) -> list[str]:
    return [event.gap for event in world.events(Held)]


def queued(world: NodeInProcess) -> list[tuple[int, str]]:
    return [(event.images, event.remark) for event in world.events(Queued)]


def wait_for_the_rest_in_vain(world: NodeInProcess) -> None:
    world.queue_up()
    assert queued(world) == []
    world.pass_time(HOUR)


def test_a_study_is_held_until_the_rest_comes(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    world.pass_time(HOUR - 120)
    assert (gaps(world), queued(world)) == ([EIGHT], [])
    world.send(slices())
    world.queue_up()
    assert queued(world) == [(12, "")]


def test_the_rest_alone_ends_the_hold(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    world.send(slices()[8:])
    world.queue_up()
    assert queued(world) == [(12, "")]


def test_after_the_hold_the_result_says_that_its_source_may_be_incomplete(
    world: NodeInProcess,
) -> None:
    break_off(world, slices()[:8])
    wait_for_the_rest_in_vain(world)
    assert queued(world) == [(8, MAY_BE)]
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
        world.send(slices())
        world.queue_up()
        world.translate()
        world.wait_for_sends(2)
    assert queued(world) == [(8, MAY_BE), (12, "")]
    said = f"T{MAY_BE[1:]}."
    assert {one.ImageComments for one in held[:8]} == {f"{NOTICE} {said}"}
    assert all(one.DerivationDescription.endswith(said) for one in held[:8])
    assert {one.ImageComments for one in held[8:]} == {NOTICE}
    with open_queue(world.place) as queue:
        notes = [row.notes for row in report_of(queue.jobs("")).studies]
    assert sorted(MAY_BE in each for each in notes) == [False, True]
    assert len({one.SeriesInstanceUID for one in held}) == 2
    assert len(held) == 20


def test_a_sender_that_aborts_when_all_is_stored_is_not_awaited_for_ever(
    world: NodeInProcess,
) -> None:
    break_off(world, slices())
    wait_for_the_rest_in_vain(world)
    assert [images for images, _ in queued(world)] == [12]


def test_the_same_images_over_a_whole_transfer_make_a_result_without_a_remark(
    world: NodeInProcess,
) -> None:
    sent = slices()[:8]
    break_off(world, sent)
    wait_for_the_rest_in_vain(world)
    with archive(port=world.destination) as (_, held):
        world.translate()
        world.wait_for_sends(1)
        world.send(sent)
        world.queue_up()
        world.translate()
        world.wait_for_sends(2)
        for _ in range(2):
            break_off(world, sent)
            world.queue_up()
            world.pass_time(HOUR)
    assert [remark for _, remark in queued(world)][1:] == [""]
    assert len({one.SOPInstanceUID for one in held}) == len(held) == 16
    assert len(world.events(Held)) == 1


def test_an_association_for_each_image_holds_nothing(world: NodeInProcess) -> None:
    for one in slices():
        world.send([one])
    world.queue_up()
    assert (gaps(world), queued(world)) == ([], [(12, "")])


def test_an_image_in_which_its_own_association_broke_off_is_awaited(world: NodeInProcess) -> None:
    sent = slices()
    for one in sent[1:11]:
        world.send([one])
    cut_within(world, sent[0])
    world.send([sent[11]])
    world.queue_up()
    assert gaps(world) == ["11 images of the study received, 1 image not taken"]
    world.send([sent[0]])
    world.queue_up()
    assert queued(world) == [(12, "")]


def test_a_first_image_in_which_the_association_broke_off_is_awaited(world: NodeInProcess) -> None:
    sent = slices()
    cut_within(world, sent[0])
    world.send(sent[1:])
    world.queue_up()
    assert queued(world) == []
    world.send(sent[:1])
    world.queue_up()
    assert queued(world) == [(12, "")]


def test_an_association_beside_the_one_that_broke_off_mends_nothing(world: NodeInProcess) -> None:
    sent = slices()
    first, second = begin(world, sent[:3]), begin(world, sent[3:5])
    second.abort()
    eventually(lambda: world.node._incoming._open.total() == 1)
    for one in sent[5:8]:
        assert first.send_c_store(one).Status == 0
    first.release()
    world.wait_until_over()
    world.queue_up()
    assert (gaps(world), queued(world)) == ([EIGHT], [])


def test_studies_that_the_sender_had_left_are_whole(world: NodeInProcess) -> None:
    break_off(world, [*slices(0), *slices(1), *slices(2)[:8]])
    world.queue_up()
    assert (gaps(world), queued(world)) == ([EIGHT], [(12, "")] * 2)


def test_studies_that_come_by_turns_are_all_held(world: NodeInProcess) -> None:
    first, second = slices(0)[:8], slices(1)[:8]
    break_off(world, [one for pair in zip(first, second, strict=True) for one in pair])
    world.queue_up()
    assert (gaps(world), queued(world)) == ([EIGHT] * 2, [])


@pytest.mark.parametrize("is_held", [False, True])
def test_a_request_for_commitment_says_that_the_study_is_complete(
    world: NodeInProcess, is_held: bool
) -> None:
    sent = slices()
    heard = [(evt.EVT_N_EVENT_REPORT, lambda _: (0, None))]
    association = begin(world, sent, StorageCommitmentPushModel, evt_handlers=heard)
    if is_held:
        association.abort()
        world.wait_until_over()
        world.queue_up()
        association = begin(world, [], StorageCommitmentPushModel, evt_handlers=heard)
    asked, item = Dataset(), Dataset()
    asked.TransactionUID = "1.2.3.4"
    item.ReferencedSOPClassUID = sent[0].SOPClassUID
    item.ReferencedSOPInstanceUID = sent[0].SOPInstanceUID
    asked.ReferencedSOPSequence = [item]
    model = StorageCommitmentPushModel
    status, _ = association.send_n_action(asked, 1, model, "1.2.840.10008.1.20.1.1")
    assert status.Status == 0
    eventually(lambda: world.events(Reported))
    association.abort()
    world.wait_until_over()
    world.node.step()
    assert (len(gaps(world)), queued(world)) == (is_held, [(12, "")])


def test_a_killed_node_holds_what_was_on_its_way(world: NodeInProcess, tmp_path: Path) -> None:
    world.send(slices(0))
    association = begin(world, [*slices(1), *slices(2)[:8]])
    shutil.copytree(world.folder, tmp_path / "killed")
    association.release()
    world.wait_until_over()
    world.stop()
    for folder, expected in ((tmp_path / "killed", [12, 8, 12]), (world.folder, [12, 12])):
        with open_store(folder, world.now) as store:
            inbox = Inbox(folder, most=0, reserve=0, store=store)
            found = {len(inbox.objects(one)): inbox.gap(one) for one in inbox.studies()}
        broken = {count for count, gap in found.items() if gap.broke_off}
        assert broken == ({8} if 8 in expected else set())


@pytest.mark.parametrize("by_route", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_somebody_may_release_a_study(
    world: NodeInProcess, by_route: bool, is_restarted: bool
) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    [study] = [event.study for event in world.events(Held)]
    assert release(world.folder, "OTHER") == release(world.folder, "NODE/../x") == []
    if is_restarted:
        world.stop()
    assert release(world.folder, "NODE" if by_route else study) == [study]
    if is_restarted:
        world.start()
        world.pass_time(301)
    world.node.step()
    assert queued(world) == [(8, MAY_BE)]
    assert release(world.folder, study) == []


def test_a_study_that_changes_after_its_release_is_held_again(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    assert len(release(world.folder, "NODE")) == 1
    break_off(world, slices()[8:9])
    world.queue_up()
    assert gaps(world) == [EIGHT, EIGHT.replace("8", "9")]
    assert queued(world) == []


def test_a_hold_does_not_end_while_the_rest_comes(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    association = begin(world, slices()[8:10])
    world.pass_time(2 * HOUR)
    assert queued(world) == []
    for one in slices()[10:]:
        assert association.send_c_store(one).Status == 0
    association.release()
    world.wait_until_over()
    world.queue_up()
    assert queued(world) == [(12, "")]


def test_a_route_that_is_read_again_may_shorten_the_hold(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    world.with_route(hold=60.0)
    world.queue_up()
    assert queued(world) == [(8, MAY_BE)]


def test_parts_are_not_taken_before_the_hold_is_over(world: NodeInProcess) -> None:
    options = replace(world.route.request.options, allow_uneven=True)
    world.with_route(request=replace(world.route.request, options=options))
    break_off(world, slices()[:8])
    wait_for_the_rest_in_vain(world)
    assert queued(world) == [(8, MAY_BE)]


def test_a_clock_that_is_set_back_begins_the_hold_anew(world: NodeInProcess) -> None:
    break_off(world, slices()[:8])
    world.queue_up()
    world.pass_time(-30 * DAY)
    assert queued(world) == []
    world.pass_time(HOUR)
    assert queued(world) == [(8, MAY_BE)]


def test_a_held_study_is_not_removed(world: NodeInProcess) -> None:
    world.with_route(hold=60 * DAY)
    break_off(world, slices()[:8])
    world.queue_up()
    world.pass_time(59 * DAY)
    assert world.events(Emptied) == []
    world.pass_time(DAY)
    assert queued(world) == [(8, MAY_BE)]
