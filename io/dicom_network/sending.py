"""Objects, and reports about objects, sent to a peer, each confirmed by it before the next."""

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TypeAlias

from pydicom.uid import ExplicitVRLittleEndian

from . import commands
from .association import judged
from .commands import DimseStatus, Elements, Field, Refusal
from .connection import Connection
from .errors import ProtocolError, RefusedError
from .limits import LONGEST_REQUEST
from .negotiation import (
    COMMITMENT,
    IMAGES,
    REJECTION_NOTE,
    VERIFICATION,
    PresentationContext,
    association_request,
)
from .requesting import Peer, Requestor, associated
from .sent_objects import implicit_data, object_in, opened
from .storage_commitment import Commitment, CommitmentReport, Referenced, report_of, request_of

REPORT_SECONDS = 2.0
"""Time that a peer has to begin its report on the association of the request; later it needs one of
its own.
"""
_GLANCE_SECONDS = 0.1
ReportJudge: TypeAlias = Callable[[CommitmentReport], Refusal | None]
"""Records a report of storage commitment, or returns why it is refused."""


class Transmission(Requestor):
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
        super().__init__(connection, contexts, longest)
        self._judge = judge
        self._requested: set[str] = set()
        self._reports_until = 0.0

    def echo(self) -> None:
        """Send C-ECHO and wait for the answer; the peer must also accept storage commitment if
        reports are judged. Raises NetworkError.
        """
        if self._judge:
            self._context(COMMITMENT)
        super().echo()

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
    return associated(peer, asked, tls, partial(Transmission, judge=judge))


def reporting_to(
    peer: Peer, calling: str, tls: ssl.SSLContext | None = None
) -> AbstractContextManager[Transmission]:
    """Return an association for reports of storage commitment, for the block.

    calling: our AE title that received the request. Raises NetworkError.
    """
    asked = association_request(
        calling, peer.title, (COMMITMENT,), LONGEST_REQUEST, as_provider=True
    )
    return associated(peer, asked, tls, Transmission)
