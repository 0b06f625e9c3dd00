"""Objects that pynetdicom and dcmtk send are on disk, whole, before their success status."""

import subprocess
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import JPEGLosslessSV1, RLELossless
from pynetdicom import evt
from pynetdicom.sop_class import (
    BasicTextSRStorage,
    CTImageStorage,
    MRImageStorage,
    SecondaryCaptureImageStorage,
    StorageCommitmentPushModel,
    Verification,
)
from support.dicom_judges import judge
from support.dicom_network import (
    LIMITS,
    associate,
    associate_request,
    associated,
    closed_by_peer,
    listening,
    offered,
    pdu,
    raw,
    whole_pdu,
)
from support.frames import unpack_here
from support.node_world import phantom
from support.waiting import eventually

from cuda_cyclegan.io.dicom.pixels.decoding import decode
from cuda_cyclegan.io.dicom_network.commands import (
    INSTANCE,
    STATUS,
    DimseStatus,
    number,
    parsed,
)

pydicom: Any = _pydicom


NO_STUDY = "its header has no StudyInstanceUID"


def slices(count: int = 3) -> list[Any]:
    return list(phantom(0, max(count, 2)).datasets())[:count]


def test_an_echo_is_answered(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, port):
        association = associate(port, Verification)
        assert association.send_c_echo().Status == 0
        association.release()


def test_confirmed_object_is_on_disk_as_it_was_sent(tmp_path: Path) -> None:
    with listening(tmp_path) as (store, port):
        association = associate(port)
        for sent in slices():
            assert association.send_c_store(sent).Status == 0
            stored = pydicom.dcmread(tmp_path / f"{sent.SOPInstanceUID}.dcm")
            assert stored.PixelData == sent.PixelData
            assert stored.PatientName == sent.PatientName
        association.release()
        store.wait_for_ends(1)
    assert store.ended == [""]
    assert [one.study for one in store.received] == [phantom(0).study] * 3
    assert store.leftovers == []


@pytest.mark.parametrize(
    ("packer", "option", "syntax"),
    [("dcmcrle", "-xr", RLELossless), ("dcmcjpeg", "-xs", JPEGLosslessSV1)],
)
def test_compressed_objects_are_taken_as_they_are(
    tmp_path: Path, packer: str, option: str, syntax: str
) -> None:
    source, *_ = phantom(0).write(tmp_path / "source")
    packed = tmp_path / "packed.dcm"
    subprocess.run([judge(packer), source, packed], check=True, capture_output=True)
    with listening(tmp_path / "in") as (store, port):
        sending = [judge("storescu"), option, "-aet", "SENDER", "-aec", "NODE", "127.0.0.1"]
        subprocess.run([*sending, str(port), packed], check=True, capture_output=True)
    [received] = store.received
    assert received.offer.syntax == syntax
    stored = pydicom.dcmread(tmp_path / "in" / f"{received.offer.instance}.dcm")
    assert (
        decode(stored, source, 0, unpack_here).values == pydicom.dcmread(source).pixel_array
    ).all()


def test_classes_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, port):
        association = associate(port, BasicTextSRStorage, MRImageStorage)
        assert [each.result for each in association.rejected_contexts] == [3]
        assert len(association.accepted_contexts) == 1
        association.release()


def test_an_object_of_another_class_than_its_message_says_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as (store, port):
        association = associate(port)
        [sent] = slices(1)
        wrong = deepcopy(sent)
        original = association.dimse.send_msg

        def send(primitive: Any, context: int) -> None:
            primitive.AffectedSOPInstanceUID = "1.2.3"
            original(primitive, context)

        association.dimse.send_msg = send
        assert association.send_c_store(wrong).Status == DimseStatus.OTHER_CLASS
        association.dimse.send_msg = original
        del wrong.StudyInstanceUID
        uid = wrong.SOPInstanceUID
        answer = association.send_c_store(wrong)
        assert (answer.Status, answer.ErrorComment) == (DimseStatus.NOT_UNDERSTOOD, NO_STUDY)
        assert association.send_c_store(sent).Status == 0
        association.release()
    assert store.leftovers == []
    reasons = ["its UIDs differ from those of the request", NO_STUDY]
    assert store.refusals == [("1.2.3", sent.StudyInstanceUID, reasons[0]), (uid, "", NO_STUDY)]


def test_a_message_under_the_context_of_another_class_is_refused(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, port):
        association = associate(port, CTImageStorage)
        [sent] = slices(1)
        contexts = {each.abstract_syntax: each for each in association.accepted_contexts}
        context = contexts[CTImageStorage]
        association._get_valid_context = lambda *_, **__: context
        assert association.send_c_store(sent).Status == DimseStatus.CLASS_NOT_SUPPORTED
        association.release()


def test_an_object_for_which_there_is_no_space_is_refused_and_the_next_is_taken(
    tmp_path: Path,
) -> None:
    with listening(tmp_path) as (store, port):
        association = associate(port)
        first, second, _ = slices(3)
        store.full = True
        answer = association.send_c_store(first)
        assert (answer.Status, answer.ErrorComment) == (0xA700, "no room")
        store.full = False
        assert association.send_c_store(second).Status == 0
        association.release()
    assert len(store.received) == 1
    assert store.refusals == [(first.SOPInstanceUID, first.StudyInstanceUID, "no room")]


