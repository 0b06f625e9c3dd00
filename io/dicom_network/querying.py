"""Studies and objects found by C-FIND, and moved to this program by C-MOVE; the root is a study."""

import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from ..dicom.dataset import PARSING_ERRORS, DataSet, decoded, encoded, pydicom, words
from . import commands
from .commands import ANSWER, DimseStatus, Elements, Field
from .connection import Connection
from .errors import ConnectionLostError, ProtocolError, RefusedError
from .limits import LONGEST_REQUEST
from .negotiation import (
    IMPLEMENTATION_UID,
    PLAIN,
    VERIFICATION,
    PresentationContext,
    association_request,
)
from .objects import UID_PATTERN
from .requesting import Peer, Requestor, associated

FIND = "1.2.840.10008.5.1.4.1.2.2.1"
MOVE = "1.2.840.10008.5.1.4.1.2.2.2"
PENDING = (0xFF00, 0xFF01)
"""Statuses of responses before the last one; the second if optional keys are not supported."""
WITH_WARNINGS = 0xB000
_GLANCE_SECONDS = 0.5
_UTF_8 = "ISO_IR 192"
QueryLevel: TypeAlias = Literal["STUDY", "SERIES", "IMAGE"]
Identifier: TypeAlias = Mapping[str, tuple[str, ...]]
"""Attributes that a search returned, by keyword; one that the peer did not return is absent."""
UIDS: Mapping[QueryLevel, str] = {
    "STUDY": "StudyInstanceUID",
    "SERIES": "SeriesInstanceUID",
    "IMAGE": "SOPInstanceUID",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """Last response to C-MOVE.

    status: of the response. failed: number of failed sub-operations; 0 if the peer reports none.
    """

    status: int
    failed: int

    @property
    def is_complete(self) -> bool:
        """Whether no sub-operation is known to have failed: status B000 may be about warnings."""
        return self.status in (DimseStatus.SUCCESS, WITH_WARNINGS) and not self.failed

    @property
    def words(self) -> str:
        """Outcome in words."""
        found = f"C-MOVE ended with status {self.status:04X}"
        if self.status:
            found += f" ({MEANINGS.get(self.status, 'a failure there')})"
        return f"{found}, {self.failed} failed" if self.failed else found


class Query(Requestor):
    """Open association for searches, from `querying`; its methods raise NetworkError.

    most: maximum number of responses to a search.
    """

    def __init__(
        self,
        connection: Connection,
        contexts: Mapping[str, PresentationContext],
        longest: int,
        most: int,
    ) -> None:
        super().__init__(connection, contexts, longest)
        self._most_found = most

    def check(self) -> None:
        """Raise RefusedError if the peer does not offer both services."""
        for sop_class in (FIND, MOVE):
            self._context(sop_class)

    def echo(self) -> None:
        """Check that the peer answers C-ECHO, and a search for a study that it cannot have: some
        peers abort the association if they do not know the calling AE title.
        """
        self.check()
        super().echo()
        self.find("STUDY", {"StudyInstanceUID": IMPLEMENTATION_UID})

    def find(self, level: QueryLevel, keys: Mapping[str, str]) -> dict[str, Identifier]:
        """Return what matches, by the UID of its level. keys: values by keyword; "" for one that is
        only to be returned. Raises RefusedError for this search alone.
        """
        own, context = UIDS[level], self._context(FIND)
        asked = {own: "", **keys}
        found: dict[str, Identifier] = {}
        self._ask(context, self._command(Field.FIND, FIND, has_data=True), level, asked)
        for _ in range(self._most_found + 1):
            command, data = self._response(Field.FIND)
            status = commands.number(command, commands.STATUS)
            if status not in (DimseStatus.SUCCESS, *PENDING):
                raise RefusedError(f"it answers C-FIND with status {status:04X}")
            if not status:
                return found
            row = _row(data, context, asked)
            found[_uid_of(row, own, asked)] = row
        raise ProtocolError(f"it lists more than {self._most_found:,} in one search")

    def move(
        self, level: QueryLevel, keys: Mapping[str, str], to: str, waits: Callable[[], bool]
    ) -> Moved:
        """Have the peer send what matches to an AE title, and return how that ended.

        waits: called while nothing arrives; returns whether to wait on, else the association is
        aborted with ConnectionLostError.
        """
        context = self._context(MOVE)
        request = self._command(Field.MOVE, MOVE, destination=to, has_data=True)
        self._ask(context, request, level, keys)
        while True:
            while not self._connection.has_data(_GLANCE_SECONDS):
                if not waits():
                    raise ConnectionLostError("C-MOVE did not end")
            command, data = self._response(Field.MOVE)
            status = commands.number(command, commands.STATUS)
            if status not in PENDING:
                return Moved(status, max(_failed(command), _failed_by_name(data, context)))

    def _ask(
        self,
        context: PresentationContext,
        command: bytes,
        level: QueryLevel,
        keys: Mapping[str, str],
    ) -> None:
        asked = pydicom.Dataset()
        if not all(value.isascii() for value in keys.values()):
            asked.SpecificCharacterSet = _UTF_8
        asked.QueryRetrieveLevel = level
        for keyword, value in keys.items():
            setattr(asked, keyword, value)
        self._send(context, command, encoded(asked, is_implicit=context.syntax == PLAIN[1]))

    def _response(self, asked: Field) -> tuple[Elements, bytes]:
        """Return the next response to the last request, and its data set."""
        _, command, data = self._message()
        if (
            commands.number(command, commands.FIELD) != asked | ANSWER
            or commands.number(command, commands.ANSWERED) != self._sent
        ):
            raise ProtocolError("it answered a different message")
        return command, data


def querying(
    peer: Peer, calling: str, tls: ssl.SSLContext | None, most: int
) -> AbstractContextManager[Query]:
    """Return an association for searches and C-MOVE, for the block.

    calling: our AE title. most: maximum number of responses to a search. Raises NetworkError.
    """
    classes = (VERIFICATION, FIND, MOVE)
    asked = association_request(calling, peer.title, classes, LONGEST_REQUEST)
    return associated(peer, asked, tls, partial(Query, most=most))


def _row(data: bytes, context: PresentationContext, asked: Iterable[str]) -> Identifier:
    """Return the requested elements of an answer. Raises ProtocolError."""
    try:
        found = decoded(data, is_implicit=context.syntax == PLAIN[1])
        return {keyword: _values(found, keyword) for keyword in asked if keyword in found}
    except PARSING_ERRORS:
        raise ProtocolError("its answer to C-FIND is malformed") from None


def _values(found: DataSet, keyword: str) -> tuple[str, ...]:
    """Return the values of an element; a name is one value, although it has parts."""
    element = found[keyword]
    return (str(element.value or ""),) if element.VR == "PN" else words(found, keyword)


def _uid_of(row: Identifier, own: str, asked: Mapping[str, str]) -> str:
    """Return the UID of a row. Raises ProtocolError if it has none that can be a key, or is of
    another study or series than requested.
    """
    for keyword in UIDS.values():
        wanted = asked.get(keyword)
        if keyword != own and wanted and value_of(row, keyword) not in ("", wanted):
            raise ProtocolError(f"its answer to C-FIND has another {keyword} than requested")
    found = value_of(row, own)
    if not UID_PATTERN.fullmatch(found):
        raise ProtocolError(f"its answer to C-FIND has no {own}")
    return found


def value_of(row: Identifier, keyword: str) -> str:
    """Return the first value of an element, or ""."""
    return next(iter(row.get(keyword, ())), "")


def _failed(command: Elements) -> int:
    return commands.number(command, commands.FAILED) if commands.FAILED in command else 0


def _failed_by_name(data: bytes, context: PresentationContext) -> int:
    """Return the length of the list of failed objects, which a peer may send without a number."""
    try:
        found = decoded(data, is_implicit=context.syntax == PLAIN[1])
        return len(words(found, "FailedSOPInstanceUIDList"))
    except PARSING_ERRORS:
        return 0  # the number in the command and the inbox decide


MEANINGS: Mapping[int, str] = {
    DimseStatus.OUT_OF_RESOURCES: "it is out of resources",
    0xA701: "it cannot count what matches",
    0xA702: "it cannot send the objects",
    0xA801: "it does not know the AE title to send to",
    DimseStatus.OTHER_CLASS: "it does not accept the request",
    DimseStatus.NOT_UNDERSTOOD: "it may not know the AE title to send to",
    0xFE00: "it was cancelled there",
    WITH_WARNINGS: "with failures or warnings",
}
"""Statuses of C-MOVE in words: PS3.4, table C.4-2."""
