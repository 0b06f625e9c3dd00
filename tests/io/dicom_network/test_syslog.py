"""Syslog over TLS: a message counts as sent only if the server has read it."""

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.certificates import authority

from cuda_cyclegan.io.dicom_network import syslog
from cuda_cyclegan.io.dicom_network.errors import CertificateError, ConnectionLostError
from cuda_cyclegan.io.dicom_network.syslog import SyslogServer, frame_of, send
from cuda_cyclegan.io.dicom_network.tls import Certificates

pytestmark = pytest.mark.process
FRAMES = [frame_of("<A/>", "2026-11-29T00:00:00.000+00:00", "host", "1")] * 3


@contextmanager
def served(handle: Callable[[socket.socket], None]) -> Iterator[SyslogServer]:
    """Serve one connection in a thread."""

    def serve() -> None:
        with suppress(OSError):
            link, _ = listener.accept()
            with link, suppress(OSError):
                handle(link)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield SyslogServer("127.0.0.1", listener.getsockname()[1])
        finally:
            listener.close()
            thread.join()


@pytest.fixture(scope="module")
def issue(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Certificates]:
    return authority(tmp_path_factory.mktemp("certificates") / "ca")


def read_all(link: ssl.SSLSocket) -> bytes:
    found = b""
    while piece := link.recv(1 << 16):
        found += piece
    return found


@pytest.mark.parametrize("ends_in_order", [True, False])
def test_a_server_that_has_read_all_ends_the_connection(
    issue: Callable[[str], Certificates], *, ends_in_order: bool
) -> None:
    context, received = issue("server").server_context(), list[bytes]()

    def handle(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as secured:
            received.append(read_all(secured))
            if ends_in_order:
                secured.unwrap()

    with served(handle) as server:
        send(server, issue("node").client_context(), FRAMES)
    assert received == [b"".join(FRAMES)]


def closes_at_once(link: ssl.SSLSocket) -> None:
    """End it in order, as what accepts TLS for a server that is away."""
    link.unwrap()


def resets(link: ssl.SSLSocket) -> None:
    link.recv(1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def never_ends(link: ssl.SSLSocket) -> None:
    read_all(link)
    socket.socket.recv(link, 1)  # until the sender closes


@pytest.mark.parametrize("serve", [closes_at_once, resets, never_ends])
def test_messages_that_may_not_be_read_are_not_sent(
    issue: Callable[[str], Certificates],
    monkeypatch: pytest.MonkeyPatch,
    serve: Callable[[ssl.SSLSocket], None],
) -> None:
    if serve is never_ends:
        monkeypatch.setattr(syslog, "CONNECT_SECONDS", 0.3)
    context = issue("server").server_context()

    def handle(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as secured:
            serve(secured)

    with (
        served(handle) as server,
        pytest.raises(ConnectionLostError, match=r"the connection broke|TLS failed"),
    ):
        send(server, issue("node").client_context(), FRAMES)


def test_a_certificate_that_is_not_trusted_is_named(
    issue: Callable[[str], Certificates], tmp_path: Path
) -> None:
    stranger = authority(tmp_path / "other")("stranger")
    own = issue("node")
    mixed = Certificates(stranger.own, stranger.key, own.trusted)
    for server_files, node in ((stranger, own), (issue("server"), mixed)):
        context = server_files.server_context()

        def handle(link: socket.socket, context: ssl.SSLContext = context) -> None:
            with context.wrap_socket(link, server_side=True) as secured:
                read_all(secured)

        with (
            served(handle) as server,
            pytest.raises(CertificateError, match="its certificate is not trusted, or it does not"),
        ):
            send(server, node.client_context(), FRAMES)


def test_a_server_without_tls_or_none_is_named(issue: Callable[[str], Certificates]) -> None:
    context = issue("node").client_context()
    with (
        served(lambda link: link.sendall(b"220 no TLS\r\n" * 10)) as server,
        pytest.raises(ConnectionLostError, match="TLS failed"),
    ):
        send(server, context, FRAMES)
    with pytest.raises(ConnectionLostError, match="nothing answers there"):
        send(server, context, FRAMES)
    with pytest.raises(ConnectionLostError, match="nothing answers there"):
        send(SyslogServer("no..host"), context, FRAMES)


def test_a_message_follows_the_rfcs() -> None:
    size, _, message = frame_of("<Ä/>", "2026-11-29T00:00:00.000+00:00", "hôst", "42").partition(
        b" "
    )
    assert int(size) == len(message)
    head, _, document = message.partition(b"\xef\xbb\xbf")
    assert head == (b"<85>1 2026-11-29T00:00:00.000+00:00 h?st cuda-cyclegan 42 DICOM+RFC3881 - ")
    assert document.decode() == "<Ä/>"
