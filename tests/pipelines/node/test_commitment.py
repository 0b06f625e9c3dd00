"""Storage commitment: who asked hears which objects are here, on one association or another."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pynetdicom as _pynetdicom
import pytest
from pydicom import Dataset
from pynetdicom import evt
from pynetdicom.pdu import P_DATA_TF
from pynetdicom.sop_class import StorageCommitmentPushModel
from support.dicom_network import associate
from support.dicom_pacs import Pacs, orthanc
from support.node_in_process import NodeInProcess
from support.node_world import phantom
from support.ports import reserved_port
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.pipelines.node import commitment
from cuda_cyclegan.pipelines.node.events import NotReported, NotSent, Received, Reported
from cuda_cyclegan.pipelines.node.records import ReportKey
from cuda_cyclegan.pipelines.node.routes import Caller

pynetdicom: Any = _pynetdicom
TRANSACTION = "1.2.3.4"
INSTANCE = "1.2.840.10008.1.20.1.1"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeInProcess]:
    """Node whose sender is its destination."""
    with NodeInProcess(tmp_path) as found:
        found.with_route(destination=Peer("SENDER", "127.0.0.1", found.destination))
        yield found


def slices() -> list[Any]:
    return list(phantom(0).datasets())


def asked_about(objects: Sequence[Any], transaction: str = TRANSACTION) -> Dataset:
    found = Dataset()
    found.TransactionUID = transaction
    found.ReferencedSOPSequence = []
    for one in objects:
        item = Dataset()
        item.ReferencedSOPClassUID = one.SOPClassUID
        item.ReferencedSOPInstanceUID = one.SOPInstanceUID
        found.ReferencedSOPSequence.append(item)
    return found


def ask(world: NodeInProcess, objects: Sequence[Any], transaction: str = TRANSACTION) -> int:
    """The status of a request whose report is refused there, as by who expects it elsewhere.

    The association is cut once that answer is sent: pynetdicom fails if it overtakes it.
    """
    is_heard, is_answered = Event(), Event()

    def refuse(_: Any) -> tuple[int, None]:
        is_heard.set()
        return 0x0110, None

    def note_sent(event: Any) -> None:
        if is_heard.is_set() and isinstance(event.pdu, P_DATA_TF):
            is_answered.set()

    model = StorageCommitmentPushModel
    handlers = [(evt.EVT_N_EVENT_REPORT, refuse), (evt.EVT_PDU_SENT, note_sent)]
    association = associate(world.node.port, model, evt_handlers=handlers)
    asked = asked_about(objects, transaction)
    status, _ = association.send_n_action(asked, 1, model, INSTANCE)
    if status.Status == 0:
        assert is_answered.wait(ENOUGH)
    association.abort()
    world.wait_until_over()
    return status.Status


@contextmanager
def archive(
    port: int, status: int = 0, title: str = "SENDER"
) -> Iterator[list[tuple[int, str, Any]]]:
    """Archive that keeps the reports it receives: the event's type, the calling AE title, and the
    report.
    """
    reported: list[tuple[int, str, Any]] = []

    def handle(event: Any) -> tuple[int, None]:
        [context] = event.assoc.accepted_contexts
        assert context.as_scu  # the role that was selected: else no report may come
        reported.append((event.event_type, event.assoc.requestor.ae_title, event.event_information))
        return status, None

    entity = pynetdicom.AE(title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
    entity.require_called_aet = True
    entity.add_supported_context(StorageCommitmentPushModel, scu_role=True, scp_role=True)
    handlers = [(evt.EVT_N_EVENT_REPORT, handle)]
    server = entity.start_server(("127.0.0.1", port), block=False, evt_handlers=handlers)
    try:
        yield reported
    finally:
        server.shutdown()


def stored_reports(world: NodeInProcess) -> list[ReportKey]:
    return list(world.node.store.report_moments())


@pytest.fixture
def orthanc_s_world(tmp_path: Path) -> Iterator[tuple[NodeInProcess, Pacs]]:
    """Orthanc sends to NODE and gets its results."""
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        pacs = stack.enter_context(orthanc(tmp_path / "orthanc", {"NODE": port}))
        world = stack.enter_context(NodeInProcess(tmp_path))
        world.with_settings(port=port)
        world.with_route(
            callers=(Caller.parse("ORTHANC@127.0.0.1"),),
            destination=Peer("ORTHANC", "127.0.0.1", pacs.dicom_port),
        )
        yield world, pacs


@pytest.mark.slow
def test_orthanc_hears_that_what_it_sent_is_here(
    orthanc_s_world: tuple[NodeInProcess, Pacs], tmp_path: Path
) -> None:
    world, pacs = orthanc_s_world
    files = phantom(0).write(tmp_path / "sources")
    for file in files:
        pacs.post("/instances", file.read_bytes())
    done = pacs.post(
        "/modalities/NODE/store",
        {"Resources": pacs.ask("/series"), "StorageCommitment": True},
    )
    transaction = done["StorageCommitmentTransactionUID"]

    def answer() -> Any:
        world.node.step()
        return pacs.ask(f"/storage-commitment/{transaction}")

    eventually(lambda: answer()["Status"] != "Pending")
    assert answer()["Status"] == "Success"
    assert len(answer()["Success"]) == len(files)
    [reported] = world.events(Reported)
    assert (reported.safe, reported.asked) == (8, 8)
    assert [event.reason for event in world.events(Received)] == [""]
    assert stored_reports(world) == []


def test_a_report_that_was_not_taken_where_it_was_asked_for_comes_on_another_association(
    world: NodeInProcess,
) -> None:
    *sent, missing = slices()
    world.send(sent)
    with archive(world.destination) as reported:
        assert ask(world, [*sent, missing]) == 0
        eventually(lambda: world.node.step() or world.events(Reported))
    [(event, calling, report)] = reported
    assert (event, calling) == (2, "NODE")
    assert report.TransactionUID == TRANSACTION
    assert instances(report.ReferencedSOPSequence) == [one.SOPInstanceUID for one in sent]
    assert instances(report.FailedSOPSequence) == [missing.SOPInstanceUID]
    assert [(one.safe, one.asked) for one in world.events(Reported)] == [(7, 8)]
    assert stored_reports(world) == []


def instances(items: Any) -> list[str]:
    return [item.ReferencedSOPInstanceUID for item in items]


def test_a_report_that_was_taken_where_it_was_asked_for_is_not_given_again(
    world: NodeInProcess,
) -> None:
    here: list[Any] = []

    def handle(event: Any) -> tuple[int, None]:
        here.append(event.event_information)
        return 0, None

    with archive(world.destination) as reported:
        model = StorageCommitmentPushModel
        handlers = [(evt.EVT_N_EVENT_REPORT, handle)]
        association = associate(world.node.port, model, evt_handlers=handlers)
        association.send_n_action(asked_about(slices()), 1, model, INSTANCE)
        eventually(lambda: world.events(Reported))
        association.release()
        world.wait_until_over()
        world.node.step()
        assert stored_reports(world) == []
    assert (len(here), reported) == (1, [])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_report_waits_for_an_asker_that_is_away(world: NodeInProcess, is_restarted: bool) -> None:
    world.send(slices())
    ask(world, slices())
    eventually(lambda: world.node.step() or world.events(NotSent))
    assert "nothing answers" in world.events(NotSent)[0].reason
    if is_restarted:
        world.stop()
        world.start()
    with archive(world.destination) as reported:
        eventually(lambda: world.node.step() or world.events(Reported))
    [(event, _, report)] = reported
    assert event == 1
    assert len(report.ReferencedSOPSequence) == 8


def test_a_report_goes_nowhere_but_to_a_destination_of_its_asker(world: NodeInProcess) -> None:
    world.with_route(destination=Peer("PACS", "127.0.0.1", world.destination))
    with archive(world.destination, title="PACS") as reported:
        ask(world, slices())
        eventually(lambda: world.node.step() or world.events(NotReported))
    [event] = world.events(NotReported)
    assert (event.route, event.peer) == ("NODE", "SENDER")
    assert "no route has it as destination" in event.reason
    assert reported == []
    assert stored_reports(world) == []


def test_a_report_goes_to_its_asker_also_where_another_route_sends_there(
    world: NodeInProcess,
) -> None:
    other = replace(world.route, title="OTHER")
    own = replace(world.route, destination=Peer("PACS", "127.0.0.1", 1))
    world.node.use({"OTHER": other, "NODE": own})
    with archive(world.destination) as reported:
        ask(world, slices())
        eventually(lambda: world.node.step() or world.events(Reported))
    assert [calling for _, calling, _ in reported] == ["NODE"]


def test_a_report_that_its_asker_refuses_is_not_tried_again(world: NodeInProcess) -> None:
    with archive(world.destination, status=0x0110) as reported:
        ask(world, slices())
        eventually(lambda: world.node.step() or world.events(NotReported))
    [event] = world.events(NotReported)
    assert event.reason == "it answered N-EVENT-REPORT with status 0110"
    assert (len(reported), stored_reports(world)) == (1, [])


def test_a_report_is_abandoned_after_as_long_as_the_route_says(world: NodeInProcess) -> None:
    ask(world, slices())
    eventually(lambda: world.node.step() or world.events(NotSent))
    world.pass_time(world.route.retry + 1)
    eventually(lambda: world.node.step() or world.events(NotReported))
    assert "nothing answers" in world.events(NotReported)[0].reason
    assert stored_reports(world) == []


def test_object_removed_before_its_report_is_not_reported_to_be_here(world: NodeInProcess) -> None:
    world.send(slices()[:3])  # of which nothing can be made
    ask(world, slices()[:3])
    world.queue_up()
    world.pass_time(world.route.keep + 1)
    assert world.objects() == []
    with archive(world.destination) as reported:
        eventually(lambda: world.node.step() or world.events(Reported))
    [(event, _, report)] = reported
    assert (event, len(report.FailedSOPSequence)) == (2, 3)


def test_more_reports_than_can_be_owed_are_refused(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commitment, "MOST", 2)
    assert [ask(world, slices(), f"1.2.{at}") for at in range(3)] == [0, 0, 0x0213]


def test_a_report_that_no_disk_can_keep_is_not_promised(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(world.node.store, "put_report", full)
    assert ask(world, slices()) == 0x0110
    assert stored_reports(world) == []
