"""Association requested by a peer: its messages are handled and answered in order.

pynetdicom's own acceptor is not used: it reads a PDU of any length into memory, waits for its end
without limit, and polls each connection a thousand times a second.
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from . import commands
from .commands import DimseStatus, Elements, Field, Refusal
from .connection import Connection, Fragment, Pdu, fragments
from .errors import ConnectionLostError, NetworkError, ProtocolError
from .limits import LONGEST_COMMAND, LONGEST_LIST, Limits
from .negotiation import (
    COMMITMENT,
    IMAGES,
    AssociationRequest,
    PresentationContext,
    Rejection,
    abortion,
    rejection,
)
from .objects import (
    NO_SPACE,
    START_BYTES,
    NotUnderstoodError,
    ObjectFile,
    Offer,
    ReceivedObject,
    study_in,
)
from .storage_commitment import (
    Commitment,
    CommitmentReport,
    Referenced,
    asked_for,
    report_in,
    report_of,
)

_LEAST_PDU = 70
"""PDU size in bytes that every peer is assumed to accept, whatever it states."""


class Session(Protocol):
    """Destination of the objects of one association.

    takes_images: whether the peer may send them.
    """

    takes_images: bool

    def place(self) -> Path | Refusal:
        """Return a path for an object that is offered, or why it is refused."""
        ...

    def claim(self, size: int) -> bool:
        """Return whether incoming objects may reserve so many more bytes; a negative size frees
        them.
        """
        ...

    def take(self, received: ReceivedObject) -> None:
        """Take over an object that is on disk, and its file. Raises OSError."""
        ...

    def refused(self, instance: str, study: str, reason: str) -> None:
        """Note that an image was not accepted.

        instance: its SOPInstanceUID. study: its StudyInstanceUID, empty if it cannot be read.
        reason: of the refusal; empty if the association broke off within the image.
        """
        ...

    def commit(self, asked: Commitment) -> Sequence[Referenced] | Refusal:
        """Return the objects that are stored safely here, or why the request is refused.

        The request marks their studies as complete.
        """
        ...

    def reported(self, transaction: str) -> None:
        """Note that the peer accepted the report for this transaction."""
        ...

    def judge(self, report: CommitmentReport) -> Refusal | None:
        """Record the report on a request of this program, or return why it is refused."""
        ...

    def end(self, reason: str) -> None:
        """Note the end of the association. reason: "" after an orderly release."""
        ...


class Policy(Protocol):
    """Rules for the peers that may ask for associations."""

    def session(self, called: str, calling: str, address: str) -> "Session | Rejection":
        """Return where the objects of an association go, or why there is none."""
        ...


@dataclass
class _Message:
    """Received parts of a message."""

    context: int = 0
    command: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    request: Elements | None = None
    file: ObjectFile | None = None
    refusal: Refusal | None = None
    offer: Offer | None = None
    start: bytearray = field(default_factory=bytearray)
    """First bytes of an object's data set, which name its study if it is refused."""


