"""Syslog over TLS (RFC 5425), as the audit trail of DICOM uses it: PS3.15, section A.6."""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from .connection import cut
from .errors import CertificateError, ConnectionLostError
from .requesting import CONNECT_SECONDS

PORT = 6514
MOST_BYTES = 32768
"""Length of a message that every receiver of audit trails supports."""
_PRIORITY = 10 * 8 + 5
"""Facility 10, security and authorization; severity 5, normal but significant."""
_MESSAGE_ID = "DICOM+RFC3881"
_REFUSAL_SECONDS = 0.5
"""Time for a server to end a connection that it does not want; in TLS 1.3 it rejects a certificate
only after the handshake.
"""


@dataclass(frozen=True, slots=True)
class SyslogServer:
    """Server. host: name that its certificate must have. port: of TLS."""

    host: str
    port: int = PORT

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def frame_of(document: str, moment: str, host: str, process: str) -> bytes:
    """Return a message with its length before it, as RFC 5425 and RFC 5424 say.

    document: XML. moment: of the event, as RFC 3339 has it. host, process: of this program.
    """
    head = f"<{_PRIORITY}>1 {moment} {host} cuda-cyclegan {process} {_MESSAGE_ID} - "
    message = head.encode("ascii", "replace") + b"\xef\xbb\xbf" + document.encode()
    return b"%d %b" % (len(message), message)


def send(server: SyslogServer, context: ssl.SSLContext, frames: Sequence[bytes]) -> None:
    """Send messages on a connection of their own, until the server has read them all.

    Syslog has no answer. The evidence is that the server keeps the connection, and ends it when
    this side has (RFC 5425, section 4.4), for which it has to read up to there. context: for TLS.
    Raises CertificateError if a certificate is not trusted on either side, or ConnectionLostError;
    the server may then have any of the messages.
    """
    try:
        link = socket.create_connection((server.host, server.port), CONNECT_SECONDS)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the host has no valid name"
        raise ConnectionLostError(f"nothing answers there ({reason or 'timed out'})") from error
    try:
        link = context.wrap_socket(link, server_hostname=server.host)
        _refuse_end(link)
        link.sendall(b"".join(frames))
        _await_end(link)
    except ssl.SSLError as error:
        raise _tls_failure(error) from error
    except OSError as error:
        reason = error.strerror or "it did not end the connection in time"
        raise ConnectionLostError(f"the connection broke ({reason})") from error
    finally:
        cut(link)


def _refuse_end(link: ssl.SSLSocket) -> None:
    """Raise OSError if the server ends the connection before it could read anything."""
    link.settimeout(_REFUSAL_SECONDS)
    try:
        if not link.recv(1):
            raise ConnectionResetError(0, "the server closed it")
    except TimeoutError:
        link.settimeout(CONNECT_SECONDS)


def _await_end(link: ssl.SSLSocket) -> None:
    """End the connection, and wait until the server does. Raises OSError."""
    try:
        link.unwrap()
    except ssl.SSLEOFError:
        return  # without a close_notify, as rsyslog with GnuTLS does


def _tls_failure(error: ssl.SSLError) -> ConnectionLostError | CertificateError:
    reason = error.reason or "unknown reason"
    if isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in reason:
        return CertificateError(
            f"its certificate is not trusted, or it does not trust this node's ({reason})"
        )
    return ConnectionLostError(f"TLS failed ({reason})")
