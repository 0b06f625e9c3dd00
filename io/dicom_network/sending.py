"""Objects, and reports about objects, sent to a peer, each confirmed by it before the next.

pynetdicom's own requestor is not used. It sent 500 CT slices in 13 s or more in place of about 2 s,
and lost the answer to one of them in some runs on a busy machine, as both of its threads read
answers (`node_measures sending` among the benchmarks). With shorter delays it was faster, but lost
one in 5 of 12 runs. Its log alone has the cause of a failed connection.
"""

import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

from pydicom.uid import ExplicitVRLittleEndian

from ..dicom.dataset import pydicom
from . import commands
from .association import judged
from .commands import DimseStatus, Elements, Field, Refusal
from .connection import Connection, Pdu, fragments
from .errors import (
    CertificateError,
    ConnectionLostError,
    NetworkError,
    ProtocolError,
    RefusedError,
)
from .limits import LONGEST_COMMAND, LONGEST_LIST, LONGEST_REQUEST
from .negotiation import (
    COMMITMENT,
    IMAGES,
    REJECTION_NOTE,
    VERIFICATION,
    PresentationContext,
    abortion,
    accepted,
    association_request,
    rejected,
)
from .sent_objects import implicit_data, object_in, opened
from .storage_commitment import Commitment, CommitmentReport, Referenced, report_of, request_of

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Time that a peer may take to store an object."""
LONGEST_PIECE = 1 << 17
REPORT_SECONDS = 2.0
"""Time that a peer has to begin its report on the association of the request; later it needs one of
its own.
"""
_GLANCE_SECONDS = 0.1
_MEDIUM = 1
ReportJudge: TypeAlias = Callable[[CommitmentReport], Refusal | None]
"""Records a report of storage commitment, or returns why it is refused."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Application entity. title: its AE title. host, port: address that it listens on."""

    title: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.title}@{self.host}:{self.port}"


class Transmission:
    """Open association, from `sending_to` or `reporting_to`.

    judge: records reports that the peer sends; without it, there must be none.
    """

    def __init__(
        self,
        connection: Connection,
        contexts: Mapping[str, PresentationContext],
        longest: int,
        judge: ReportJudge | None = None,
    ) -> None:
        self._connection = connection
        self._contexts = contexts
        self._judge = judge
        self._requested: set[str] = set()
        self._reports_until = 0.0
        self._most = min(longest, LONGEST_PIECE)
        self._sent = 0

    def echo(self) -> None:
        """Send C-ECHO and wait for the answer; the peer must also accept storage commitment if
        reports are judged. Raises NetworkError.
        """
        if self._judge:
            self._context(COMMITMENT)
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

    def request(self, asked: Commitment) -> None:
        """Request storage commitment, which a report grants later, on any association.

        Raises NetworkError, or RefusedError if the peer refuses the request.
        """
        context = self._context(COMMITMENT)
        command, data = request_of(asked, context.syntax, self._next_message())
        self._requested.add(asked.transaction)
        status = self._exchange(context, command, data)
        if status:
            self._requested.discard(asked.transaction)
            raise RefusedError(f"it answered N-ACTION with status {status:04X}")
        self._reports_until = time.monotonic() + REPORT_SECONDS

    def awaits_report(self) -> bool:
        """Wait a moment for a report on this association; return whether one may still come.

        Raises NetworkError.
        """
        if not self._requested or time.monotonic() >= self._reports_until:
            return False
        if self._connection.has_data(_GLANCE_SECONDS):
            context, command, data = self._message()
            if not self._took_report(context, command, data):
                raise ProtocolError("an unexpected message arrived instead of a report")
        return True

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
        while True:
            context, command, data = self._message()
            if not self._took_report(context, command, data):
                return command

    def _took_report(self, context: int, command: Elements, data: bytes) -> bool:
        """Judge and answer a message if it is a report; return whether it was one."""
        if self._judge is None or commands.number(command, commands.FIELD) != Field.EVENT_REPORT:
            return False
        judge = self._judge

        def noted(report: CommitmentReport) -> Refusal | None:
            self._requested.discard(report.transaction)
            return judge(report)

        by_number = {one.number: one for one in self._contexts.values()}
        if context not in by_number:
            raise ProtocolError("a message used a presentation context that was not accepted")
        answer = commands.answer(command, judged(by_number[context], data, noted))
        self._connection.send_message(context, answer, self._most, is_command=True)
        return True

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


def sending_to(
    peer: Peer,
    calling: str,
    tls: ssl.SSLContext | None = None,
    judge: ReportJudge | None = None,
    *,
    rejects: bool = False,
) -> AbstractContextManager[Transmission]:
    """An association for objects, for the block. calling: our AE title. judge: also for storage
    commitment, whose reports it judges. rejects: also for rejection notes. Raises NetworkError.
    """
    notes = [REJECTION_NOTE] if rejects else []
    classes = (VERIFICATION, *IMAGES, *notes, *([COMMITMENT] if judge else []))
    asked = association_request(calling, peer.title, classes, LONGEST_REQUEST)
    return _associated(peer, asked, tls, judge)


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
def _associated(
    peer: Peer, asked: bytes, tls: ssl.SSLContext | None, judge: ReportJudge | None = None
) -> Generator[Transmission]:
    """asked: the request. Raises NetworkError."""
    with _connected(peer, tls) as connection:
        connection.send(asked)
        kind, body = connection.read(ANSWER_SECONDS)
        if kind == Pdu.ASSOCIATE_RJ:
            raise rejected(bytes(body))
        if kind != Pdu.ASSOCIATE_AC:
            raise ProtocolError("it did not answer the association request")
        transmission = Transmission(connection, *accepted(bytes(body), asked), judge)
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