class Association:
    """Serves a peer until it leaves, breaks a rule or a limit, or `close` is called.

    connection: its first PDU, the request, has been read.
    """

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._contexts: Mapping[int, PresentationContext] = {}
        self._most = 0
        self._session: Session
        self._message = _Message()
        self._reports: dict[int, str] = {}
        self._objects = self._bytes = self._sent = 0

    def serve(self, request: AssociationRequest, session: Session) -> None:
        """Accept, and handle the peer's requests; raises no network errors."""
        self._session = session
        reason = ""
        try:
            self._contexts = request.agreed(images=session.takes_images)
            self._most = max(request.longest, _LEAST_PDU)
            self._connection.send(request.acceptance(self._limits.pdu))
            while self._serve_pdu():
                pass
        except ConnectionLostError as error:
            reason = str(error)
        except NetworkError as error:
            reason = str(error)
            with suppress(NetworkError):
                self._connection.send(abortion())
        finally:
            if self._message.file:
                self._message.file.discard()
            refusal = self._message.refusal
            self._note_refused(self._message, refusal.reason if refusal else "")
            session.end(reason)

    def _serve_pdu(self) -> bool:
        kind, body = self._connection.read(self._limits.idle_seconds)
        match kind:
            case Pdu.DATA:
                for fragment in fragments(body):
                    self._handle(fragment)
                return True
            case Pdu.RELEASE_RQ:
                self._connection.send_pdu(Pdu.RELEASE_RP, b"\0" * 4)
                return False
            case Pdu.ABORT:
                raise ConnectionLostError("it aborted the association")
            case _:
                raise ProtocolError("a PDU arrived that is not valid during an association")

    def _handle(self, fragment: Fragment) -> None:
        message = self._message
        if fragment.is_command:
            if message.request is not None:
                raise ProtocolError("a command arrived within a data set")
            message.command += fragment.data
            if len(message.command) > LONGEST_COMMAND:
                raise ProtocolError("a command is too long")
            if fragment.is_last:
                self._begin(message, fragment.context)
            return
        if message.request is None or fragment.context != message.context:
            raise ProtocolError("a data set arrived without its command")
        self._add_data(message, fragment.data)
        if fragment.is_last:
            self._end(message)

    def _begin(self, message: _Message, context: int) -> None:
        """Handle a complete command."""
        if context not in self._contexts:
            raise ProtocolError("a message used a presentation context that was not accepted")
        message.context = context
        message.request = commands.parsed(bytes(message.command))
        if commands.number(message.request, commands.FIELD) == Field.STORE:
            self._open(message, message.request)
        if commands.number(message.request, commands.DATA_SET) == commands.NO_DATA_SET:
            self._end(message)

    def _open(self, message: _Message, request: Elements) -> None:
        """Make a file for an object that is offered, or note why there is none."""
        context = self._contexts[message.context]
        offer = Offer(
            commands.uid(request, commands.SOP_CLASS),
            commands.uid(request, commands.INSTANCE),
            context.syntax,
        )
        self._objects += 1
        message.offer = offer
        if offer.sop_class != context.sop_class or offer.sop_class not in IMAGES:
            message.refusal = _OTHER_CONTEXT
        elif not offer.instance:
            message.refusal = _NO_INSTANCE
        elif self._objects > self._limits.objects:
            message.refusal = _TOO_MANY_OBJECTS
        else:
            place = self._session.place()
            if isinstance(place, Refusal):
                message.refusal = place
                return
            try:
                message.file = ObjectFile(place, offer, self._session.claim)
            except OSError as error:
                message.refusal = _refusal(error)

    def _add_data(self, message: _Message, data: memoryview) -> None:
        self._bytes += len(data)
        if message.offer and len(message.start) < START_BYTES:
            message.start += data[:START_BYTES]
        if message.file is None:
            if message.request and message.refusal is None:
                message.data += data
                if len(message.data) > LONGEST_LIST:
                    raise ProtocolError("a message is too long")
            return
        if self._bytes > self._limits.bytes:
            self._refuse(message, _TOO_MANY_BYTES)
            return
        try:
            message.file.write(data)
        except OSError as error:
            self._refuse(message, _refusal(error))
        except NotUnderstoodError as error:
            self._refuse(message, error.refusal)

    def _refuse(self, message: _Message, refusal: Refusal) -> None:
        """Reject an object; the rest of its data is read and ignored."""
        if message.file:
            message.file.discard()
        message.file, message.refusal = None, refusal

    def _end(self, message: _Message) -> None:
        """Handle a complete message."""
        assert message.request is not None
        self._message = _Message()
        match commands.number(message.request, commands.FIELD):
            case Field.ECHO:
                self._answer(message)
            case Field.STORE:
                refusal = self._stored(message)
                if refusal:
                    self._note_refused(message, refusal.reason)
                self._answer(message, refusal)
            case Field.ACTION:
                self._commit(message)
            case Field.EVENT_REPORT:
                context = self._contexts[message.context]
                self._answer(message, judged(context, bytes(message.data), self._session.judge))
            case Field.CANCEL:
                pass
            case Field.EVENT_REPORT_ANSWER:
                self._note_reported(message.request)
            case found if found & commands.ANSWER:
                pass  # without a request
            case _:
                self._answer(message, _UNRECOGNISED)

    def _note_refused(self, message: _Message, reason: str) -> None:
        """Report that an offered image was not accepted; reason: as in `Session.refused`."""
        if message.offer and self._contexts[message.context].sop_class in IMAGES:
            study = study_in(message.offer, bytes(message.start))
            self._session.refused(message.offer.instance, study, reason)

    def _stored(self, message: _Message) -> Refusal | None:
        if message.file is None:
            assert message.refusal is not None
            return message.refusal
        file, message.file = message.file, None
        try:
            self._session.take(file.finish())
        except NotUnderstoodError as error:
            return error.refusal
        except OSError as error:
            return _refusal(error)
        finally:
            file.discard()
        return None

    def _commit(self, message: _Message) -> None:
        """Answer a request for storage commitment, and then report immediately."""
        assert message.request is not None
        context = self._contexts[message.context]
        if context.sop_class != COMMITMENT:
            self._answer(message, _OTHER_CONTEXT)
            return
        asked = asked_for(bytes(message.data), context.syntax)
        if asked is None:
            self._answer(message, _COMMITMENT_NOT_UNDERSTOOD)
            return
        safe = self._session.commit(asked)
        if isinstance(safe, Refusal):
            self._answer(message, safe)
            return
        self._answer(message)
        self._report(context, asked, safe)

    def _report(
        self, context: PresentationContext, asked: Commitment, safe: Sequence[Referenced]
    ) -> None:
        self._sent = self._sent % 0xFFFF + 1
        self._reports[self._sent] = asked.transaction
        command, data = report_of(asked, safe, context.syntax, self._sent)
        self._connection.send_message(context.number, command, self._most, is_command=True)
        self._connection.send_message(context.number, data, self._most, is_command=False)

    def _note_reported(self, answer: Elements) -> None:
        """Note the answer; a peer that rejects the report here may accept it on another
        association.
        """
        transaction = self._reports.pop(commands.number(answer, commands.ANSWERED), None)
        if transaction and commands.number(answer, commands.STATUS) == DimseStatus.SUCCESS:
            self._session.reported(transaction)

    def _answer(self, message: _Message, refusal: Refusal | None = None) -> None:
        assert message.request is not None
        answer = commands.answer(message.request, refusal)
        self._connection.send_message(message.context, answer, self._most, is_command=True)


