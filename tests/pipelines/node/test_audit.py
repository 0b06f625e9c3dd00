"""Messages that a node records in its audit trail: PS3.15, section A.5."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pynetdicom.sop_class import MRImageStorage
from support.audit_trails import code, codes, lines
from support.dicom_network import archive, associate
from support.node_in_process import DAY, NodeInProcess
from support.node_world import phantom
from support.tiers import examples
from support.waiting import eventually

from cuda_cyclegan.io.dicom_network.errors import (
    CertificateError,
    ConnectionLostError,
    NetworkError,
    TokenError,
)
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.storage_commitment import Commitment, Referenced
from cuda_cyclegan.io.dicom_network.syslog import MOST_BYTES, SyslogServer, frame_of
from cuda_cyclegan.pipelines.errors import ConfigError
from cuda_cyclegan.pipelines.node import audit_messages, commitment
from cuda_cyclegan.pipelines.node.audit import AuditTrail
from cuda_cyclegan.pipelines.node.audit_messages import Party, StudyFacts, Tree, document_of
from cuda_cyclegan.pipelines.node.events import NotSent, SendingAbandoned, TurnedAway
from cuda_cyclegan.pipelines.node.records import PendingReport

START, STOP = "110100/110120/0", "110100/110121/0"
ALERT = "110113/110126/4"


class InMemory(AuditTrail):
    """Trail of a test."""

    def __init__(self) -> None:
        self.found: list[Tree] = []

    @property
    def is_kept(self) -> bool:
        return True

    def record(self, message: Tree) -> None:
        self.found.append(message)


def assert_valid(message: dict[str, Any]) -> None:
    """Check order and required parts of the schema in A.5.1, and the conventions of A.5.2."""
    root = ElementTree.fromstring(document_of(message))
    assert root.tag == "AuditMessage"
    tags = [child.tag for child in root]
    order = ["EventIdentification", "ActiveParticipant", "AuditSourceIdentification"]
    order.append("ParticipantObjectIdentification")
    assert tags == sorted(tags, key=order.index)
    assert tags.count(order[0]) == tags.count(order[2]) == 1
    assert tags.count(order[1]) >= 1
    event = root[0]
    inside = ["EventID", "EventTypeCode", "EventOutcomeDescription"]
    assert [child.tag for child in event] == sorted(
        (child.tag for child in event), key=inside.index
    )
    assert event.attrib["EventActionCode"] in "CRUDE"
    assert event.attrib["EventOutcomeIndicator"] in ("0", "4", "8", "12")
    assert event.attrib["EventDateTime"].endswith("+00:00")
    for coded in (*root.iter("EventID"), *root.iter("EventTypeCode"), *root.iter("RoleIDCode")):
        assert coded.attrib.keys() == {"csd-code", "codeSystemName", "originalText"}
    participants = root.findall("ActiveParticipant")
    assert sum(one.attrib["UserIsRequestor"] == "true" for one in participants) <= 1
    assert all(one.attrib["UserID"] for one in participants)
    for one in root.findall("ParticipantObjectIdentification"):
        assert one.attrib["ParticipantObjectID"]
        inside = [child.tag.removeprefix("ParticipantObject") for child in one]
        assert inside[:2] == ["IDTypeCode", "Name"]
        assert not one.findtext("ParticipantObjectName")


def requestors(message: dict[str, Any]) -> list[str]:
    return [one["UserIsRequestor"] for one in message["ActiveParticipant"]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[NodeInProcess]:
    with NodeInProcess(tmp_path) as found:
        found.with_settings(audit=tmp_path / "audit")
        yield found


@pytest.mark.process
def test_each_transfer_and_removal_is_a_message(world: NodeInProcess, tmp_path: Path) -> None:
    datasets = list(phantom(0).datasets())
    with archive(port=world.destination):
        world.send(datasets)
        world.send(datasets)
        world.queue_up()
        world.translate()
        world.wait_for_sends(1)
    world.pass_time(2 * DAY)
    world.stop()
    found = lines(tmp_path / "audit")
    assert [code(one) for one in found] == [
        *(START, "110104/0", "110104/0", "110102/0", "110104/0", "110105/0", STOP)
    ]
    for one in found:
        assert_valid(one)
    for one in found[1:6]:
        study, patient = one["ParticipantObjectIdentification"]
        assert study["ParticipantObjectID"] == datasets[0].StudyInstanceUID
        assert patient["ParticipantObjectID"] == datasets[0].PatientID
        [held] = study["ParticipantObjectDescription"]["SOPClass"]
        assert held == {"UID": MRImageStorage, "NumberOfInstances": "8"}
    assert str(datasets[0].PatientName) not in json.dumps(found)
    actions = [one["EventIdentification"]["EventActionCode"] for one in found]
    assert actions == ["E", "C", "R", "E", "R", "D", "E"]
    sender, own = found[1]["ActiveParticipant"]
    assert (sender["UserID"], sender["NetworkAccessPointID"]) == ("SENDER", "127.0.0.1")
    assert own["AlternativeUserID"] == "AETITLES=NODE"
    own, receiver = found[4]["ActiveParticipant"]
    assert own["AlternativeUserID"] == "AETITLES=NODE"
    assert receiver["UserID"] == "PACS"
    for one, asked in ((found[1], ["true", "false"]), (found[4], ["true", "false"])):
        assert requestors(one) == asked
        roles = [role["RoleIDCode"]["csd-code"] for role in one["ActiveParticipant"]]
        assert roles == ["110153", "110152"]


@pytest.mark.process
def test_rejected_connections_are_security_alerts(world: NodeInProcess, tmp_path: Path) -> None:
    for _ in range(3):
        assert not associate(world.node.port, MRImageStorage, calling="STRANGER").is_established
    eventually(lambda: world.events(TurnedAway))
    world.wait_until_over()
    world.stop()
    first, rest = (one for one in lines(tmp_path / "audit") if code(one).startswith("110113"))
    for one in (first, rest):
        assert_valid(one)
        assert code(one) == ALERT
        assert one["ActiveParticipant"][1]["UserID"] == "STRANGER"
        assert requestors(one) == ["false", "false"]  # A.5.3.11
    reason = rest["EventIdentification"]["EventOutcomeDescription"]["text"]
    assert reason.endswith("; 2 times")
    assert [event.count for event in world.events(TurnedAway)] == [1, 2]


@pytest.mark.process
def test_refused_objects_are_failures(world: NodeInProcess, tmp_path: Path) -> None:
    datasets = list(phantom(0).datasets())
    world.send(datasets[:7])
    world.with_settings(most=1)
    assert world.send(datasets[7:]) == [0xA700]
    world.stop()
    [_, failed] = [one for one in lines(tmp_path / "audit") if code(one).startswith("110104")]
    assert_valid(failed)
    assert code(failed) == "110104/4"
    study = failed["ParticipantObjectIdentification"][0]
    assert study["ParticipantObjectID"] == datasets[0].StudyInstanceUID
    assert study["ParticipantObjectDescription"]["SOPClass"] == []
    reason = failed["EventIdentification"]["EventOutcomeDescription"]["text"]
    assert reason == "objects refused: 1"


@pytest.mark.process
def test_a_result_that_is_given_up_is_a_failure(world: NodeInProcess, tmp_path: Path) -> None:
    world.with_route(retry=0.0)
    world.send(phantom(0).datasets())
    world.queue_up()
    world.translate()
    world.now += 1
    eventually(lambda: world.node.step() or world.events(SendingAbandoned))
    world.stop()
    failed = lines(tmp_path / "audit")[-2]
    assert_valid(failed)
    assert code(failed) == "110104/8"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CertificateError("its certificate is not trusted"), 1),
        (TokenError("no access token from https://host/token"), 1),
        (ConnectionLostError("nothing answers"), 0),
    ],
)
def test_a_failed_authentication_at_a_peer_is_an_alert(error: NetworkError, expected: int) -> None:
    trail = InMemory()
    trail.failed("NODE", Peer("PACS", "pacs.example.org", 104), error)
    assert [code(one) for one in trail.found] == [ALERT] * expected
    for one in trail.found:
        found: Any = one
        assert found["ActiveParticipant"][1]["NetworkAccessPointID"] == "pacs.example.org"
        assert found["EventIdentification"]["EventOutcomeDescription"]["text"] == str(error)


@pytest.mark.process
def test_a_report_without_a_trusted_certificate_is_an_alert(
    world: NodeInProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise CertificateError("its certificate is not trusted")

    monkeypatch.setattr(commitment, "reporting_to", fail)
    asked = Commitment("1.2.3", (Referenced(MRImageStorage, "1.2.3.4"),))
    world.node.store.put_report(PendingReport("NODE", "PACS", world.now, asked))
    world.with_settings()
    eventually(lambda: world.node.step() or world.events(NotSent))
    world.stop()
    assert ALERT in codes(tmp_path / "audit")


@settings(max_examples=examples(200))
@given(st.sampled_from(['"', "\n", "\U0001f9e0", "ä", "<", "x", "\0"]), st.sampled_from([65, 9999]))
def test_any_message_fits_in_what_receivers_support(one: str, count: int) -> None:
    text = one * count
    classes = {f"{number}{text}": 10**9 for number in range(100)}
    facts, peer = StudyFacts(text, text, classes), Party(text, text)
    for message in (
        audit_messages.activity([text, text], starts=True),
        audit_messages.begin_transfer(text, peer, facts),
        audit_messages.transferred(text, peer, facts, is_sending=False, failure=text),
        audit_messages.deleted(text, facts),
        audit_messages.not_authenticated([text], peer, text, count=10**9),
        audit_messages.gap([text], text),
    ):
        assert ElementTree.fromstring(document_of(message)).tag == "AuditMessage"
        frame = frame_of(document_of(message), "2026-11-29T00:00:00.000+00:00", "h" * 255, "1")
        assert len(frame.partition(b" ")[2]) <= MOST_BYTES
        assert len(json.dumps(message).encode()) < 1 << 16  # as much as is read of the last line


def test_a_syslog_server_without_a_folder_is_an_error(tmp_path: Path) -> None:
    message = r"setting audit-syslog needs setting audit"
    with NodeInProcess(tmp_path) as world, pytest.raises(ConfigError, match=message):
        world.with_settings(syslog=SyslogServer("127.0.0.1"))


def test_a_folder_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"cannot be kept in .*file.*choose another folder"
    with NodeInProcess(tmp_path) as world, pytest.raises(ConfigError, match=message):
        world.with_settings(audit=tmp_path / "file")


def test_no_trail_is_kept_without_a_folder(tmp_path: Path) -> None:
    with NodeInProcess(tmp_path) as world:
        world.send(phantom(0).datasets())
    assert codes(tmp_path) == []
    assert not AuditTrail().is_kept