def test_limits_of_objects_and_bytes_on_one_association(tmp_path: Path) -> None:
    for limits, what in (
        (replace(LIMITS, objects=2), "objects"),
        (replace(LIMITS, bytes=4000), "bytes"),
    ):
        with listening(tmp_path, limits) as (store, port):
            association = associate(port)
            answers = [association.send_c_store(sent) for sent in slices(3)]
            assert [answer.Status for answer in answers] == [0, 0, 0xA700]
            reason = f"the association sent more {what} than allowed"
            assert answers[-1].ErrorComment == reason
            association.release()
        last = slices(3)[2]
        assert store.refusals == [(last.SOPInstanceUID, last.StudyInstanceUID, reason)]
        assert store.leftovers == []


@pytest.mark.parametrize(
    "uid",
    [
        *("1.2.03.4", "1..2", "study-A_7", "a b/c", "1.2.840.Ä", "x" * 64),
        pytest.param(f"{'1.' * 60}1", id="long"),
    ],
)
def test_identifiers_that_break_the_rules_are_taken_as_they_are(tmp_path: Path, uid: str) -> None:
    [sent] = slices(1)
    with listening(tmp_path) as (store, port), raw(port) as link:
        sent.SOPInstanceUID = sent.StudyInstanceUID = sent.SeriesInstanceUID = uid
        associated(link)
        link.sendall(offered(sent))
        answer = parsed(whole_pdu(link)[12:])
        assert number(answer, STATUS) == 0
        assert answer[INSTANCE].rstrip(b"\0") == uid.encode("latin-1")
        link.sendall(pdu(5, b"\0" * 4))
        store.wait_for_ends(1)
    [received] = store.received
    assert (received.offer.instance, received.study) == (uid, uid)
    [file] = tmp_path.glob("*.dcm")
    assert pydicom.dcmread(file).SOPInstanceUID == uid


def test_an_object_in_which_the_association_breaks_off_is_reported(tmp_path: Path) -> None:
    [sent] = slices(1)
    with listening(tmp_path) as (store, port):
        with raw(port) as link:
            associated(link)
            link.sendall(offered(sent, 0.5))
        store.wait_for_ends(1)
    assert store.refusals == [(sent.SOPInstanceUID, sent.StudyInstanceUID, "")]
    assert store.leftovers == []


def test_scans_stored_as_secondary_captures_are_taken(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, port):
        association = associate(port, SecondaryCaptureImageStorage)
        [sent] = slices(1)
        sent.SOPClassUID = SecondaryCaptureImageStorage
        assert association.send_c_store(sent).Status == 0
        association.release()


def test_an_association_that_is_cut_leaves_nothing_half(tmp_path: Path) -> None:
    with listening(tmp_path) as (store, port):
        association = associate(port)
        first, second, _ = slices(3)
        assert association.send_c_store(first).Status == 0
        association.abort()
        store.wait_for_ends(1)
        with raw(port) as link:
            link.sendall(associate_request())
            assert link.recv(6)[0] == 2
            link.sendall(pdu(4, b"\0" * 100, 5000))
        store.wait_for_ends(2)
        again = associate(port)
        assert again.send_c_store(second).Status == 0
        again.release()
    assert [reason != "" for reason in store.ended] == [True, True, False]
    assert store.leftovers == []


def test_unknown_caller_is_rejected_with_the_standards_reasons(tmp_path: Path) -> None:
    with listening(tmp_path) as (store, port):
        for called, calling, diagnostic in (("OTHER", "SENDER", 7), ("NODE", "STRANGER", 3)):
            with raw(port) as link:
                link.sendall(associate_request(called, calling))
                assert closed_by_peer(link)[-3:] == bytes([1, 1, diagnostic])
    assert len(store.turned_away) == 2


def test_more_associations_than_are_allowed_are_reported_to_come_later(tmp_path: Path) -> None:
    with listening(tmp_path, replace(LIMITS, associations=1)) as (store, port):
        first = associate(port)
        with raw(port) as link:
            link.sendall(associate_request())
            assert closed_by_peer(link)[-3:] == bytes([2, 3, 2])
        first.release()
        store.wait_for_ends(2)
        later = associate(port)
        assert later.is_established
        later.release()


def test_storage_commitment_reports_what_is_held_and_what_is_not(tmp_path: Path) -> None:
    reports: list[tuple[int, Any]] = []

    def handle(event: Any) -> tuple[int, None]:
        reports.append((event.event_type, event.event_information))
        return 0, None

    with listening(tmp_path) as (store, port):
        association = associate(
            port,
            MRImageStorage,
            StorageCommitmentPushModel,
            evt_handlers=[(evt.EVT_N_EVENT_REPORT, handle)],
        )
        sent, missing = slices(2)
        assert association.send_c_store(sent).Status == 0
        asked = pydicom.Dataset()
        asked.TransactionUID = "1.2.3.4"
        asked.ReferencedSOPSequence = []
        for one in (sent, missing):
            item = pydicom.Dataset()
            item.ReferencedSOPClassUID = one.SOPClassUID
            item.ReferencedSOPInstanceUID = one.SOPInstanceUID
            asked.ReferencedSOPSequence.append(item)
        model = StorageCommitmentPushModel
        status, _ = association.send_n_action(asked, 1, model, "1.2.840.10008.1.20.1.1")
        assert status.Status == 0
        # A release that meets the peer's own answer waits for ever in pynetdicom.
        eventually(lambda: store.reports)
        association.release()
    assert store.reports == ["1.2.3.4"]
    [(event, reported)] = reports
    assert event == 2
    assert reported.TransactionUID == "1.2.3.4"
    [safe], [lost] = reported.ReferencedSOPSequence, reported.FailedSOPSequence
    assert safe.ReferencedSOPInstanceUID == sent.SOPInstanceUID
    assert lost.ReferencedSOPInstanceUID == missing.SOPInstanceUID
    assert lost.FailureReason == 0x0112
