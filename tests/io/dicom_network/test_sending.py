"""Objects sent to pynetdicom and dcmtk: confirmed one by one, in an encoding that they take."""

import socket
import ssl
import tracemalloc
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom.sop_class import CTImageStorage
from support.dicom_network import archive, pdu, whole_pdu
from support.dicom_pacs import receiver
from support.node_world import phantom
from support.ports import reserved_port

from cuda_cyclegan.io.dicom_network import commands
from cuda_cyclegan.io.dicom_network.errors import (
    CertificateError,
    ConnectionLostError,
    NetworkError,
    RefusedError,
)
from cuda_cyclegan.io.dicom_network.negotiation import AssociationRequest
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.sending import sending_to

pydicom: Any = _pydicom


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return phantom(0, 3).write(tmp_path / "result")


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_sent_object_arrives_in_an_encoding_that_the_peer_takes(
    files: list[Path], syntax: str
) -> None:
    with archive(syntax) as (peer, held), sending_to(peer, "NODE") as link:
        link.echo()
        for file in files:
            link.store(file)
    for arrived, file in zip(held, files, strict=True):
        sent = pydicom.dcmread(file)
        for one in (arrived, sent):
            one.remove_private_tags()  # whose kinds implicit little endian does not tell
        assert arrived == sent


def test_a_refused_object_does_not_end_the_association(files: list[Path]) -> None:
    with archive(status=0xA700) as (peer, held), sending_to(peer, "NODE") as link:
        for file in files[:2]:
            with pytest.raises(RefusedError, match="status A700"):
                link.store(file)
        link.echo()
    assert len(held) == 2


def test_a_warning_says_that_an_object_was_stored(files: list[Path]) -> None:
    with archive(status=0xB007) as (peer, held), sending_to(peer, "NODE") as link:
        link.store(files[0])
    assert len(held) == 1


def test_object_that_a_peer_does_not_take_is_named(files: list[Path]) -> None:
    with (
        archive(sop_class=CTImageStorage) as (peer, _),
        sending_to(peer, "NODE") as link,
        pytest.raises(RefusedError, match="does not accept MR Image Storage"),
    ):
        link.store(files[0])


@pytest.mark.parametrize(
    ("called", "calling", "reason"), [("ELSE", "NODE", "called"), ("PACS", "ELSE", "calling")]
)
def test_a_rejection_names_the_title_that_is_not_known(
    called: str, calling: str, reason: str
) -> None:
    with (
        archive() as (peer, _),
        pytest.raises(RefusedError, match=f"does not recognise the {reason} AE title"),
        sending_to(Peer(called, peer.host, peer.port), calling),
    ):
        pass


def test_a_peer_that_is_not_there_is_named() -> None:
    with (
        reserved_port() as port,
        pytest.raises(ConnectionLostError, match="Connection refused"),
        sending_to(Peer("PACS", "127.0.0.1", port), "NODE"),
    ):
        pass


@pytest.mark.parametrize("host", ["pacs..local", "a" * 70])
def test_a_name_that_no_host_can_have_is_reported(host: str) -> None:
    with (
        pytest.raises(ConnectionLostError, match=f"the host {host} cannot be resolved"),
        sending_to(Peer("PACS", host, 104), "NODE"),
    ):
        pass


def test_a_peer_without_tls_is_reported() -> None:
    with (
        peer_that_answers(b"no TLS at all") as peer,
        pytest.raises(CertificateError, match="the TLS handshake failed"),
        sending_to(peer, "NODE", ssl.create_default_context()),
    ):
        pass


def test_an_object_is_in_memory_once_while_it_is_sent(files: list[Path], tmp_path: Path) -> None:
    data = pydicom.dcmread(files[0])
    data.Rows = data.Columns = 2048
    data.PixelData = bytes(2 * 2048 * 2048)
    data.save_as(files[0])
    size = files[0].stat().st_size
    with receiver(tmp_path / "pacs") as port, sending_to(at(port), "NODE") as link:
        link.store(files[1])  # what is loaded with the first
        tracemalloc.start()
        try:
            link.store(files[0])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size < peak < 1.5 * size


def at(port: int) -> Peer:
    return Peer("PACS", "127.0.0.1", port)


@pytest.mark.parametrize("left", [slice(140), slice(-2)])
def test_a_result_that_is_damaged_on_disk_is_not_sent(files: list[Path], left: slice) -> None:
    files[0].write_bytes(files[0].read_bytes()[left])
    with archive() as (peer, held), sending_to(peer, "NODE") as link:
        with pytest.raises(RefusedError, match="a result on disk is damaged"):
            link.store(files[0])
        link.store(files[1])
    assert len(held) == 1


@contextmanager
def peer_that_answers(*answers: bytes) -> Generator[Peer]:
    """A peer that gives these bytes, one after each time that something comes.

    ACCEPTED stands for the acceptance of what was asked.
    """

    def serve() -> None:
        link, _ = server.accept()
        with link:
            for answer in answers:
                came = whole_pdu(link) if answer == ACCEPTED else link.recv(1 << 20)
                if answer == ACCEPTED:
                    request = AssociationRequest(came[6:])
                    request.agreed()
                    answer = request.acceptance(1 << 14)
                link.sendall(answer)
            with suppress(OSError):
                while link.recv(1 << 20):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        yield Peer("PACS", "127.0.0.1", server.getsockname()[1])
        serving.result()


ACCEPTED = b"accepted"


def answered(message: int, status: int) -> bytes:
    """A PDU with the answer to C-ECHO."""
    reported = {
        commands.FIELD: commands.Field.ECHO | commands.ANSWER,
        commands.ANSWERED: message,
        commands.DATA_SET: commands.NO_DATA_SET,
        commands.STATUS: status,
    }
    return fragment(commands.encoded(reported), 3)


def fragment(data: bytes, control: int) -> bytes:
    return pdu(4, (len(data) + 2).to_bytes(4, "big") + bytes([1, control]) + data)


@pytest.mark.parametrize(
    ("answers", "reported"),
    [
        ([pdu(5, b"\0" * 4)], "did not answer the association request"),
        ([pdu(2, b"\0" * 80)], "its answer to the association request is malformed"),
        ([ACCEPTED, pdu(7, b"\0" * 4)], "aborted the association"),
        ([ACCEPTED, pdu(5, b"\0" * 4)], "an unexpected PDU arrived instead of an answer"),
        ([ACCEPTED, fragment(b"data", 2)], "an unexpected message arrived instead of an answer"),
        ([ACCEPTED, answered(9, 0)], "answered a different message"),
        ([ACCEPTED, answered(1, 0x0122)], "answered C-ECHO with status 0122"),
    ],
)
def test_a_peer_that_answers_otherwise_is_reported(answers: list[bytes], reported: str) -> None:
    with (
        peer_that_answers(*answers) as peer,
        pytest.raises(NetworkError, match=reported),
        sending_to(peer, "NODE") as link,
    ):
        link.echo()


def test_dcmtk_takes_what_is_sent(files: list[Path], tmp_path: Path) -> None:
    held = tmp_path / "held"
    with (
        receiver(held, "-aet", "PACS") as port,
        sending_to(Peer("PACS", "127.0.0.1", port), "NODE") as link,
    ):
        for file in files:
            link.store(file)
    found = {pydicom.dcmread(file).SOPInstanceUID for file in held.iterdir()}
    assert found == {pydicom.dcmread(file).SOPInstanceUID for file in files}
