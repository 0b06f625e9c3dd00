"""TLS with certificates on both sides: who shows none, or a stranger's, gets nowhere."""

import ssl
from pathlib import Path

import pytest
from support.certificates import authority, openssl
from support.dicom_network import listening
from support.node_world import phantom

from cuda_cyclegan.io.dicom_network.errors import CertificateError, ConnectionLostError
from cuda_cyclegan.io.dicom_network.requesting import Peer
from cuda_cyclegan.io.dicom_network.sending import sending_to
from cuda_cyclegan.io.dicom_network.tls import Certificates


def test_certificates_of_one_authority_let_objects_through(tmp_path: Path) -> None:
    issue = authority(tmp_path / "ca")
    file, *_ = phantom(0).write(tmp_path / "source")
    with listening(tmp_path / "in", tls=issue("node").server_context()) as (store, port):
        peer = Peer("NODE", "127.0.0.1", port)
        with sending_to(peer, "SENDER", issue("sender").client_context()) as link:
            link.store(file)
    assert len(store.received) == 1


def test_a_stranger_is_turned_away_and_the_next_is_served(tmp_path: Path) -> None:
    issue, stranger = authority(tmp_path / "ca"), authority(tmp_path / "other")
    own = issue("node")
    unsigned = ssl.create_default_context(cafile=str(own.trusted))
    with listening(tmp_path / "in", tls=own.server_context()) as (store, port):
        peer = Peer("NODE", "127.0.0.1", port)
        foreign = stranger("foreign")
        for context in (
            None,
            unsigned,
            Certificates(foreign.own, foreign.key, own.trusted).client_context(),
        ):
            with pytest.raises(ConnectionLostError), sending_to(peer, "SENDER", context) as link:
                link.echo()
        store.wait_until_turned_away(3)
        with sending_to(peer, "SENDER", issue("sender").client_context()) as link:
            link.echo()


def test_a_destination_with_a_strangers_certificate_is_not_sent_to(tmp_path: Path) -> None:
    issue, stranger = authority(tmp_path / "ca"), authority(tmp_path / "other")
    foreign = stranger("node")
    with listening(tmp_path / "in", tls=foreign.server_context()) as (_, port):
        peer = Peer("NODE", "127.0.0.1", port)
        with (
            pytest.raises(CertificateError, match="certificate is not trusted"),
            sending_to(peer, "SENDER", issue("sender").client_context()),
        ):
            pass


@pytest.mark.parametrize(
    ("own", "key", "trusted", "reported"),
    [
        ("none.pem", "node.key", "root.pem", "none.pem with the key .*No such file or directory"),
        ("node.pem", "root.key", "root.pem", "node.pem with the key .*KEY_VALUES_MISMATCH"),
        ("node.pem", "locked.key", "root.pem", "locked.key .*unencrypted"),
        ("node.pem", "node.key", "node.key", "TLS cannot be set up with .*node.key "),
    ],
)
def test_files_that_are_of_no_use_are_named(
    tmp_path: Path, own: str, key: str, trusted: str, reported: str
) -> None:
    folder = tmp_path / "ca"
    authority(folder)("node")
    locked = ("-out", folder / "locked.key", "-aes256", "-passout", "pass:secret")
    openssl("pkey", "-in", folder / "node.key", *locked)
    files = Certificates(folder / own, folder / key, folder / trusted)
    for context in (files.server_context, files.client_context):
        with pytest.raises(CertificateError, match=reported):
            context()
