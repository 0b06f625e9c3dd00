"""Objects sent to pynetdicom and dcmtk: confirmed one by one, in an encoding that they take."""

from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom.sop_class import CTImageStorage
from support.dicom_network import archive
from support.dicom_pacs import receiver
from support.node_world import phantom
from support.ports import reserved_port

from cuda_cyclegan.io.dicom_network.errors import ConnectionLostError, RefusedError
from cuda_cyclegan.io.dicom_network.sending import Peer, sending_to

pydicom: Any = _pydicom


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return phantom(0, 3).write(tmp_path / "result")


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_what_is_sent_arrives_in_an_encoding_that_the_peer_takes(
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


def test_what_a_peer_does_not_take_is_named(files: list[Path]) -> None:
    with (
        archive(sop_class=CTImageStorage) as (peer, _),
        sending_to(peer, "NODE") as link,
        pytest.raises(RefusedError, match="does not take MR Image Storage"),
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
        pytest.raises(RefusedError, match=f"does not know the {reason} AE title"),
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
