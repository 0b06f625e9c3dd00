"""Storage commitment of results: only the destination's report makes a result sent."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynetdicom as _pynetdicom
import pytest
from pydicom import Dataset
from pydicom.uid import ExplicitVRLittleEndian
from pynetdicom import evt
from pynetdicom.sop_class import MRImageStorage, StorageCommitmentPushModel, Verification
from support.dicom_network import associate
from support.dicom_pacs import Pacs, orthanc
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom
from support.ports import reserved_port
from support.waiting import ENOUGH, eventually

from cuda_cyclegan.io.dicom_network import sending
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.sending import Transmission
from cuda_cyclegan.io.dicom_network.storage_commitment import Commitment
from cuda_cyclegan.pipelines.node import delivery, periodic_thread
from cuda_cyclegan.pipelines.node.events import (
    CommitmentRequested,
    NotCommitted,
    NotSent,
    ReportRefused,
    SendingAbandoned,
    Sent,
    TurnedAway,
)
from cuda_cyclegan.pipelines.node.node import check_destinations
from cuda_cyclegan.pipelines.node.routes import Caller

pynetdicom: Any = _pynetdicom
pytestmark = pytest.mark.process
MODEL = StorageCommitmentPushModel
INSTANCE = "1.2.840.10008.1.20.1.1"
HOUR = 3600.0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeInProcess]:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(delivery, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(periodic_thread, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(sending, "REPORT_SECONDS", 0.1)
    with NodeInProcess(tmp_path, commitment=HOUR) as found:
        yield found


@dataclass
class Archive:
    """A storage SCP that is asked for storage commitment, and what it got.

    status: of its answers to N-ACTION. aborts: how many of those it answers by aborting. here:
    whether it reports on the same association.
    """

    status: int = 0
    aborts: int = 0
    here: bool = False
    stored: list[str] = field(default_factory=list[str])
    asked: list[Dataset] = field(default_factory=list[Dataset])
    answers: list[int] = field(default_factory=list[int])
    is_answered: threading.Event = field(default_factory=threading.Event)

    def store(self, event: Any) -> int:
        self.stored.append(str(event.dataset.SOPInstanceUID))
        return 0

    def take_request(self, event: Any) -> tuple[int, None]:
        assert event.action_type == 1
        assert str(event.request.RequestedSOPInstanceUID) == INSTANCE
        self.asked.append(event.action_information)
        if self.aborts:
            self.aborts -= 1
            event.assoc.abort()
        if self.here:
            report = report_on(self.asked[-1])
            threading.Thread(target=self.report_here, args=(event.assoc, report)).start()
        return self.status, None

    def report_here(self, association: Any, report: Dataset) -> None:
        status, _ = association.send_n_event_report(report, 1, MODEL, INSTANCE)
        self.answers.append(status.Status)
        self.is_answered.set()


@contextmanager
def archive(world: NodeInProcess, **how: Any) -> Iterator[Archive]:
    found = Archive(**how)
    entity = pynetdicom.AE("PACS")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
    for sop_class in (MRImageStorage, Verification, MODEL):
        entity.add_supported_context(sop_class, ExplicitVRLittleEndian)
    handlers = [(evt.EVT_C_STORE, found.store), (evt.EVT_N_ACTION, found.take_request)]
    server = entity.start_server(
        ("127.0.0.1", world.destination), block=False, evt_handlers=handlers
    )
    try:
        yield found
    finally:
        server.shutdown()


def report_on(asked: Dataset, failed: Iterable[str] = (), omitted: Iterable[str] = ()) -> Dataset:
    """The report on a request. failed, omitted: UIDs that it names as such, and does not name."""
    report = Dataset()
    report.TransactionUID = asked.TransactionUID
    report.ReferencedSOPSequence, report.FailedSOPSequence = [], []
    for item in asked.ReferencedSOPSequence:
        uid = item.ReferencedSOPInstanceUID
        if uid in failed:
            item.FailureReason = 0x0112
            report.FailedSOPSequence.append(item)
        elif uid not in omitted:
            report.ReferencedSOPSequence.append(item)
    return report


def sent_report(world: NodeInProcess, report: Dataset, calling: str = "PACS", **how: Any) -> int:
    """The status of a report on a new association."""
    role = pynetdicom.build_role(MODEL, scp_role=True)
    association = associate(world.node.port, MODEL, calling=calling, ext_neg=[role], **how)
    assert association.is_established
    [context] = association.accepted_contexts
    assert context.as_scp  # the role that was selected: else no report may be sent
    status, _ = association.send_n_event_report(report, 1, MODEL, INSTANCE)
    association.release()
    world.wait_until_over()
    return status.Status


def translated(world: NodeInProcess) -> None:
    """Have a result of eight objects to be sent."""
    world.send(phantom(0).datasets())
    world.queue_up()
    world.translate()


def wait_for_requests(world: NodeInProcess, count: int = 1) -> None:
    eventually(lambda: world.node.step() or len(world.events(CommitmentRequested)) >= count)


def reason(world: NodeInProcess) -> str:
    [one] = world.series()
    return one.reason


def test_a_result_is_sent_by_the_report_alone(world: NodeInProcess) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        world.pass_time(HOUR / 2)
        assert world.states() == ["sending"]
        assert "has not reported storage commitment" in reason(world)
        assert world.events(Sent) == []
        assert sent_report(world, report_on(pacs.asked[0])) == 0
        assert world.states() == ["sent"]
        [event] = world.events(Sent)
        assert (event.objects, event.remark, reason(world)) == (8, "", "")
        assert sent_report(world, report_on(pacs.asked[0])) == 0  # its answer may have been lost
    assert len(world.events(Sent)) == 1
    assert len(pacs.stored) == 8
    assert sorted(pacs.stored) == sorted(
        item.ReferencedSOPInstanceUID for item in pacs.asked[0].ReferencedSOPSequence
    )


def test_a_report_may_come_on_the_association_of_the_request(
    world: NodeInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "REPORT_SECONDS", ENOUGH)
    with archive(world, here=True) as pacs:
        translated(world)
        world.wait_for_sends(1)
        assert pacs.is_answered.wait(ENOUGH)
    assert (pacs.answers, world.states()) == ([0], ["sent"])


def test_a_report_counts_after_a_restart(world: NodeInProcess) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        world.stop()
        world.start()
        world.node.step()
        assert world.states() == ["sending"]
        assert sent_report(world, report_on(pacs.asked[0])) == 0
    assert world.states() == ["sent"]
    assert len(pacs.asked) == 1


def test_objects_that_are_not_committed_are_sent_again(world: NodeInProcess) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        lost, unnamed = pacs.stored[2], pacs.stored[5]
        assert sent_report(world, report_on(pacs.asked[0], [lost], [unnamed])) == 0
        [event] = world.events(NotCommitted)
        assert event.reason == (
            "2 of 8 objects (0003.dcm, 0006.dcm): it reported them as not committed, with "
            "FailureReason 0112"
        )
        wait_for_requests(world, 2)
        assert sorted(pacs.stored[8:]) == sorted([lost, unnamed])
        assert world.states() == ["sending"]
        first, second = pacs.asked
        assert sent_report(world, report_on(first)) == 0x0115  # it was answered before
        assert world.states() == ["sending"]
        assert sent_report(world, report_on(second)) == 0
    assert world.states() == ["sent"]


def test_a_peer_that_never_reports_is_asked_again_and_then_given_up(world: NodeInProcess) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        world.pass_time(HOUR + 1)
        wait_for_requests(world, 2)
        assert [event.earlier for event in world.events(CommitmentRequested)] == [0, 1]
        world.pass_time(8 * DAY)
        eventually(lambda: world.node.step() or world.events(SendingAbandoned))
        assert world.states() == ["undelivered"]
        assert "has not reported storage commitment" in reason(world)
        assert len(pacs.stored) == 8
        assert len({asked.TransactionUID for asked in pacs.asked}) == len(pacs.asked)
        late = report_on(pacs.asked[0])
        assert sent_report(world, late) == 0  # evidence counts, whenever it comes
    assert world.states() == ["sent"]


@pytest.mark.parametrize("failed", [False, True])
def test_a_report_from_elsewhere_counts_for_nothing(world: NodeInProcess, failed: bool) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        world.with_route(destination=Peer("PACS", "192.0.2.1", 104))
        report = report_on(pacs.asked[0], pacs.stored[:1] if failed else [])
        association = associate(world.node.port, MODEL, calling="PACS")
        assert association.is_rejected  # from this address
        assert sent_report(world, report, calling="SENDER") == 0x0124  # who may only send images
        assert world.states() == ["sending"]
    [event] = world.events(ReportRefused)
    assert (event.peer, "address" in event.reason) == ("SENDER", True)
    eventually(lambda: world.events(TurnedAway))


def test_a_report_of_the_destination_from_an_admitted_address_counts(
    world: NodeInProcess,
) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        callers = (*world.route.callers, Caller.parse("PACS@127.0.0.0/8"))
        world.with_route(destination=Peer("PACS", "192.0.2.1", 104), callers=callers)
        assert sent_report(world, report_on(pacs.asked[0])) == 0
    assert world.states() == ["sent"]


def test_the_destination_may_send_reports_but_no_images(world: NodeInProcess) -> None:
    association = associate(world.node.port, MRImageStorage, MODEL, calling="PACS")
    accepted = [str(context.abstract_syntax) for context in association.accepted_contexts]
    association.release()
    world.wait_until_over()
    assert accepted == [str(MODEL)]


Spoil = Callable[[Dataset], object]
SPOILT: dict[str, tuple[Spoil, int]] = {
    "an unknown transaction": (lambda one: setattr(one, "TransactionUID", "1.2.3"), 0x0115),
    "no transaction": (lambda one: delattr(one, "TransactionUID"), 0x0115),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_report_on_nothing_is_refused(name: str, world: NodeInProcess) -> None:
    spoil, status = SPOILT[name]
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        report = report_on(pacs.asked[0])
        spoil(report)
        assert sent_report(world, report) == status
    assert world.states() == ["sending"]


def test_objects_that_were_not_asked_for_count_for_nothing(world: NodeInProcess) -> None:
    with archive(world) as pacs:
        translated(world)
        wait_for_requests(world)
        report = report_on(pacs.asked[0])
        report.ReferencedSOPSequence[0].ReferencedSOPInstanceUID = "1.2.3.4"
        assert sent_report(world, report) == 0
        assert "0001.dcm): its report of storage commitment lacks them" in reason(world)
        wait_for_requests(world, 2)
    [refused] = world.events(ReportRefused)
    assert refused.reason == "1 of its objects were not asked for, and count for nothing"
    assert world.states() == ["sending"]


def test_a_request_without_an_answer_is_made_again_and_either_report_counts(
    world: NodeInProcess,
) -> None:
    with archive(world, aborts=1) as pacs:
        translated(world)
        wait_for_requests(world)
        assert len(pacs.asked) == 2
        assert world.states() == ["sending"]
        assert sent_report(world, report_on(pacs.asked[0])) == 0
    assert world.states() == ["sent"]
    assert len(pacs.stored) == 8


def test_a_request_that_is_refused_is_made_again(world: NodeInProcess) -> None:
    with archive(world, status=0x0213) as pacs:
        translated(world)
        eventually(lambda: world.node.step() or len(world.events(NotSent)) > 1)
        assert world.events(NotSent)[0].reason == "it answered N-ACTION with status 0213"
        assert world.states() == ["sending"]
        pacs.status = 0
        wait_for_requests(world)
        assert [event.earlier for event in world.events(CommitmentRequested)] == [0]
    assert len(pacs.stored) == 8


def test_check_finds_a_destination_without_storage_commitment(world: NodeInProcess) -> None:
    routes = {"NODE": world.route}
    with archive(world):
        assert [trouble for *_, trouble in check_destinations(routes, None)] == [None]
    from support.dicom_network import archive as plain_archive

    with plain_archive(port=world.destination):
        [(*_, trouble)] = check_destinations(routes, None)
        translated(world)
        eventually(lambda: world.node.step() or world.events(NotSent))
    assert trouble == "it does not accept Storage Commitment Push Model SOP Class"
    assert trouble in world.events(NotSent)[0].reason
    assert world.states() == ["sending"]


@pytest.mark.slow
def test_orthanc_reports_results_as_committed_and_lost_ones_as_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        pacs: Pacs = stack.enter_context(orthanc(tmp_path / "orthanc", {"NODE": port}))
        world = stack.enter_context(NodeInProcess(tmp_path, commitment=HOUR))
        world.with_settings(port=port)
        world.with_route(destination=Peer("ORTHANC", "127.0.0.1", pacs.dicom_port))
        request, losses = Transmission.request, [0, 3]

        def request_after_a_loss(link: Transmission, asked: Commitment) -> None:
            if losses:
                for at in losses:
                    [found] = pacs.post("/tools/lookup", asked.referenced[at].instance.encode())
                    pacs.delete(found["Path"])
                losses.clear()
            request(link, asked)

        monkeypatch.setattr(Transmission, "request", request_after_a_loss)
        translated(world)
        world.wait_for_sends(1)
        assert world.states() == ["sent"]
        assert len(world.events(CommitmentRequested)) == 2
        [event] = world.events(NotCommitted)
        assert event.reason.startswith("2 of 8 objects (0001.dcm, 0004.dcm): it reported them")
        assert len(pacs.ask("/instances")) == 8
