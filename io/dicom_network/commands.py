"""Commands of DIMSE messages as their elements: flat, in implicit little endian (PS3.7, E)."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from .errors import ProtocolError

_ELEMENT = struct.Struct("<HHL")
_SHORT = struct.Struct("<H")

GROUP_LENGTH: Final = 0x0000
SOP_CLASS: Final = 0x0002
REQUESTED_CLASS: Final = 0x0003
FIELD: Final = 0x0100
MESSAGE: Final = 0x0110
ANSWERED: Final = 0x0120
DESTINATION: Final = 0x0600
PRIORITY: Final = 0x0700
DATA_SET: Final = 0x0800
STATUS: Final = 0x0900
ERROR_COMMENT: Final = 0x0902
INSTANCE: Final = 0x1000
REQUESTED_INSTANCE: Final = 0x1001
EVENT: Final = 0x1002
ACTION: Final = 0x1008
REMAINING: Final = 0x1020
COMPLETED: Final = 0x1021
FAILED: Final = 0x1022
WARNING: Final = 0x1023
"""Elements of group 0000 by their second half."""

NO_DATA_SET, WITH_DATA_SET = 0x0101, 0x0001
ANSWER = 0x8000
"""Added to the field of a request."""


class Field(IntEnum):
    """Type of a message: request or response."""

    STORE = 0x0001
    FIND = 0x0020
    MOVE = 0x0021
    ECHO = 0x0030
    EVENT_REPORT = 0x0100
    ACTION = 0x0130
    CANCEL = 0x0FFF
    EVENT_REPORT_ANSWER = 0x8100


class DimseStatus(IntEnum):
    """Answers of this program, and DUPLICATE of others (PS3.4 B.2.3 and PS3.7 C)."""

    SUCCESS = 0x0000
    FAILED = 0x0110
    DUPLICATE = 0x0111
    INVALID_ARGUMENT = 0x0115
    CLASS_NOT_SUPPORTED = 0x0122
    NOT_AUTHORISED = 0x0124
    UNRECOGNISED = 0x0211
    TOO_MUCH = 0x0213
    OUT_OF_RESOURCES = 0xA700
    OTHER_CLASS = 0xA900
    NOT_UNDERSTOOD = 0xC000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a peer's request.

    status: of the answer. reason: in ASCII, without patient data; its first 64 characters are the
    answer's ErrorComment.
    """

    status: DimseStatus
    reason: str


LONGEST_COMMENT = 64


def is_success(status: int) -> bool:
    """Return whether an object was stored: a warning means that it was, with changes."""
    return status == DimseStatus.SUCCESS or status & 0xF000 == 0xB000 or status in (0x0001, 0x0107)


Elements: TypeAlias = Mapping[int, bytes]


def parsed(data: bytes) -> Elements:
    """Return the elements of a command. Raises ProtocolError."""
    found: dict[int, bytes] = {}
    place = 0
    while place < len(data):
        if place + _ELEMENT.size > len(data):
            raise ProtocolError("a command ends within an element")
        group, element, length = _ELEMENT.unpack_from(data, place)
        place += _ELEMENT.size
        if group or place + length > len(data):
            raise ProtocolError("a command is malformed")
        found[element] = data[place : place + length]
        place += length
    return found


def number(command: Elements, element: int) -> int:
    """Return a whole number of a command. Raises ProtocolError if it is missing."""
    value = command.get(element, b"")
    if len(value) != _SHORT.size:
        raise ProtocolError("a command lacks a number")
    return _SHORT.unpack(value)[0]


def uid(command: Elements, element: int) -> str:
    """Return a UID of a command, well-formed or not, as `word` reads it; "" if it is missing."""
    return _text(command, element).partition("\\")[0].strip(" \0")


def _text(command: Elements, element: int) -> str:
    return command.get(element, b"").decode("latin-1").rstrip("\0")


def encoded(elements: Mapping[int, int | str]) -> bytes:
    """Return a command with its group's length before it."""
    body = b"".join(_element(key, elements[key]) for key in sorted(elements))
    return _ELEMENT.pack(0, GROUP_LENGTH, 4) + struct.pack("<L", len(body)) + body


def _element(key: int, value: int | str) -> bytes:
    data = _SHORT.pack(value) if isinstance(value, int) else value.encode("latin-1")
    data += b"\0" * (len(data) % 2)
    return _ELEMENT.pack(0, key, len(data)) + data


def answer(request: Elements, refusal: Refusal | None = None) -> bytes:
    """Return the answer to a request, without a data set. Raises ProtocolError."""
    elements: dict[int, int | str] = {
        FIELD: number(request, FIELD) | ANSWER,
        ANSWERED: number(request, MESSAGE),
        DATA_SET: NO_DATA_SET,
        STATUS: refusal.status if refusal else DimseStatus.SUCCESS,
    }
    if refusal:
        comment = refusal.reason[:LONGEST_COMMENT]
        elements[ERROR_COMMENT] = comment + " " * (len(comment) % 2)
    for affected, requested in ((SOP_CLASS, REQUESTED_CLASS), (INSTANCE, REQUESTED_INSTANCE)):
        names = _text(request, requested), _text(request, affected)
        if name := names[0] or names[1]:
            elements[affected] = name
    for kind in (ACTION, EVENT):
        if kind in request:
            elements[kind] = number(request, kind)
    return encoded(elements)
