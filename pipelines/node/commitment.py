"""Storage commitment: each report stays on disk until its requester has accepted it.

It is first sent on the requesting association. Many requesters, Orthanc for one, close that at once
and expect the report on a new association (PS3.4, J.3.3). The node opens one only to a destination
with the requester's AE title that a route names.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...engine.decoding import FieldError, decode_known, encode, parse
from ...io.dicom_network.errors import NetworkError, RefusedError
from ...io.dicom_network.sending import reporting_to
from ...io.dicom_network.storage_commitment import Commitment, Referenced
from ...io.dicom_network.tls import Certificates
from ...io.files.atomic import whole_file
from ...io.files.regular import read_regular
from .delivery import Backoff, Destination, PeriodicThread, sending_backoff
from .events import NodeEvent, NotReported, NotSent, Reported, Trouble
from .inbox import Inbox
from .routes import Route
from .study_name import StudyName

MOST = 1000
"""Largest number of pending reports; further requests are refused."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for storage commitment.

    route: called AE title. title: its own. moment: when, in seconds since 1970.
    """

    route: str
    title: str
    moment: float


@dataclass(frozen=True, slots=True)
class OwedReport:
    """asker: who waits for it. commitment: what it asked about."""

    asker: Asker
    commitment: Commitment

    @property
    def name(self) -> str:
        """Of its file; the same for what is asked twice."""
        words = (self.asker.route, self.asker.title, self.commitment.transaction)
        return hashlib.sha256("\n".join(words).encode()).hexdigest()[:32] + ".json"


class OwedReports:
    """The folder of reports that nobody has taken yet; any thread may call.

    clock: seconds since 1970. damaged: files in it that cannot be read.
    """

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder / "reports", clock
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._offered: dict[str, Asker] = {}
        self._due: dict[str, Asker] = {}
        self.damaged: list[Path] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                self._due[path.name] = self.read(path.name).asker
            except FieldError:
                self.damaged.append(path)

    def offer(self, route: str, title: str, asked: Commitment) -> str | None:
        """Keep a report that its asker may take on the association that it has; its name.

        None if there are too many. Raises WriteError.
        """
        report = OwedReport(Asker(route, title, self._clock()), asked)
        with self._lock:
            if len(self._offered) + len(self._due) >= MOST:
                return None
            with whole_file(self._folder / report.name) as part:
                part.chmod(0o600)
                part.write_text(json.dumps(encode(report)))
            self._due.pop(report.name, None)
            self._offered[report.name] = report.asker
        return report.name

    def ended(self, name: str) -> None:
        """The association on which it was offered is over; if it was not taken, it is due now."""
        with self._lock:
            asker = self._offered.pop(name, None)
            if asker and (self._folder / name).exists():
                self._due[name] = asker

    def settle(self, name: str) -> None:
        """It was taken, or is given up."""
        with self._lock:
            self._offered.pop(name, None)
            self._due.pop(name, None)
            with suppress(OSError):  # else it is offered once more after a restart
                (self._folder / name).unlink()

    def due(self) -> Mapping[str, Asker]:
        """Who waits for another association, by name, the first to ask first."""
        with self._lock:
            return dict(sorted(self._due.items(), key=lambda item: item[1].moment))

    def read(self, name: str) -> OwedReport:
        """Raises FieldError or OSError."""
        return decode_known(OwedReport, parse(read_regular(self._folder / name)))


def objects_in_inbox(inbox: Inbox, route: str, asked: Commitment) -> Mapping[Referenced, StudyName]:
    """Return the requested objects that are in the inbox, with their studies."""
    found = inbox.holding(route, {one.instance for one in asked.referenced})
    return {one: found[one.instance] for one in asked.referenced if one.instance in found}


class ReportSender:
    """Sender of reports that were not accepted on the requesting association, one by one.

    routes: current routes. certificates: for TLS, or None.
    """

    def __init__(
        self,
        owed: OwedReports,
        inbox: Inbox,
        routes: Mapping[str, Route],
        certificates: Certificates | None,
        emit: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self.routes = routes
        self._owed, self._inbox, self._certificates = owed, inbox, certificates
        self._emit, self._clock = emit, clock
        self._backoffs: dict[Destination, Backoff] = {}
        self._thread = PeriodicThread("reports", self._send_pending, emit)
        for path in owed.damaged:
            self._emit(Trouble(f"{path} is damaged; a report of storage commitment is lost"))

    def wake(self) -> None:
        """Check for pending reports now."""
        if self._owed.due():
            self._thread.wake()

    def close(self) -> None:
        """Start no other report, and wait up to 10 s for the one in flight."""
        self._thread.stop()
        self._thread.join(10.0)

    def _send_pending(self) -> bool:
        for name, asker in self._owed.due().items():
            if self._thread.is_open:
                self._try(name, asker)
        return False

    def _try(self, name: str, asker: Asker) -> None:
        route = self.routes.get(asker.route)
        destination = self._destination(route, asker.title) if route else None
        if route is None or destination is None:
            self._give_up(name, asker, "it left before that, and is no route's destination")
            return
        backoff = self._backoffs.setdefault(destination, sending_backoff())
        if not backoff.is_over:
            return
        try:
            self._report(name, asker, destination)
        except FieldError as error:
            self._give_up(name, asker, f"its record is damaged: {error}")
        except (NetworkError, OSError) as error:
            if self._clock() - asker.moment > route.retry:
                self._give_up(name, asker, str(error))
                return
            backoff.lengthen()
            what = f"report of storage commitment to {destination.peer}"
            self._emit(NotSent(what, str(error), backoff.seconds))
        else:
            del self._backoffs[destination]

    def _destination(self, called: Route, title: str) -> Destination | None:
        """Return the destination with a title: the called route's, or else another route's."""
        for route in (called, *self.routes.values()):
            if route.destination.title == title:
                return Destination(route.destination, called.title, route.uses_tls)
        return None

    def _report(self, name: str, asker: Asker, destination: Destination) -> None:
        """Raises NetworkError or OSError if a retry may help, or FieldError."""
        asked = self._owed.read(name).commitment
        peer, tls = destination.peer, destination.tls_context(self._certificates)
        with reporting_to(peer, destination.calling, tls) as link:
            safe = objects_in_inbox(self._inbox, asker.route, asked)  # as late as possible
            try:
                link.report(asked, list(safe))
            except RefusedError as error:
                self._give_up(name, asker, str(error))
                return
        self._owed.settle(name)
        self._emit(Reported(asker.route, str(peer), len(safe), len(asked.referenced)))

    def _give_up(self, name: str, asker: Asker, reason: str) -> None:
        self._owed.settle(name)
        self._emit(NotReported(asker.route, asker.title, reason))