def judged(
    context: PresentationContext, data: bytes, judge: Callable[[CommitmentReport], Refusal | None]
) -> Refusal | None:
    """Have a received report judged. data: its data set."""
    if context.sop_class != COMMITMENT:
        return _OTHER_CONTEXT
    report = report_in(data, context.syntax)
    return judge(report) if report else _REPORT_NOT_UNDERSTOOD


_OTHER_CONTEXT = Refusal(
    DimseStatus.CLASS_NOT_SUPPORTED, "its SOP class differs from that of its presentation context"
)
_NO_INSTANCE = Refusal(DimseStatus.NOT_UNDERSTOOD, "the request has no AffectedSOPInstanceUID")
_TOO_MANY_OBJECTS = Refusal(
    DimseStatus.OUT_OF_RESOURCES, "the association sent more objects than allowed"
)
_TOO_MANY_BYTES = Refusal(
    DimseStatus.OUT_OF_RESOURCES, "the association sent more bytes than allowed"
)
_UNRECOGNISED = Refusal(DimseStatus.UNRECOGNISED, "this operation is not supported")
_COMMITMENT_NOT_UNDERSTOOD = Refusal(
    DimseStatus.NOT_UNDERSTOOD, "the storage commitment request has no UID or is malformed"
)

_REPORT_NOT_UNDERSTOOD = Refusal(
    DimseStatus.INVALID_ARGUMENT, "the storage commitment report has no UID or is malformed"
)


def _refusal(error: OSError) -> Refusal:
    if error.errno in NO_SPACE:
        return Refusal(DimseStatus.OUT_OF_RESOURCES, "the disk is full")
    why = errno.errorcode.get(error.errno or 0, "I/O error")
    return Refusal(DimseStatus.FAILED, f"it could not be written to disk ({why})")


def reject(connection: Connection, why: Rejection) -> None:
    """Reject the association that a peer requests."""
    with suppress(NetworkError):
        connection.send(rejection(why))
