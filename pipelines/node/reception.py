"""Reception of objects: who may send, and the sessions of associations."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.negotiation import UNKNOWN_CALLED, UNKNOWN_CALLING, Rejection
from ...io.dicom_network.objects import NotUnderstoodError, ReceivedObject
from ...io.dicom_network.storage_commitment import Commitment, CommitmentReport, Referenced
from .audit import AuditedSession
from .audit_messages import Party, not_authenticated
from .commitment import PendingReports, objects_in_inbox
from .context import NodeContext
from .events import Received, Reported, ReportRefused, TurnedAway
from .inbox import Inbox
from .records import ReportKey, StudyName
from .routes import Route
from .sending_records import SendingRecords

AFTER_RESTART = 10
"""Factor of the quiet period for studies that were arriving when the node stopped."""
REPEATED_SECONDS = 60.0
"""Seconds after which a peer that is rejected again is reported again."""
_MOST_REMEMBERED = 1000
_NO_RECORD = Refusal(DimseStatus.FAILED, "the request could not be written to disk")
_NOT_REQUESTED = Refusal(DimseStatus.NOT_AUTHORISED, "its study was not requested")
_NOT_EXPECTED = Refusal(
    DimseStatus.NOT_AUTHORISED,
    "no report is expected of its AE title and address",
)
_TOO_MUCH = Refusal(DimseStatus.TOO_MUCH, "too many reports of storage commitment are pending")


class IncomingStudies:
    """Studies with objects that were not examined yet; all methods are thread-safe.

    waiting: studies found in the inbox at the start, with the time of their last change.
    """

    def __init__(self, waiting: Mapping[StudyName, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = dict(waiting)
        self._open: Counter[StudyName] = Counter()
        self._committed: set[StudyName] = set()
        self._before_restart = set(waiting)

    def joined(self, study: StudyName) -> None:
        """Note that an association brings objects of a study."""
        with self._lock:
            self._open[study] += 1

    def left(self, studies: Collection[StudyName]) -> None:
        """Note that the association is over."""
        with self._lock:
            for study in studies:
                self._open[study] -= 1
                self._before_restart.discard(study)
                if study in self._changed:
                    self._changed[study] = self._clock()

    def changed(self, study: StudyName) -> None:
        """Note a change: a new object, or a route that may accept the study now."""
        with self._lock:
            self._changed[study] = self._clock()
            self._committed.discard(study)

    def committed(self, study: StudyName) -> None:
        """Note that the sender declared the study complete."""
        with self._lock:
            self._committed.add(study)

    def complete(self, quiet: Callable[[StudyName], float | None]) -> dict[StudyName, float]:
        """Return the studies to examine now, with the time of their last change.

        quiet: returns the seconds without changes after which a study is complete; None never.
        """
        with self._lock:
            now = self._clock()
            # If the clock was set back, the quiet period starts now.
            self._changed = {study: min(since, now) for study, since in self._changed.items()}
            return {
                study: since
                for study, since in self._changed.items()
                if self._is_complete(study, since, quiet(study))
            }

    def examined(self, studies: Mapping[StudyName, float]) -> None:
        """Forget studies that `complete` returned, unless they changed meanwhile."""
        with self._lock:
            for study, since in studies.items():
                if self._changed.get(study) == since:
                    del self._changed[study]
                    self._committed.discard(study)
                    self._before_restart.discard(study)

    def changed_at(self, study: StudyName) -> float | None:
        """Return the time of the last change of a study; None if it was examined since."""
        with self._lock:
            return self._changed.get(study)

    def is_busy(self, study: StudyName) -> bool:
        """Whether objects of it are arriving, or arrived since it was examined."""
        with self._lock:
            return self._open[study] > 0 or study in self._changed

    def _is_complete(self, study: StudyName, since: float, quiet: float | None) -> bool:
        if quiet is None:
            return False
        if study in self._committed:
            return True
        needed = quiet * AFTER_RESTART if study in self._before_restart else quiet
        return self._open[study] <= 0 and self._clock() - since >= needed


class Reception:
    """Policy for associations; creates their sessions.

    inbox, incoming: studies that are received. pending: reports on them. records: of the reports of
    destinations. requested: studies that a route's source is to send, by the route's AE title;
    values are replaced as a whole, by the route's fetcher alone.
    """

    def __init__(
        self,
        node: NodeContext,
        inbox: Inbox,
        incoming: IncomingStudies,
        pending: PendingReports,
        records: SendingRecords,
    ) -> None:
        self.inbox, self.incoming, self.pending, self.records = inbox, incoming, pending, records
        self.requested: dict[str, frozenset[StudyName]] = {}
        self.emit, self.audit = node.emit, node.audit
        self._node = node
        self._lock = threading.Lock()
        self._rejections: Counter[tuple[str, str]] = Counter()
        self._titles: dict[tuple[str, str], str] = {}
        self._reported: dict[tuple[str, str], float] = {}

    def session(self, called: str, calling: str, address: str) -> "RouteSession | Rejection":
        """Return the session of an association, or why it is rejected."""
        route = self._node.routes.get(called)
        titles = f"{calling} to {called}"
        if route is None:
            return replace(UNKNOWN_CALLED, titles=titles)
        takes_images = route.admits(calling, address)
        expects_reports = route.expects_reports_of(calling, address)
        is_requested = not takes_images and self._is_requested(route, calling, address)
        if not (takes_images or expects_reports or is_requested):
            return replace(UNKNOWN_CALLING, titles=titles)
        return RouteSession(
            self,
            route.title,
            calling,
            Party(calling, address),
            takes_images=takes_images or is_requested,
            expects_reports=expects_reports,
            only_requested=is_requested,
        )

    def _is_requested(self, route: Route, calling: str, address: str) -> bool:
        """Whether a peer is the source of a route, and is to send studies now."""
        return bool(self.requested.get(route.title)) and route.fetches_from(calling, address)

    def fetching(self, route: str, source: str) -> "RouteSession":
        """Return the session of a study that a route fetches."""
        return RouteSession(self, route, source, Party("", source), is_fetch=True)

    def on_reject(self, address: str, reason: str, titles: str) -> None:
        """Report a rejected connection; similar ones are counted and reported once a minute.

        Titles do not count as a difference, as a stranger may try any number of them.
        """
        now, key = time.monotonic(), (address, reason)
        with self._lock:
            self._rejections[key] += 1
            self._titles[key] = titles
            if now - self._reported.get(key, -REPEATED_SECONDS) < REPEATED_SECONDS:
                return
            due = [key]
            if len(self._reported) > _MOST_REMEMBERED:
                self._reported.clear()
                due = list(self._rejections)
            self._reported[key] = now
            found = self._take_rejections(due)
        self._report_rejections(found)

    def close(self) -> None:
        """Report the rejections that were counted since the last report."""
        with self._lock:
            found = self._take_rejections(list(self._rejections))
        self._report_rejections(found)

    def _take_rejections(self, keys: Collection[tuple[str, str]]) -> list[TurnedAway]:
        return [
            TurnedAway(key[0], self._titles.pop(key), key[1], self._rejections.pop(key))
            for key in keys
        ]

    def _report_rejections(self, found: Collection[TurnedAway]) -> None:
        for one in found:
            self.emit(one)
            stranger = Party(one.titles.partition(" to ")[0], one.address)
            titles = sorted(self._node.routes)
            self.audit.record(not_authenticated(titles, stranger, one.reason, one.count))


class RouteSession:
    """Session of one association, or of one study that is fetched.

    peer: the sender, for the audit trail. expects_reports: whether it may report storage
    commitment. only_requested: whether it may send only what the route's fetcher has requested.
    is_fetch: whether it is of a fetched study, whose fetcher reports how it broke off.
    """

    def __init__(
        self,
        reception: Reception,
        route: str,
        caller: str,
        peer: Party,
        *,
        takes_images: bool = True,
        expects_reports: bool = False,
        only_requested: bool = False,
        is_fetch: bool = False,
    ) -> None:
        self.takes_images = takes_images
        self._reception = reception
        self._only_requested, self._is_fetch = only_requested, is_fetch
        self._expects_reports = expects_reports
        self._route, self._caller = route, caller
        self._inbox, self._incoming = reception.inbox, reception.incoming
        self._pending, self._records = reception.pending, reception.records
        self._emit = reception.emit
        self._audited = AuditedSession(reception.audit, route, peer)
        self._studies: set[StudyName] = set()
        self._begun: dict[StudyName, int] = {}
        self._refused: set[str] = set()
        self._refusals = Counter[str]()
        self._reports: dict[str, tuple[ReportKey, int, int]] = {}
        self._began = time.monotonic()
        self._new = self._known = self._bytes = 0

    def place(self) -> Path | Refusal:
        """Return a path for an offered object, or why it is refused."""
        return self._inbox.part()

    def claim(self, size: int) -> bool:
        """Reserve bytes for objects in flight; return whether there is space."""
        return self._inbox.claim(size)

    def take(self, received: ReceivedObject) -> None:
        """Store a received object. Raises OSError, or NotUnderstoodError if it may not be sent."""
        study = self._inbox.study(self._route, received.study)
        if not self._may_send(study):
            raise NotUnderstoodError(_NOT_REQUESTED.status, _NOT_REQUESTED.reason)
        self._begin_transfer(study)
        placed = self._inbox.take(self._route, received)
        self._refused.discard(received.offer.instance)
        self._join(placed.study)
        for study in {placed.study, *placed.awaited}:
            self._incoming.changed(study)
        if placed.is_new:
            self._new += 1
        else:
            self._known += 1
        self._bytes += received.size
        folder, is_new = self._inbox.folder(placed.study), placed.is_new
        self._audited.take(received.study, received.offer.sop_class, folder, is_new=is_new)

    def expect(self, study: str, instances: Collection[str]) -> None:
        """Note objects that are about to be fetched: the study lacks them until they have arrived,
        also after a kill, and is not complete before the session ends.
        """
        if instances:
            name = self._inbox.study(self._route, study)
            for instance in instances:
                self._inbox.refuse(name, instance)
            self._begin_transfer(name)
            self._join(name)

    def changed_at(self, study: str) -> float | None:
        """Return the time of the last new object of a study; None if all were examined."""
        return self._incoming.changed_at(self._inbox.study(self._route, study))

    def _join(self, study: StudyName) -> None:
        if study not in self._studies:
            self._studies.add(study)
            self._incoming.joined(study)

    def _may_send(self, study: StudyName) -> bool:
        requested = self._reception.requested.get(self._route, frozenset())
        return not self._only_requested or study in requested

    def _begin_transfer(self, study: StudyName) -> None:
        """Note which study arrives; a sender that returns to a study alternates between several."""
        if study in self._begun:
            return
        if study not in self._studies:
            self._end_transfers(broke_off=False)
        self._begun[study] = self._inbox.begin(study)
        for instance in self._refused:
            self._inbox.refuse(study, instance)
        self._refused.clear()

    def _end_transfers(self, *, broke_off: bool) -> None:
        """End the transfer of the current studies. broke_off: whether it may be incomplete."""
        for study, begun in self._begun.items():
            self._inbox.end(study, begun, broke_off=broke_off)
        self._begun.clear()

    def refused(self, instance: str, study: str, reason: str) -> None:
        """Note a refused image; one of unknown study counts for the studies before and after it."""
        if reason:
            self._refusals[reason] += 1
            self._audited.refuse(study)
        if study and not self._may_send(self._inbox.study(self._route, study)):
            return
        if study:
            name = self._inbox.study(self._route, study)
            self._begin_transfer(name)
            self._inbox.refuse(name, instance)
            self._incoming.changed(name)
            return
        self._refused.add(instance)
        for current in self._begun:
            self._inbox.refuse(current, instance)

    def commit(self, asked: Commitment) -> Sequence[Referenced] | Refusal:
        """Return the objects that are in the inbox, and complete their studies."""
        found = objects_in_inbox(self._inbox, self._route, asked)
        try:
            key = self._pending.offer(self._route, self._caller, asked)
        except OSError:
            return _NO_RECORD
        if key is None:
            return _TOO_MUCH
        self._reports[asked.transaction] = key, len(found), len(asked.referenced)
        for study in set(found.values()):
            if study in self._begun:
                self._inbox.end(study, self._begun.pop(study), broke_off=False)
            self._inbox.complete(study)
            self._incoming.changed(study)  # a held study is examined again
            self._incoming.committed(study)
        return list(found)

    def reported(self, transaction: str) -> None:
        """Note that the caller has accepted the report of a transaction."""
        if found := self._reports.pop(transaction, None):
            key, safe, asked = found
            self._pending.remove(key)
            self._emit(Reported(self._route, self._caller, safe, asked))

    def judge(self, report: CommitmentReport) -> Refusal | None:
        """Record a report of storage commitment, or return why it is refused."""
        if not self._expects_reports:
            self._emit(ReportRefused(self._route, self._caller, _NOT_EXPECTED.reason))
            return _NOT_EXPECTED
        return self._records.judge(self._route, self._caller, report)

    def end(self, reason: str) -> None:
        """End the session. reason: "" after an orderly release."""
        for key, *_ in self._reports.values():
            self._pending.association_ended(key)
        self._end_transfers(broke_off=bool(reason))
        self._audited.end(reason)
        self._report_end(reason)
        self._incoming.left(self._studies)  # then they may be queued, which is reported later

    def _report_end(self, reason: str) -> None:
        is_empty = not (self._new or self._known or self._refusals)
        if is_empty and (self._reports or self._is_fetch or not reason):
            return  # only C-ECHO, or a requester that did not wait for its report
        self._emit(
            Received(
                self._route,
                self._caller,
                self._new,
                self._known,
                tuple(self._refusals.items()),
                self._bytes,
                time.monotonic() - self._began,
                reason,
            )
        )
