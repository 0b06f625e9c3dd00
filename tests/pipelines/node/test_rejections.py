"""Rejection notes on results of partial studies, once the result of the whole study is stored."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydicom.uid import KeyObjectSelectionDocumentStorage
from support.dicom_judges import conformance_errors
from support.dicom_network import archive
from support.dicom_pacs import orthanc
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.ports import reserved_port
from support.waiting import eventually
from support.web_server import Archive, web_server

from cuda_cyclegan.io.dicom_network.sending import Peer
from cuda_cyclegan.io.dicom_network.web import WebPeer
from cuda_cyclegan.io.errors import WriteError
from cuda_cyclegan.pipelines.jobs.queue.job import Interval
from cuda_cyclegan.pipelines.jobs.queue.queue import Queue
from cuda_cyclegan.pipelines.node import delivery, periodic_thread, rejections
from cuda_cyclegan.pipelines.node.events import NotSent, Sent, Trouble
from cuda_cyclegan.pipelines.node.records import SeriesRecord
from cuda_cyclegan.pipelines.node.store import NodeStore

pytestmark = pytest.mark.process
NOTE = str(KeyObjectSelectionDocumentStorage)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeInProcess]:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(periodic_thread, "POLL_SECONDS", 0.02)
    with NodeInProcess(tmp_path, rejects_superseded=True) as found:
        yield found


def slices() -> list[Any]:
    return list(phantom(0, 12).datasets())


def translate(world: NodeInProcess, images: list[Any]) -> None:
    world.send(images)
    world.queue_up()
    world.translate()


def notes(world: NodeInProcess) -> list[SeriesRecord]:
    return [one for one in world.series() if one.rejects]


def results(world: NodeInProcess) -> list[SeriesRecord]:
    return [one for one in world.series() if not one.rejects]


def uids(objects: list[Any]) -> set[str]:
    return {str(one.SOPInstanceUID) for one in objects}


def rejected_by(note: Any) -> set[str]:
    """Objects that a note lists as evidence, which must be those of its content."""
    [study] = note.CurrentRequestedProcedureEvidenceSequence
    found = {
        str(item.ReferencedSOPInstanceUID)
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    shown = {
        str(item.ReferencedSOPSequence[0].ReferencedSOPInstanceUID)
        for item in note.ContentSequence
        if item.ValueType == "IMAGE"
    }
    assert found == shown
    return found


def test_the_result_of_a_partial_study_is_rejected_after_that_of_the_whole(
    world: NodeInProcess,
) -> None:
    images = slices()
    with archive(port=world.destination, more=[NOTE]) as (_, held):
        translate(world, images[:8])
        world.wait_for_sends(1)
        assert not notes(world)
        translate(world, images[8:])
        world.wait_for_sends(3)
    assert [str(one.SOPClassUID) for one in held].index(NOTE) == len(held) - 1 == 20
    note, early, late = held[-1], held[:8], held[8:20]
    assert rejected_by(note) == uids(early)
    assert not rejected_by(note) & uids(late)
    assert note.ConceptNameCodeSequence[0].CodeValue == "113001"
    assert note.StudyInstanceUID == images[0].StudyInstanceUID
    assert (note.PatientID, note.PatientName) == (images[0].PatientID, images[0].PatientName)
    assert [one.state for one in world.series()] == ["sent"] * 3
    [record] = notes(world)
    assert (record.rejects, record.round) == (results(world)[0].place, 2)
    assert len(world.events(Sent)) == 3


def test_a_note_is_valid(world: NodeInProcess) -> None:
    images = slices()
    with archive(port=world.destination, more=[NOTE]):
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(3)
    [file] = world.folder.glob("results/*/*/*/2/rejected-1-*/0001.dcm")
    assert conformance_errors(file) == set()


def test_each_earlier_result_is_rejected_once(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, jobs, record_sent = slices(), list[str](), Queue.record_sent

    def noted(queue: Queue, job: str, interval: Interval) -> None:
        jobs.append(job)
        record_sent(queue, job, interval)

    monkeypatch.setattr(Queue, "record_sent", noted)
    with archive(port=world.destination, more=[NOTE]) as (_, held):
        for count, part in ((1, images[:8]), (3, images[8:10]), (5, images[10:])):
            translate(world, part)
            world.wait_for_sends(count)
        world.with_settings()
        world.pass_time(31)
    first, second = [one for one in held if one.SOPClassUID == NOTE]
    by_round = [one.place for one in results(world)]
    assert [one.rejects for one in notes(world)] == by_round[:2]
    assert len(rejected_by(first)) == 8
    assert len(rejected_by(second)) == 10
    assert {*jobs} == {one.job for one in results(world)}  # a note has none
    assert len(world.events(Sent)) == 5


def test_nothing_is_rejected_without_the_setting(world: NodeInProcess) -> None:
    images = slices()
    world.with_route(rejects_superseded=False)
    with archive(port=world.destination, more=[NOTE]):
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(2)
    assert not notes(world)


@pytest.mark.parametrize("changed", [{"model": "other"}, {"model": ""}, {"destination": "A@b:1"}])
def test_a_result_of_another_model_or_destination_stays(
    world: NodeInProcess, changed: dict[str, str]
) -> None:
    images = slices()
    with archive(port=world.destination, more=[NOTE]):
        translate(world, images[:8])
        world.wait_for_sends(1)
        [record] = world.node.store.studies()
        earlier = replace(record.series[0], **changed)
        world.node.store.put(replace(record, series=(earlier,)))
        translate(world, images[8:])
        world.wait_for_sends(2)
    assert not notes(world)


@pytest.mark.parametrize("more", [frozenset({"1.2.3"}), None])
def test_a_result_whose_images_the_later_one_lacks_stays(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch, more: frozenset[str] | None
) -> None:
    """None: it states no images at all."""
    images, found = slices(), rejections.sources_of

    def stated(files: Sequence[Path]) -> frozenset[str]:
        if len(files) > 8:
            return found(files)
        return frozenset() if more is None else found(files) | more

    monkeypatch.setattr(rejections, "sources_of", stated)
    with archive(port=world.destination, more=[NOTE]):
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(2)
    assert not notes(world)


def test_an_earlier_result_that_is_stored_later_is_rejected_then(world: NodeInProcess) -> None:
    images = slices()
    world.with_route(rejects_superseded=False)
    with archive(port=world.destination):
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(2)
    [record] = world.node.store.studies()
    [folder] = world.folder.glob("results/*/*/*-*")
    earlier, later = record.series
    for sent in (earlier, later):
        [note] = rejections.rejection_notes(record, sent, folder, world.now)
        assert (note.rejects, note.round) == (earlier.place, 2)
    unknown = replace(earlier, model=""), replace(later, model="")
    without = replace(record, series=unknown)
    assert not [*rejections.rejection_notes(without, unknown[1], folder, world.now)]
    done = replace(record, series=(*record.series, note))
    assert not [*rejections.rejection_notes(done, earlier, folder, world.now)]


def test_a_destination_that_refuses_notes_keeps_the_result(world: NodeInProcess) -> None:
    images = slices()
    with archive(port=world.destination):
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(2)
        eventually(lambda: world.node.step() or world.events(NotSent))
        refused = notes(world)[0].reason  # of the archive, which does not answer after the block
    [name] = {event.what for event in world.events(NotSent)}
    assert name.endswith(notes(world)[0].place)
    assert "it does not accept Key Object Selection Document Storage" in refused
    assert [one.state for one in results(world)] == ["sent", "sent"]
    world.pass_time(8 * 86400)
    eventually(lambda: world.node.step() or notes(world)[0].state == "undelivered")
    assert [one.state for one in results(world)] == ["sent", "sent"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_kill_at_the_record_of_the_result_loses_no_note(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    class Killed(BaseException):
        pass

    images, put = slices(), NodeStore.put
    with archive(port=world.destination, more=[NOTE]) as (_, held):
        translate(world, images[:8])
        world.wait_for_sends(1)
        killed = list[int]()

        def put_or_die(store: NodeStore, *records: Any) -> None:
            if not killed and any(one.rejects for record in records for one in record.series):
                killed.append(1)
                if is_stored:
                    put(store, *records)
                raise Killed
            put(store, *records)

        monkeypatch.setattr(NodeStore, "put", put_or_die)
        translate(world, images[8:])
        eventually(lambda: world.node.step() or killed)
        world.stop()
        world.start()
        world.node.step()
        eventually(lambda: world.node.step() or [one.state for one in notes(world)] == ["sent"])
    assert len([one for one in held if one.SOPClassUID == NOTE]) == 1
    assert len({one.SOPInstanceUID for one in held}) == 21
    assert [one.state for one in results(world)] == ["sent", "sent"]


@pytest.mark.parametrize("is_removed", [True, False])
def test_an_earlier_result_that_is_lost_here_is_named(
    world: NodeInProcess, *, is_removed: bool
) -> None:
    images = slices()
    with archive(port=world.destination, more=[NOTE]):
        translate(world, images[:8])
        world.wait_for_sends(1)
        for file in world.folder.glob("results/*/*/*/1/*/*.dcm"):
            file.write_bytes(b"damaged")
            if is_removed:
                file.unlink()
        translate(world, images[8:])
        world.wait_for_sends(2)
    [trouble] = world.events(Trouble)
    assert "no rejection note on an earlier result: " in trouble.reason
    assert ("are no longer here" if is_removed else "is damaged") in trouble.reason
    assert not notes(world)


def test_a_full_disk_delays_the_result_and_its_note(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise WriteError("the disk is full")

    images = slices()
    with archive(port=world.destination, more=[NOTE]) as (_, held):
        translate(world, images[:8])
        world.wait_for_sends(1)
        with monkeypatch.context() as full:
            full.setattr(rejections, "whole_file", fail)
            translate(world, images[8:])
            eventually(lambda: world.node.step() or world.events(NotSent))
        assert "cannot be used (the disk is full)" in world.events(NotSent)[0].reason
        assert [one.state for one in world.series()] == ["sent", "sending"]
        world.wait_for_sends(3)
    assert len(held) == 21


def test_a_dicomweb_server_gets_notes_too(world: NodeInProcess) -> None:
    images, provider = slices(), Archive()
    with web_server(provider.answer, world.destination):
        world.with_route(destination=WebPeer(f"http://127.0.0.1:{world.destination}/dicom-web"))
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(3)
    assert [one.state for one in notes(world)] == ["sent"]
    assert len(provider.held) == 21


@pytest.mark.slow
def test_orthanc_commits_notes(tmp_path: Path) -> None:
    images = slices()
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        pacs = stack.enter_context(orthanc(tmp_path / "orthanc", {"NODE": port}))
        world = stack.enter_context(
            NodeInProcess(tmp_path, commitment=3600.0, rejects_superseded=True)
        )
        world.with_settings(port=port)
        world.with_route(destination=Peer("ORTHANC", "127.0.0.1", pacs.dicom_port))
        translate(world, images[:8])
        world.wait_for_sends(1)
        translate(world, images[8:])
        world.wait_for_sends(3)
        assert [one.state for one in world.series()] == ["sent"] * 3
        [found] = [
            one for one in pacs.ask("/series?expand") if one["MainDicomTags"]["Modality"] == "KO"
        ]
        [instance] = found["Instances"]
        [title] = pacs.ask(f"/instances/{instance}/simplified-tags")["ConceptNameCodeSequence"]
    assert (title["CodeValue"], title["CodingSchemeDesignator"]) == ("113001", "DCM")
