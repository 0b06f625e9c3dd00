"""Results to their destinations: a thread for each, an object at a time, each confirmed on disk."""

import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Self

from ...io.dicom_network.errors import NetworkError, RefusedError
from ...io.dicom_network.sending import Peer, Transmission, instance_of, sending_to
from ...io.dicom_network.tls import Certificates
from .attempts import Backoff, Rounds
from .events import GaveUp, NodeEvent, NotSent, Resumed, Sent
from .inbox import SUFFIX
from .ledger import Ledger, SeriesRecord, StudyRecord
from .routes import Route
from .study_name import StudyName
from .submission import output_of

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds between tries: they double from the one to the other."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where results go, as one association reaches it.

    peer: who takes them. calling: our AE title. uses_tls: whether over TLS.
    """

    peer: Peer
    calling: str
    uses_tls: bool

    @classmethod
    def of(cls, route: Route) -> Self:
        """Where a route's results go."""
        return cls(route.destination, route.title, route.uses_tls)


@dataclass(frozen=True, slots=True)
class Result:
    """A result that is to be sent.

    study, series: what it was made of. route: whose it is. folders: its files, of each channel.
    """

    study: StudyName
    series: SeriesRecord
    route: Route
    folders: tuple[Path, ...]

    @property
    def name(self) -> str:
        """Study, round and label."""
        return f"{self.study}/{self.series.place}"


def results_to_send(
    records: Iterable[StudyRecord], routes: Mapping[str, Route], results: Path
) -> dict[Destination, list[Result]]:
    """What is due, by destination, the oldest first."""
    due: dict[Destination, list[Result]] = {}
    for record in records:
        study = StudyName.parse(record.study)
        route = routes.get(study.route)
        if route is None:
            continue
        destination = Destination.of(route)
        for one in record.series:
            if one.state == "sending":
                output = output_of(results, study.route, study.day) / study.name
                folders = tuple(output / place for place in one.places)
                due.setdefault(destination, []).append(Result(study, one, route, folders))
    for found in due.values():
        found.sort(key=lambda result: result.series.done)
    return due


def resume_sending(
    ledger: Ledger, routes: Mapping[str, Route], now: float, tell: Callable[[NodeEvent], None]
) -> None:
    """Have results sent after all that were given up, if their route says longer by now.

    now: seconds since 1970. Raises OSError.
    """
    for record in ledger.present():
        route = routes.get(StudyName.parse(record.study).route)
        if route is None:
            continue
        for one in record.series:
            if one.state == "undelivered" and now - one.done <= route.retry:
                again = replace(one, state="sending")
                ledger.change(record.study, lambda known, again=again: known.with_series(again))
                tell(Resumed(f"{record.study}/{one.place}"))


class Deliveries:
    """A deliverer for each destination, from the first result on that is due there.

    results: the folder of results. routes: as they are now. certificates: for TLS, or None. sent:
    told of each job whose result is sent, and from when to when, by any thread.
    """

    def __init__(
        self,
        ledger: Ledger,
        results: Path,
        routes: Mapping[str, Route],
        certificates: Certificates | None,
        tell: Callable[[NodeEvent], None],
        sent: Callable[[str, tuple[float, float]], None],
        clock: Callable[[], float],
    ) -> None:
        self.routes = routes
        self._ledger, self._results, self._certificates = ledger, results, certificates
        self._tell, self._sent, self._clock = tell, sent, clock
        self._deliverers: dict[Destination, Deliverer] = {}

    def wake(self) -> None:
        """Something new may be due."""
        for destination in self._due():
            if destination not in self._deliverers:
                self._deliverers[destination] = self._deliverer(destination)
            self._deliverers[destination].rounds.wake()

    def resume(self) -> None:
        """Take up what was given up, where a route says longer by now. Raises OSError."""
        resume_sending(self._ledger, self.routes, self._clock(), self._tell)

    def close(self) -> None:
        """Begin no other object, and wait a little for those under way."""
        for deliverer in self._deliverers.values():
            deliverer.rounds.stop()
        for deliverer in self._deliverers.values():
            deliverer.rounds.join(10.0)

    def _due(self) -> dict[Destination, list[Result]]:
        return results_to_send(self._ledger.present(), self.routes, self._results)

    def _deliverer(self, destination: Destination) -> "Deliverer":
        def due() -> list[Result]:
            return self._due().get(destination, [])

        def secured() -> ssl.SSLContext | None:
            certificates = self._certificates if destination.uses_tls else None
            return certificates.client_context() if certificates else None

        return Deliverer(
            destination, due, self._ledger, self._tell, secured, self._sent, self._clock
        )


