"""Storage commitment: each report stays on disk until its requester has accepted it.

It is first sent on the requesting association. Many requesters, Orthanc for one, close that at once
and expect the report on a new association (PS3.4, J.3.3). The node opens one only to a destination
with the requester's AE title that a route names.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress

from ...io.dicom_network.errors import NetworkError, RefusedError
from ...io.dicom_network.requesting import Peer
from ...io.dicom_network.sending import reporting_to
from ...io.dicom_network.storage_commitment import Commitment, Referenced
from ..retries import Backoff
from .context import NodeContext
from .delivery import Destination, sending_backoff
from .events import NotReported, NotSent, Reported
from .inbox import Inbox
from .periodic_thread import PeriodicThread
from .records import PendingReport, ReportKey, StudyName
from .routes import Route

MOST = 1000
"""Largest number of pending reports; further requests are refused."""


class PendingReports:
    """Reports that were not accepted yet; all methods are thread-safe."""

    def __init__(self, node: NodeContext) -> None:
        self._store, self._clock = node.store, node.clock
        self._lock = threading.Lock()
        self._offered: dict[ReportKey, float] = {}
        self._due = self._store.report_moments()

    def offer(self, route: str, title: str, asked: Commitment) -> ReportKey | None:
        """Store a report that its requester may accept on the current association.

        Return None if there are too many. Raises OSError.
        """
        report = PendingReport(route, title, self._clock(), asked)
        with self._lock:
            if len(self._offered) + len(self._due) >= MOST:
                return None
            self._store.put_report(report)
            self._due.pop(report.key, None)
            self._offered[report.key] = report.moment
        return report.key

    def association_ended(self, key: ReportKey) -> None:
        """Note the end of the requesting association; a report not accepted there is due now."""
        with self._lock:
            moment = self._offered.pop(key, None)
            if moment is not None:
                self._due[key] = moment

    def remove(self, key: ReportKey) -> None:
        """Remove a report that was accepted or given up."""
        with self._lock:
            self._offered.pop(key, None)
            self._due.pop(key, None)
            with suppress(OSError):  # then it is sent once more after a restart
                self._store.remove_report(key)

    def due(self) -> Mapping[ReportKey, float]:
        """Return the reports to send on a new association, with their times, oldest first."""
        with self._lock:
            return dict(sorted(self._due.items(), key=lambda item: item[1]))

    def read(self, key: ReportKey) -> PendingReport | None:
        """Return a report, unless it was settled meanwhile. Raises OSError."""
        return self._store.report(key)


def objects_in_inbox(inbox: Inbox, route: str, asked: Commitment) -> Mapping[Referenced, StudyName]:
    """Return the requested objects that are in the inbox, with their studies."""
    found = inbox.holding(route, {one.instance for one in asked.referenced})
    return {one: found[one.instance] for one in asked.referenced if one.instance in found}


class ReportSender:
    """Sender of reports that were not accepted on the requesting association, one by one."""

    def __init__(self, node: NodeContext, inbox: Inbox, pending: PendingReports) -> None:
        self._node, self._inbox, self._pending = node, inbox, pending
        self._backoffs: dict[Destination, Backoff] = {}
        self._thread = PeriodicThread("reports", self._send_pending, node.emit)

    def wake(self) -> None:
        """Check for pending reports now."""
        if self._pending.due():
            self._thread.wake()

    def close(self) -> None:
        """Start no other report, and wait up to 10 s for the one in flight."""
        self._thread.close()

    def _send_pending(self) -> bool:
        for key, moment in self._pending.due().items():
            if self._thread.is_open:
                self._try(key, moment)
        return False

    def _try(self, key: ReportKey, moment: float) -> None:
        route = self._node.routes.get(key.route)
        destination = self._destination(route, key.title) if route else None
        if route is None or destination is None:
            self._abandon(
                key, "it closed the association before that, and no route has it as destination"
            )
            return
        backoff = self._backoffs.setdefault(destination, sending_backoff())
        if not backoff.is_over:
            return
        try:
            self._report(key, destination)
        except (NetworkError, OSError) as error:
            if isinstance(error, NetworkError):
                self._node.audit.failed(destination.calling, destination.peer, error)
            if self._node.clock() - moment > route.retry:
                self._abandon(key, str(error))
                return
            backoff.lengthen()
            what = f"report of storage commitment to {destination.peer}"
            self._node.emit(NotSent(what, str(error), backoff.seconds))
        else:
            del self._backoffs[destination]

    def _destination(self, called: Route, title: str) -> Destination | None:
        """Return the destination with a title: the called route's, or else another route's."""
        for route in (called, *self._node.routes.values()):
            peer = route.destination
            if isinstance(peer, Peer) and peer.title == title:
                return Destination(peer, called.title, route.uses_tls)
        return None

    def _report(self, key: ReportKey, destination: Destination) -> None:
        """Send a report. Raises NetworkError or OSError if a retry may help."""
        report = self._pending.read(key)
        if report is None:
            return
        asked = report.commitment
        peer, tls = destination.peer, destination.tls_context(self._node.certificates)
        assert isinstance(peer, Peer)  # one with a title
        with reporting_to(peer, destination.calling, tls) as link:
            safe = objects_in_inbox(self._inbox, key.route, asked)  # as late as possible
            try:
                link.report(asked, list(safe))
            except RefusedError as error:
                self._abandon(key, str(error))
                return
        self._pending.remove(key)
        self._node.emit(Reported(key.route, str(peer), len(safe), len(asked.referenced)))

    def _abandon(self, key: ReportKey, reason: str) -> None:
        self._pending.remove(key)
        self._node.emit(NotReported(key.route, key.title, reason))
