"""Socket that sends and receives whole PDUs, within limits of length and time."""

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

from .errors import ConnectionLostError, ProtocolError

_HEADER = struct.Struct(">BxL")
_ITEM = struct.Struct(">LBB")


class Pdu(IntEnum):
    """Types of PDUs: PS3.8, section 9.3."""

    ASSOCIATE_RQ = 1
    ASSOCIATE_AC = 2
    ASSOCIATE_RJ = 3
    DATA = 4
    RELEASE_RQ = 5
    RELEASE_RP = 6
    ABORT = 7


_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_KNOWN = frozenset(Pdu)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Fragment of a message.

    context: number of its presentation context. is_command: whether it belongs to the command, and
    not to the data set. is_last: whether it is the last one of that kind. data: valid until the
    next PDU is read.
    """

    context: int
    is_command: bool
    is_last: bool
    data: memoryview


class Connection:
    """Owns the socket; a context manager.

    longest: bytes of a PDU that the peer may send. seconds: that sending a PDU, or receiving a
    begun one, may take.
    """

    def __init__(self, link: socket.socket, longest: int, seconds: float) -> None:
        self._link = link
        self._seconds = seconds
        self._buffer = memoryview(bytearray(longest))
        # Answers of a few bytes would wait for the peer's acknowledgement of the one before.
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; any thread may call this."""
        cut(self._link)

    def read(self, idle_seconds: float, pdu_seconds: float | None = None) -> tuple[Pdu, memoryview]:
        """Return the next PDU without its header; it overwrites the previous one.

        pdu_seconds: limit from first byte to last, if not the default. Raises ConnectionLostError
        or ProtocolError.
        """
        header = self._buffer[: _HEADER.size]
        self._fill(header[:1], idle_seconds)
        seconds = self._seconds if pdu_seconds is None else pdu_seconds
        end = time.monotonic() + seconds
        self._fill(header[1:], seconds)
        kind, length = _HEADER.unpack(header)
        if kind not in _KNOWN:
            raise ProtocolError("it does not speak DICOM")
        if length > len(self._buffer):
            raise ProtocolError(f"a PDU of {length} bytes exceeds {len(self._buffer)}")
        body = self._buffer[:length]
        self._fill(body, end - time.monotonic())
        return Pdu(kind), body

    def has_data(self, seconds: float) -> bool:
        """Return whether the peer sends something, or closes, within so many seconds."""
        if isinstance(self._link, ssl.SSLSocket) and self._link.pending():
            return True
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._link, selectors.EVENT_READ)
            return bool(waiting.select(seconds))

    def send(self, data: bytes) -> None:
        """Send all of it. Raises ConnectionLostError."""
        try:
            self._link.settimeout(self._seconds)
            self._link.sendall(data)
        except OSError as error:
            raise ConnectionLostError(_reason(error)) from error

    def send_pdu(self, kind: Pdu, body: bytes) -> None:
        """Send one PDU. Raises ConnectionLostError."""
        self.send(_HEADER.pack(kind, len(body)) + body)

    def send_message(
        self, context: int, data: bytes | memoryview, most: int, *, is_command: bool
    ) -> None:
        """Send a command, or else a data set, in pieces. Raises ConnectionLostError.

        most: bytes of a PDU that the peer accepts.
        """
        space = most - _ITEM.size
        for start in range(0, len(data), space):
            piece = data[start : start + space]
            control = is_command | (start + space >= len(data)) << 1
            item = _ITEM.pack(len(piece) + 2, context, control)
            header = _HEADER.pack(Pdu.DATA, len(item) + len(piece))
            self.send(b"".join((header, item, piece)))

    def _fill(self, place: memoryview, seconds: float) -> None:
        end = time.monotonic() + seconds
        while place:
            left = end - time.monotonic()
            if left <= 0:
                raise ConnectionLostError("it sent nothing for too long")
            try:
                self._link.settimeout(left)
                self._acknowledge_immediately()
                count = self._link.recv_into(place)
            except OSError as error:
                raise ConnectionLostError(_reason(error)) from error
            if not count:
                raise ConnectionLostError("it closed the connection")
            place = place[count:]

    def _acknowledge_immediately(self) -> None:
        """Many peers send a message in two parts, and the second waits for the acknowledgement of
        the first.
        """
        if _QUICK_ACK is not None:
            self._link.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)


def cut(link: socket.socket) -> None:
    """Close a connection, which the peer notices, without waiting."""
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        link.close()


def fragments(body: memoryview) -> Iterator[Fragment]:
    """Yield the pieces of messages that a DATA PDU holds. Raises ProtocolError."""
    while body:
        if len(body) < _ITEM.size:
            raise ProtocolError("a PDU ends within an item")
        length, context, control = _ITEM.unpack_from(body)
        end = length + 4
        if length < 2 or end > len(body):
            raise ProtocolError("an item exceeds its PDU")
        yield Fragment(context, bool(control & 1), bool(control & 2), body[_ITEM.size : end])
        body = body[end:]


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it sent nothing for too long"
    return f"the system reports: {error.strerror or type(error).__name__}"
