"""Results sent to their destinations: a thread each, object by object, each confirmed on disk."""

import ssl
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from ...io.dicom_network.access_tokens import AccessTokens
from ...io.dicom_network.commands import DimseStatus, Refusal
from ...io.dicom_network.errors import NetworkError, RefusedError, UnconfirmedError
from ...io.dicom_network.requesting import Peer
from ...io.dicom_network.sending import ReportJudge, Transmission, sending_to
from ...io.dicom_network.sent_objects import identity_of
from ...io.dicom_network.storage_commitment import CommitmentReport
from ...io.dicom_network.tls import Certificates
from ...io.dicom_network.web import WebLink, WebPeer, web_link
from ..retries import Backoff
from .context import NodeContext
from .events import NotSent, Resumed, SendingAbandoned
from .periodic_thread import PeriodicThread
from .records import Attempt, SeriesRecord, SeriesState, StudyName
from .routes import Route
from .sending_records import Result, SendingRecords, refusals_of

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between tries to reach a destination: they double from the one to the other."""
MOST_REFUSALS = 8
"""Objects that a destination may refuse in a row; the rest of the result then waits, too."""


def sending_backoff() -> Backoff:
    """Return the backoff for a destination."""
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE)


def _without_request(_: CommitmentReport) -> Refusal:
    return Refusal(DimseStatus.INVALID_ARGUMENT, "no report is awaited")


@dataclass(frozen=True, slots=True)
class Destination:
    """Receiver of results, as one association reaches it.

    peer: the receiver. calling: calling AE title. uses_tls: whether to connect over TLS. commits:
    whether it is to report storage commitment. rejects: whether it gets rejection notes.
    """

    peer: Peer | WebPeer
    calling: str
    uses_tls: bool
    commits: bool = False
    rejects: bool = False

    @classmethod
    def of(cls, route: Route) -> Self:
        """Return the destination of a route's results."""
        commits = route.commitment is not None
        rejects = route.rejects_superseded
        return cls(route.destination, route.title, route.uses_tls, commits, rejects)

    def connected(
        self,
        certificates: Certificates | None,
        judge: ReportJudge = _without_request,
        tokens: AccessTokens | None = None,
    ) -> AbstractContextManager[Transmission | WebLink]:
        """Connect to it for a block. judge: records its reports. tokens: those in use.

        Raises NetworkError.
        """
        if isinstance(self.peer, WebPeer):
            return web_link(self.peer, certificates, tokens=tokens)
        context = self.tls_context(certificates)
        reports = judge if self.commits else None
        return sending_to(self.peer, self.calling, context, reports, rejects=self.rejects)

    def tls_context(self, certificates: Certificates | None) -> ssl.SSLContext | None:
        """Return the TLS context for it, or None without TLS. Raises CertificateError."""
        return certificates.client_context() if certificates and self.uses_tls else None


class Deliveries:
    """Deliverers of all destinations, each started by its first pending result."""

    def __init__(self, node: NodeContext, records: SendingRecords) -> None:
        self._node, self._records = node, records
        self._deliverers: dict[Destination, Deliverer] = {}

    def wake(self) -> None:
        """Check for pending results now."""
        for destination in _pending(self._node):
            if destination not in self._deliverers:
                self._deliverers[destination] = Deliverer(self._node, self._records, destination)
            self._deliverers[destination].thread.wake()

    def resume(self) -> None:
        """Resume what was given up, if a route's `retry` is longer by now. Raises OSError."""
        node, now = self._node, self._node.clock()
        for study, route, one in _series(node, "undelivered"):
            if now - one.done <= route.retry:
                again = replace(one, state="sending")
                node.store.change(str(study), lambda known, again=again: known.with_series(again))
                node.emit(Resumed(f"{study}/{one.place}"))

    def close(self) -> None:
        """Start no other object, and wait up to 10 s for those in flight."""
        for deliverer in self._deliverers.values():
            deliverer.thread.stop()
        for deliverer in self._deliverers.values():
            deliverer.thread.join()


def _pending(node: NodeContext) -> dict[Destination, list[Result]]:
    """Return the pending results by destination, oldest first."""
    pending: dict[Destination, list[Result]] = defaultdict(list)
    for study, route, one in _series(node, "sending"):
        pending[Destination.of(route)].append(Result.of(node.results, study, one, route))
    for found in pending.values():
        found.sort(key=lambda result: result.series.done)
    return pending