class Deliverer:
    """Sends to one destination.

    due: what is to be sent there now. secured: the context of TLS for it, or None. sent: told of
    each job whose result is sent, and from when to when. rounds: the thread in which it does so.
    """

    def __init__(
        self,
        destination: Destination,
        due: Callable[[], list[Result]],
        ledger: Ledger,
        tell: Callable[[NodeEvent], None],
        secured: Callable[[], ssl.SSLContext | None],
        sent: Callable[[str, tuple[float, float]], None],
        clock: Callable[[], float],
    ) -> None:
        self._destination = destination
        self._sent = sent
        self._due, self._ledger, self._tell = due, ledger, tell
        self._secured, self._clock = secured, clock
        self._backoff = sending_backoff()
        self._backoffs: dict[str, Backoff] = {}
        self.rounds = Rounds("delivery", self._round, tell)

    def _round(self) -> bool:
        try:
            if self._backoff.is_over and (ready := self._ready()):
                self._deliver(ready)
                return True
        except OSError as error:  # the ledger has no room
            if self._is_open:
                self._hold_on(f"{error.filename or 'a file'} cannot be used ({error.strerror})")
        return False

    @property
    def _is_open(self) -> bool:
        return self.rounds.is_open

    def _hold_on(self, reason: str) -> None:
        self._backoff.lengthen()
        self._tell(NotSent(str(self._destination.peer), reason, self._backoff.seconds))

    def _ready(self) -> list[Result]:
        """What is due and need not wait, what failed before behind all else.

        What was tried for too long is given up.
        """
        ready: list[Result] = []
        for result in self._due():
            if self._clock() - result.series.done > result.route.retry:
                self._give_up(result)
            elif self._backoffs.get(result.name, sending_backoff()).is_over:
                ready.append(result)
        return sorted(ready, key=lambda result: result.name in self._backoffs)

    def _deliver(self, ready: list[Result]) -> None:
        destination = self._destination
        sending: Result | None = None
        try:
            with sending_to(destination.peer, destination.calling, self._secured()) as link:
                # Connecting may have taken long, and meanwhile other results may have become due.
                while self._is_open and (ready := self._ready()):
                    for sending in ready:
                        if self._is_open:
                            self._send(link, sending)
        except NetworkError as error:
            self._broke_off(sending, str(error))

    def _broke_off(self, sending: Result | None, reason: str) -> None:
        """No association came about, or one ended at a result.

        The first time, that tells of the destination, which all wait for. Where it breaks off at
        the same result again, that one waits alone.
        """
        failed_before = sending is not None and sending.name in self._backoffs
        backoff = self._put_off(sending, reason) if sending else None
        self._note(self._ready(), reason)
        if sending and backoff and failed_before:
            self._tell(NotSent(sending.name, reason, backoff.seconds))
        else:
            self._hold_on(reason)

    def _put_off(self, result: Result, reason: str) -> Backoff:
        """Try a result again after a pause, and after all others."""
        backoff = self._backoffs.setdefault(result.name, sending_backoff())
        backoff.lengthen()
        self._note([result], reason)
        return backoff

    def _send(self, link: Transmission, result: Result) -> None:
        """Send what its destination does not have yet. Raises NetworkError, also for all others."""
        began, since = self._clock(), monotonic()
        confirmed = self._ledger.confirmed(result.name)
        try:
            files = [*_files_of(result)]
            for file in files:
                if not self._is_open:
                    return
                instance = instance_of(file)
                if instance not in confirmed:
                    link.store(file)
                    self._ledger.confirm(result.name, instance)
        except RefusedError as error:
            backoff = self._put_off(result, str(error))
            self._tell(NotSent(result.name, str(error), backoff.seconds))
            return
        self._backoff = sending_backoff()
        self._backoffs.pop(result.name, None)
        seconds = monotonic() - since  # as the clock of moments may have been set meanwhile
        self._change(result, state="sent", reason="", begun=began, sent=self._clock())
        self._ledger.forget_confirmations(result.name)
        self._sent(result.series.job, (began, began + seconds))
        self._tell(Sent(result.name, str(self._destination.peer), len(files), seconds))

    def _give_up(self, result: Result) -> None:
        reason = result.series.reason or "it was never reached"
        self._change(result, state="undelivered", reason=reason)
        self._tell(GaveUp(result.name, reason))

    def _note(self, results: Iterable[Result], reason: str) -> None:
        """Keep why something was not sent, where it is not known yet."""
        for result in results:
            if result.series.reason != reason and self._ledger.study(str(result.study)):
                self._change(result, reason=reason)

    def _change(self, result: Result, **fields: object) -> None:
        def changed(record: StudyRecord) -> StudyRecord:
            now = next((s for s in record.series if s.place == result.series.place), None)
            return record.with_series(replace(now, **fields)) if now else record

        self._ledger.change(str(result.study), changed)


def _files_of(result: Result) -> Iterator[Path]:
    """In order. Raises RefusedError."""
    for folder in result.folders:
        files = sorted(folder.glob(f"*{SUFFIX}"))
        if not files:
            raise RefusedError("the result is not on disk any more")
        yield from files


def sending_backoff() -> Backoff:
    """Between tries to reach a destination."""
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE)
