"""Objects, and reports about objects, sent to a peer, each confirmed by it before the next.

pynetdicom's own requestor is not used. It sent 500 CT slices in 13 s or more in place of about 2 s,
and lost the answer to one of them in some runs on a busy machine, as both of its threads read
answers (`node_measures sending` among the benchmarks). With shorter delays it was faster, but lost
one in 5 of 12 runs. Its log alone has the cause of a failed connection.
"""

import socket
import ssl
import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from pydicom.uid import ExplicitVRLittleEndian

from ..dicom.bounded_reading import read_partial
from ..dicom.dataset import PARSING_ERRORS, DataSet, encoded, pydicom, tag_of, word
from ..dicom.stored_text import all_as_stored
from ..files.regular import open_regular, read_regular
from . import commands
from .commands import Elements, Field
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
from .storage_commitment import Commitment, Referenced, report_of

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Time that a peer may take to store an object."""
_LONGEST_PIECE = 1 << 17
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
        self._most = min(longest, _LONGEST_PIECE)
        self._sent = 0

    def echo(self) -> None:
        """Send C-ECHO and wait for the answer. Raises NetworkError."""
        context = self._context(VERIFICATION)
        status = self._exchange(context, self._command(Field.ECHO, VERIFICATION), b"")
        if status:
            raise RefusedError(f"it answered C-ECHO with status {status:04X}")

    def store(self, file: Path) -> None:
        """Send one object of a derived series, which the peer has when this returns.

        Raises NetworkError, or RefusedError for this object alone.
        """
        sop_class, instance, data = _contents(file)
        context = self._context(sop_class)
        if context.syntax != ExplicitVRLittleEndian:
            data = _implicit(file)
        request = self._command(Field.STORE, sop_class, instance)
        status = self._exchange(context, request, data)
        if not commands.is_success(status):
            raise RefusedError(f"it answered C-STORE with status {status:04X}")

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
        self, context: PresentationContext, request: bytes, data: bytes | memoryview
    ) -> int:
        """Return the status of the answer. Raises NetworkError."""
        self._connection.send_message(context.number, request, self._most, is_command=True)
        self._connection.send_message(context.number, data, self._most, is_command=False)
        answer = self._answer()
        if commands.number(answer, commands.ANSWERED) != self._sent:
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


def instance_of(file: Path) -> str:
    """SOPInstanceUID of a file of a derived series. Raises RefusedError if it has none."""
    with _readable(file), open_regular(file) as stream:
        return _identity(read_partial(stream, _is_after_meta).file_meta)[1]


def _is_after_meta(_tag: int, _kind: str | None, _length: int) -> bool:
    return True


def _identity(meta: DataSet) -> tuple[str, str]:
    found = word(meta, "MediaStorageSOPClassUID"), word(meta, "MediaStorageSOPInstanceUID")
    if not all(found):
        raise RefusedError(_DAMAGED)
    return found


def _contents(file: Path) -> tuple[str, str, memoryview]:
    """Return SOP class, instance and the encoded data set, all after the file meta."""
    with _readable(file):
        content = read_regular(file)
        stream = BytesIO(content)  # of the same memory
        dataset = pydicom.dcmread(stream, stop_before_pixels=True)
        start = _META_AT + 12 + int(dataset.file_meta[_META_LENGTH].value)
    if not _has_pixels(content, stream.tell()):
        raise RefusedError(_DAMAGED)
    return *_identity(dataset.file_meta), memoryview(content)[start:]


def _has_pixels(content: bytes, at: int) -> bool:
    """Return whether the element there, in explicit VR, is that of the pixels and is all there."""
    if len(content) < at + _PIXELS.size:
        return False
    group, element, _, length = _PIXELS.unpack_from(content, at)
    return (group, element) == (0x7FE0, 0x0010) and at + _PIXELS.size + length <= len(content)


@contextmanager
def _readable(file: Path) -> Generator[None]:
    """Refuse a file that cannot be read for the block, which keeps no other from being sent."""
    try:
        yield
    except OSError as error:
        raise RefusedError(f"{file} cannot be read ({error.strerror or error})") from None
    except PARSING_ERRORS:
        raise RefusedError(_DAMAGED) from None


_DAMAGED = "a result on disk is damaged"
_META_LENGTH = tag_of("FileMetaInformationGroupLength")
_META_AT = 132
"""Bytes of preamble and magic word."""
_PIXELS = struct.Struct("<HH4sL")


def _implicit(file: Path) -> bytes:
    with open_regular(file) as stream:
        dataset = all_as_stored(pydicom.dcmread(stream))
    dataset.set_original_encoding(True, True, dataset.original_character_set)
    return encoded(dataset, is_implicit=True)