def _series(
    node: NodeContext, state: SeriesState
) -> Iterator[tuple[StudyName, Route, SeriesRecord]]:
    """Yield the series in a state whose route exists, with study and route."""
    for record in node.store.present():
        study = StudyName.parse(record.study)
        if route := node.routes.get(study.route):
            yield from ((study, route, one) for one in record.series if one.state == state)


@dataclass(frozen=True, slots=True)
class _Object:
    """Object to be sent. instance: its UID. trouble: why its file cannot be read, usually ""."""

    file: Path
    instance: str
    trouble: str
    attempt: Attempt


@dataclass
class _Outcome:
    """Outcome of sending objects of a result.

    sent: number of confirmed ones. warnings: of the destination, with their numbers. refusals: why
    others were not stored, by file names.
    """

    sent: int = 0
    warnings: Counter[str] = field(default_factory=Counter[str])
    refusals: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def remark(self) -> str:
        """Describe the warnings, or return ""."""
        warned = self.warnings.total()
        return f"{warned} stored with {', '.join(sorted(+self.warnings))}" if warned else ""


class Deliverer:
    """Sender of the results of one destination. thread: in which it sends."""

    def __init__(
        self, node: NodeContext, records: SendingRecords, destination: Destination
    ) -> None:
        self._node, self._store = node, node.store
        self._records, self._destination = records, destination
        self._backoff = sending_backoff()
        self._backoffs: dict[str, Backoff] = {}
        self.thread = PeriodicThread("delivery", self._send_pending, node.emit)

    def _send_pending(self) -> bool:
        try:
            if self._backoff.is_over and (ready := self._ready()):
                self._deliver(ready)
                return True
        except OSError as error:  # the store has no room
            if self._is_open:
                self._wait(f"{error.filename or 'a file'} cannot be used ({error.strerror})")
        return False

    @property
    def _is_open(self) -> bool:
        return self.thread.is_open

    def _wait(self, reason: str) -> None:
        """Pause all sending to the destination, and report why."""
        self._backoff.lengthen()
        self._node.emit(NotSent(str(self._destination.peer), reason, self._backoff.seconds))

    def _ready(self) -> list[Result]:
        """Return pending results that need not wait, those that failed before last.

        Give up results that were tried for as long as their route allows.
        """
        ready: list[Result] = []
        is_awaited = self._records.awaited() if self._destination.commits else None
        for result in _pending(self._node).get(self._destination, []):
            if self._node.clock() - result.series.done > result.route.retry:
                self._abandon(result)
            elif is_awaited and is_awaited(result):
                continue
            elif self._backoffs.get(result.name, sending_backoff()).is_over:
                ready.append(result)
        return sorted(ready, key=lambda result: result.name in self._backoffs)

    def _deliver(self, ready: list[Result]) -> None:
        sending: Result | None = None
        destination = self._destination
        judge = partial(self._records.judge, destination.calling, str(destination.peer))
        try:
            node = self._node
            with destination.connected(node.certificates, judge, node.tokens) as link:
                # Connecting may have taken long, and meanwhile other results may be pending.
                while self._is_open and ((ready := self._ready()) or _awaits_report(link)):
                    for sending in ready:
                        if self._is_open:
                            self._send(link, sending)
        except NetworkError as error:
            self._node.audit.failed(destination.calling, destination.peer, error)
            self._note_break(sending, str(error))

    def _note_break(self, sending: Result | None, reason: str) -> None:
        """Handle a failed or broken association.

        The first time, the whole destination waits. If it breaks off at the same result again, only
        that result waits.
        """
        failed_before = sending is not None and sending.name in self._backoffs
        backoff = self._defer(sending, reason) if sending else None
        self._note(self._ready(), reason)
        if sending and backoff and failed_before:
            self._node.emit(NotSent(sending.name, reason, backoff.seconds))
        else:
            self._wait(reason)

    def _defer(self, result: Result, reason: str) -> Backoff:
        """Retry a result after a pause, and after all others."""
        backoff = self._backoffs.setdefault(result.name, sending_backoff())
        backoff.lengthen()
        self._note([result], reason)
        return backoff

    def _send(self, link: Transmission | WebLink, result: Result) -> None:
        """Send objects that the destination lacks. Raises NetworkError if the association broke."""
        began, since = self._node.clock(), time.monotonic()
        try:
            count, objects = self._objects_of(result)
        except RefusedError as error:
            self._refuse(result, str(error))
            return
        outcome = self._try_each(link, result, objects, is_begun=len(objects) < count)
        if outcome.refusals:
            self._refuse(result, refusals_of(outcome.refusals, count))
        if outcome.sent < len(objects):
            return
        if self._destination.commits and isinstance(link, Transmission):
            self._request_commitment(link, result, began, outcome.remark)
            return
        self._backoff.reset()
        self._backoffs.pop(result.name, None)
        seconds = time.monotonic() - since  # the other clock may have been set meanwhile
        self._records.finish(result, count, began, seconds, outcome.remark)

    def _request_commitment(
        self, link: Transmission, result: Result, began: float, remark: str
    ) -> None:
        """Request storage commitment, the next time after a pause. Raises NetworkError."""
        try:
            self._records.request(link, result, began, remark)
        except RefusedError as error:
            self._refuse(result, str(error))
            return
        self._backoff.reset()
        self._backoffs.setdefault(result.name, sending_backoff()).lengthen()

    def _objects_of(self, result: Result) -> "tuple[int, list[_Object]]":
        """Return how many objects a result has, and those to send, the least tried ones first.

        An object at which the destination always breaks off then delays no other. Raises
        RefusedError.
        """
        confirmed = {*self._store.confirmed(result.name)}
        attempts = self._store.attempts(result.name)
        files = [*result.files()]
        objects = list[_Object]()
        for file in files:
            try:
                instance, trouble = identity_of(file)[1], ""
            except RefusedError as error:
                instance, trouble = file.name, str(error)
            if instance not in confirmed:
                attempt = attempts.get(instance, Attempt())
                objects.append(_Object(file, instance, trouble, attempt))
        return len(files), sorted(objects, key=lambda one: one.attempt.tries)

    def _try_each(
        self,
        link: Transmission | WebLink,
        result: Result,
        objects: "Sequence[_Object]",
        *,
        is_begun: bool,
    ) -> "_Outcome":
        """Send objects, also after one is refused. is_begun: whether any was confirmed before."""
        outcome, in_a_row, waiting = _Outcome(), 0, deque(objects)
        if objects and not is_begun:
            self._records.audit(result, begins=True)
        begun = {one.instance: Attempt(one.attempt.tries + 1, is_open=True) for one in objects}
        self._store.put_attempts(result.name, begun)
        try:
            while waiting and self._is_open and in_a_row < MOST_REFUSALS:
                one = waiting.popleft()
                try:
                    warning = self._send_object(link, result, one)
                except (RefusedError, UnconfirmedError) as error:
                    outcome.refusals[one.file.name] = str(error)
                    in_a_row += 1
                    continue
                if not (is_begun or outcome.sent):
                    self._keep(result)
                in_a_row = 0
                outcome.sent += 1
                outcome.warnings[warning] += bool(warning)
        finally:
            unsent = {one.instance: one.attempt for one in waiting}
            self._store.put_attempts(result.name, unsent, is_durable=False)
        return outcome

    def _send_object(self, link: Transmission | WebLink, result: Result, one: "_Object") -> str:
        """Send an object; return the destination's warning, or "". Raises NetworkError."""
        try:
            if one.trouble:
                raise RefusedError(one.trouble)
            warning = link.store(one.file, was_sent=one.attempt.is_open)
        except RefusedError:
            refused = replace(one.attempt, tries=one.attempt.tries + 1)
            self._store.put_attempts(result.name, {one.instance: refused}, is_durable=False)
            raise
        self._store.confirm(result.name, one.instance)
        return warning

    def _refuse(self, result: Result, reason: str) -> None:
        """Defer a result that the destination refuses, whole or in part, and report why."""
        backoff = self._defer(result, reason)
        self._node.emit(NotSent(result.name, reason, backoff.seconds))

    def _keep(self, result: Result) -> None:
        """Put a result back whose series grew while its first object was sent: the rest follows."""
        with self._store.alone():
            record = self._store.study(str(result.study))
            if record and all(one.place != result.series.place for one in record.series):
                series = sorted((result.series, *record.series), key=lambda one: one.round)
                self._store.put(replace(record, series=tuple(series)))

    def _abandon(self, result: Result) -> None:
        reason = result.series.reason or "it was never reached"
        self._records.change(result, state="undelivered", reason=reason)
        self._records.audit(result, reason)
        self._node.emit(SendingAbandoned(result.name, reason))

    def _note(self, results: Iterable[Result], reason: str) -> None:
        """Store why results were not sent, unless that is stored already."""
        for result in results:
            if result.series.reason != reason and self._store.study(str(result.study)):
                self._records.change(result, reason=reason)


def _awaits_report(link: Transmission | WebLink) -> bool:
    """Wait a moment for a report of storage commitment; return whether one may still come there.

    A peer that closes the association meanwhile reports on another one.
    """
    try:
        return isinstance(link, Transmission) and link.awaits_report()
    except NetworkError:
        return False
