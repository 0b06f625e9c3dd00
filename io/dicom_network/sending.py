"""Objects, and reports about objects, sent to a peer, each confirmed by it before the next.

pynetdicom's own requestor is not used. It sent 500 CT slices in 13 s or more in place of about 2 s,
and lost the answer to one of them in some runs on a busy machine, as both of its threads read
answers (`node_measures sending` among the benchmarks). With shorter delays it was faster, but lost
one in 5 of 12 runs. Its log alone has the cause of a failed connection.
"""

import socket
import ssl
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from pydicom.uid import ExplicitVRLittleEndian

from ..dicom.dataset import pydicom
from . import commands
from .commands import DimseStatus, Elements, Field
from .connection import Connection, Pdu, fragments
from .errors import ConnectionLostError, NetworkError, ProtocolError, RefusedError
from .limits import LONGEST_COMMAND, LONGEST_REQUEST
from .negotiation import (
    COMMITMENT,
    IMAGES,
    VERIFICATION,
    PresentationContext,
    abortion,
    accepted,
    association_request,
    rejected,
)
from .sent_objects import implicit_data, object_in, opened
from .storage_commitment import Commitment, Referenced, report_of

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Time that a peer may take to store an object."""
LONGEST_PIECE = 1 << 17
_MEDIUM = 1


@dataclass(frozen=True, slots=True)
class Peer:
    """Application entity. title: its AE title. host, port: address that it listens on."""

    title: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.title}@{self.host}:{self.port}"


class Transmission:
    """Open association, from `sending_to` or `reporting_to`."""

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

    def store(self, file: Path, *, was_sent: bool = False) -> str:
        """Send one object of a derived series, which the peer has when this returns.

        was_sent: whether it was sent before and no answer came; then the peer may have it. Returns
        the peer's warning, or "". Raises NetworkError, or RefusedError for this object alone.
        """
        with opened(file) as stream:
            content = stream.read()
        found = object_in(BytesIO(content))  # of the same memory
        context = self._context(found.sop_class)
        data = memoryview(content)[found.start :]
        if context.syntax != ExplicitVRLittleEndian:
            data = implicit_data(file)
        request = self._command(Field.STORE, found.sop_class, found.instance)
        status = self._exchange(context, request, data, found.instance)
        if was_sent and status == DimseStatus.DUPLICATE:
            return ""
        if not commands.is_success(status):
            raise RefusedError(f"it answered C-STORE with status {status:04X}")
        return f"warning {status:04X}" if status else ""

    def report(self, asked: Commitment, safe: Sequence[Referenced]) -> None:
        """Report to a peer which of the requested objects are stored safely.

        Raises NetworkError, or RefusedError if it rejects the report.
        """
        context = self._context(COMMITMENT)
        command, data = report_of(asked, safe, context.syntax, self._next_message())
        status = self._exchange(context, command, data)
        if status:
            raise RefusedError(f"it answered N-EVENT-REPORT with status {status:04X}")

    def _context(self, sop_class: str) -> PresentationContext:
        if sop_class not in self._contexts:
            name = pydicom.uid.UID(sop_class).name
            raise RefusedError(f"it does not accept {name}")
        return self._contexts[sop_class]

    def _command(self, asked: Field, sop_class: str, instance: str = "") -> bytes:
        elements: dict[int, int | str] = {
            commands.SOP_CLASS: sop_class,
            commands.FIELD: asked,
            commands.MESSAGE: self._next_message(),
            commands.DATA_SET: commands.WITH_DATA_SET if instance else commands.NO_DATA_SET,
        }
        if instance:
            elements |= {commands.INSTANCE: instance, commands.PRIORITY: _MEDIUM}
        return commands.encoded(elements)

    def _next_message(self) -> int:
        self._sent = self._sent % 0xFFFF + 1
        return self._sent

    def _exchange(
        self,
        context: PresentationContext,
        request: bytes,
        data: bytes | memoryview,
        instance: str = "",
    ) -> int:
        """Return the status of the answer. instance: of the object sent. Raises NetworkError."""
        self._connection.send_message(context.number, request, self._most, is_command=True)
        self._connection.send_message(context.number, data, self._most, is_command=False)
        answer = self._answer()
        named = commands.uid(answer, commands.INSTANCE)
        if commands.number(answer, commands.ANSWERED) != self._sent or (
            instance and named and named != instance
        ):
            raise ProtocolError("it answered a different message")
        return commands.number(answer, commands.STATUS)

    def _answer(self) -> Elements:
        command = bytearray()
        while True:
            kind, body = self._connection.read(ANSWER_SECONDS)
            if kind == Pdu.ABORT:
                raise ConnectionLostError("it aborted the association")
            if kind != Pdu.DATA:
                raise ProtocolError("an unexpected PDU arrived instead of an answer")
            for fragment in fragments(body):
                if not fragment.is_command or len(command) > LONGEST_COMMAND:
                    raise ProtocolError("an unexpected message arrived instead of an answer")
                command += fragment.data
                if fragment.is_last:
                    return commands.parsed(bytes(command))

    def release(self) -> None:
        """End the association in order. Raises NetworkError."""
        self._connection.send_pdu(Pdu.RELEASE_RQ, b"\0" * 4)
        kind, _ = self._connection.read(CONNECT_SECONDS)
        if kind != Pdu.RELEASE_RP:
            raise ProtocolError("it did not release the association")


def sending_to(
    peer: Peer, calling: str, tls: ssl.SSLContext | None = None
) -> AbstractContextManager[Transmission]:
    """An association for objects, for the block. calling: our AE title. Raises NetworkError."""
    classes = (VERIFICATION, *IMAGES)
    asked = association_request(calling, peer.title, classes, LONGEST_REQUEST)
    return _associated(peer, asked, tls)


def reporting_to(
    peer: Peer, calling: str, tls: ssl.SSLContext | None = None
) -> AbstractContextManager[Transmission]:
    """Return an association for reports of storage commitment, for the block.

    calling: our AE title that received the request. Raises NetworkError.
    """
    asked = association_request(
        calling, peer.title, (COMMITMENT,), LONGEST_REQUEST, as_provider=True
    )
    return _associated(peer, asked, tls)


@contextmanager
def _associated(peer: Peer, asked: bytes, tls: ssl.SSLContext | None) -> Generator[Transmission]:
    """asked: the request. Raises NetworkError."""
    with _connected(peer, tls) as connection:
        connection.send(asked)
        kind, body = connection.read(ANSWER_SECONDS)
        if kind == Pdu.ASSOCIATE_RJ:
            raise rejected(bytes(body))
        if kind != Pdu.ASSOCIATE_AC:
            raise ProtocolError("it did not answer the association request")
        transmission = Transmission(connection, *accepted(bytes(body), asked))
        try:
            yield transmission
        except BaseException:
            with suppress(NetworkError):
                connection.send(abortion(source=0))
            raise
        with suppress(NetworkError):
            transmission.release()


def _connected(peer: Peer, tls: ssl.SSLContext | None) -> Connection:
    try:
        link = socket.create_connection((peer.host, peer.port), CONNECT_SECONDS)
        if tls:
            link = tls.wrap_socket(link, server_hostname=peer.host)
    except ssl.SSLCertVerificationError as error:
        raise ConnectionLostError(f"its certificate is not trusted ({error.verify_message})") from (
            error
        )
    except ssl.SSLError as error:
        raise ConnectionLostError(f"the TLS handshake failed ({error.reason})") from error
    except (socket.gaierror, UnicodeError) as error:  # the latter for an invalid name
        raise ConnectionLostError(f"the host {peer.host} cannot be resolved") from error
    except OSError as error:
        raise ConnectionLostError(
            f"nothing answers at {peer.host}:{peer.port} ({error.strerror or 'timed out'})"
        ) from error
    return Connection(link, LONGEST_REQUEST, ANSWER_SECONDS)
