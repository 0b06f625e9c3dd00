"""Associations that this program requests, and messages on them.

pynetdicom's own requestor is not used. It sent 500 CT slices in 13 s or more in place of about 2 s,
and lost the answer to one of them in some runs on a busy machine, as both of its threads read
answers (`node_measures sending` among the benchmarks). With shorter delays it was faster, but lost
one in 5 of 12 runs. Its log alone has the cause of a failed connection.
"""

import socket
import ssl
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from ..dicom.dataset import pydicom
from . import commands
from .commands import Elements, Field
from .connection import Connection, Pdu, fragments
from .errors import (
    CertificateError,
    ConnectionLostError,
    NetworkError,
    ProtocolError,
    RefusedError,
)
from .limits import LONGEST_COMMAND, LONGEST_LIST, LONGEST_REQUEST
from .negotiation import VERIFICATION, PresentationContext, abortion, accepted, rejected

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Time that a peer may take to answer a message, such as to store an object."""
LONGEST_PIECE = 1 << 17
MEDIUM = 1
"""Priority of requests."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Application entity. title: its AE title. host, port: address that it listens on."""

    title: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.title}@{self.host}:{self.port}"


class Requestor:
    """Open association that this program requested, from `associated`."""

    def __init__(
        self, connection: Connection, contexts: Mapping[str, PresentationContext], longest: int
    ) -> None:
        self._connection = connection
        self._contexts = contexts
        self._most = min(longest, LONGEST_PIECE)
        self._sent = 0

    def echo(self) -> None:
        """Send C-ECHO and wait for the answer. Raises NetworkError."""
        context = self._context(VERIFICATION)
        status = self._exchange(context, self._command(Field.ECHO, VERIFICATION), b"")
        if status:
            raise RefusedError(f"it answered C-ECHO with status {status:04X}")

    def _context(self, sop_class: str) -> PresentationContext:
        if sop_class not in self._contexts:
            name = pydicom.uid.UID(sop_class).name
            raise RefusedError(f"it does not accept {name}")
        return self._contexts[sop_class]

    def _command(
        self,
        asked: Field,
        sop_class: str,
        instance: str = "",
        *,
        destination: str = "",
        has_data: bool = False,
    ) -> bytes:
        """Return a request. instance: of the object sent. destination: AE title of C-MOVE."""
        elements: dict[int, int | str] = {
            commands.SOP_CLASS: sop_class,
            commands.FIELD: asked,
            commands.MESSAGE: self._next_message(),
            commands.DATA_SET: commands.NO_DATA_SET,
        }
        if instance or has_data:
            elements |= {commands.DATA_SET: commands.WITH_DATA_SET, commands.PRIORITY: MEDIUM}
        if instance:
            elements[commands.INSTANCE] = instance
        if destination:
            elements[commands.DESTINATION] = destination
        return commands.encoded(elements)

    def _next_message(self) -> int:
        self._sent = self._sent % 0xFFFF + 1
        return self._sent

    def _send(self, context: PresentationContext, request: bytes, data: bytes | memoryview) -> None:
        self._connection.send_message(context.number, request, self._most, is_command=True)
        self._connection.send_message(context.number, data, self._most, is_command=False)

    def _exchange(
        self,
        context: PresentationContext,
        request: bytes,
        data: bytes | memoryview,
        instance: str = "",
    ) -> int:
        """Return the status of the answer. instance: of the object sent. Raises NetworkError."""
        self._send(context, request, data)
        answer = self._answer()
        named = commands.uid(answer, commands.INSTANCE)
        if commands.number(answer, commands.ANSWERED) != self._sent or (
            instance and named and named != instance
        ):
            raise ProtocolError("it answered a different message")
        return commands.number(answer, commands.STATUS)

    def _answer(self) -> Elements:
        """Return the next answer. Raises NetworkError."""
        return self._message()[1]

    def _message(self) -> tuple[int, Elements, bytes]:
        """Return the next message: its context, its command, and its data set, mostly empty."""
        command, data, found = bytearray(), bytearray(), None
        while True:
            kind, body = self._connection.read(ANSWER_SECONDS)
            if kind == Pdu.ABORT:
                raise ConnectionLostError("it aborted the association")
            if kind != Pdu.DATA:
                raise ProtocolError("an unexpected PDU arrived instead of an answer")
            for fragment in fragments(body):
                if fragment.is_command == (found is not None) or len(command) > LONGEST_COMMAND:
                    raise ProtocolError("an unexpected message arrived instead of an answer")
                part = command if fragment.is_command else data
                part += fragment.data
                if len(data) > LONGEST_LIST:
                    raise ProtocolError("a message is too long")
                if fragment.is_last:
                    found = found or commands.parsed(bytes(command))
                    without = commands.number(found, commands.DATA_SET) == commands.NO_DATA_SET
                    if without or not fragment.is_command:
                        return fragment.context, found, bytes(data)

    def release(self) -> None:
        """End the association in order. Raises NetworkError."""
        self._connection.send_pdu(Pdu.RELEASE_RQ, b"\0" * 4)
        kind, _ = self._connection.read(CONNECT_SECONDS)
        if kind != Pdu.RELEASE_RP:
            raise ProtocolError("it did not release the association")


_Kind = TypeVar("_Kind", bound=Requestor)


@contextmanager
def associated(
    peer: Peer,
    asked: bytes,
    tls: ssl.SSLContext | None,
    kind: Callable[[Connection, Mapping[str, PresentationContext], int], _Kind],
) -> Generator[_Kind]:
    """Request an association for the block. asked: the request. kind: makes what the block gets.

    Raises NetworkError.
    """
    with _connected(peer, tls) as connection:
        connection.send(asked)
        status, body = connection.read(ANSWER_SECONDS)
        if status == Pdu.ASSOCIATE_RJ:
            raise rejected(bytes(body))
        if status != Pdu.ASSOCIATE_AC:
            raise ProtocolError("it did not answer the association request")
        opened = kind(connection, *accepted(bytes(body), asked))
        try:
            yield opened
        except BaseException:
            with suppress(NetworkError):
                connection.send(abortion(source=0))
            raise
        with suppress(NetworkError):
            opened.release()


def _connected(peer: Peer, tls: ssl.SSLContext | None) -> Connection:
    try:
        link = socket.create_connection((peer.host, peer.port), CONNECT_SECONDS)
        if tls:
            link = tls.wrap_socket(link, server_hostname=peer.host)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(
            f"its certificate is not trusted ({error.verify_message})"
        ) from error
    except ssl.SSLError as error:
        raise CertificateError(f"the TLS handshake failed ({error.reason})") from error
    except (socket.gaierror, UnicodeError) as error:  # the latter for an invalid name
        raise ConnectionLostError(f"the host {peer.host} cannot be resolved") from error
    except OSError as error:
        raise ConnectionLostError(
            f"nothing answers at {peer.host}:{peer.port} ({error.strerror or 'timed out'})"
        ) from error
    return Connection(link, LONGEST_REQUEST, ANSWER_SECONDS)
