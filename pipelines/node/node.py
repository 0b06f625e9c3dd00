"""The node at work: associations come in threads of their own, all else is a step done in turn."""

import errno
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...io.dicom_network.errors import CertificateError
from ...io.dicom_network.limits import DEFAULT_LIMITS, Limits
from ...io.dicom_network.listener import Listener
from ...io.dicom_network.tls import Certificates
from ..errors import ConfigError
from ..jobs.queue.location import QueuePlace
from ..jobs.queue.queue import QueueLink
from .arriving import Arriving
from .attempts import Attempts
from .commitment import OwedReports, Reporter
from .delivery import Deliveries
from .emptying import Emptier
from .events import NodeEvent, Trouble
from .folder import make_folder, sole_owner
from .inbox import Inbox
from .ledger import DAMAGED, NAME, Ledger, open_ledger
from .outcomes import QueueExchange
from .reception import Reception
from .routes import Route
from .study_name import StudyName
from .submission import Submitter


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is started with; its routes may change.

    folder: of all that it keeps. queue: where jobs go. address, port: where it listens. limits: of
    peers. most: bytes of its inbox. reserve: bytes that stay free on its disk. certificates: for
    TLS, or None.
    """

    folder: Path
    queue: QueuePlace
    address: str = "127.0.0.1"
    port: int = 11112
    limits: Limits = DEFAULT_LIMITS
    most: int = 200 << 30
    reserve: int = 1 << 30
    certificates: Certificates | None = None


@contextmanager
def open_node(
    settings: NodeSettings,
    routes: Mapping[str, Route],
    tell: Callable[[NodeEvent], None],
    clock: Callable[[], float] = time.time,
) -> Generator["DicomNode"]:
    """A node that owns its folder, its port and all threads for the block.

    tell: called by any thread. clock: seconds since 1970. Raises ConfigError or OSError.
    """
    make_folder(settings.folder)
    with sole_owner(settings.folder), open_ledger(settings.folder) as ledger:
        node = DicomNode(settings, routes, ledger, tell, clock)
        with node.listener, closing(node):
            yield node


class DicomNode:
    """A node that listens, made by `open_node`."""

    def __init__(
        self,
        settings: NodeSettings,
        routes: Mapping[str, Route],
        ledger: Ledger,
        tell: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        if ledger.damaged:
            tell(Trouble(_damage(settings.folder, ledger.damaged)))
        self._settings, self._routes = settings, routes
        self._link = QueueLink(settings.queue)
        self._attempts = Attempts(tell, failed=self._link.close)
        self._exchange = QueueExchange(ledger, self._link, tell, clock)
        results = settings.folder / "results"
        self._deliveries = Deliveries(
            ledger, results, routes, settings.certificates, tell, self._exchange.sent, clock
        )
        known = [StudyName.parse(record.study) for record in ledger.studies()]
        inbox = Inbox(settings.folder, settings.most, settings.reserve, known)
        self._arriving = Arriving(_unseen(inbox), clock)
        owed = OwedReports(settings.folder, clock)
        self._reporter = Reporter(owed, inbox, routes, settings.certificates, tell, clock)
        self._reception = Reception(routes, inbox, self._arriving, owed, tell)
        self._submitter = Submitter(inbox, ledger, self._arriving, results, tell, clock)
        self._emptier = Emptier(inbox, ledger, self._arriving, results, tell, clock)
        self._emptier.finish()
        self.listener = self._opened_listener()

    def close(self) -> None:
        """Stop sending, and leave the queue."""
        self._deliveries.close()
        self._reporter.close()
        self._link.close()

    @property
    def port(self) -> int:
        """At which it listens."""
        return self.listener.port

    def use(self, routes: Mapping[str, Route]) -> None:
        """Go on with other routes, and with certificates as they are now. Raises ConfigError."""
        self.listener.use_tls(self._server_context())
        self._routes = self._reception.routes = self._deliveries.routes = routes
        self._reporter.routes = routes
        self._attempts.forget()  # some may have been of routes that are no more
        for record in self.ledger.present():
            if record.left_out or record.held:
                self._arriving.changed(StudyName.parse(record.study))

    def step(self) -> None:
        """Each thing that is due, once; what goes wrong is told, and tried again."""
        attempt = self._attempts.attempt
        self._submit()
        attempt("outcomes", self._exchange.note)
        attempt("given up", self._deliveries.resume)
        self._deliveries.wake()
        self._reporter.wake()
        attempt("sent", self._exchange.tell_sent)
        attempt("emptying", lambda: self._emptier.step(self._routes))

    def _submit(self) -> None:
        complete = {**self._submitter.due(), **self._arriving.complete(self._quiet)}
        by_route: dict[str, dict[StudyName, float]] = defaultdict(dict)
        for study, since in complete.items():
            if study.route in self._routes:
                by_route[study.route][study] = since
        for title, studies in by_route.items():
            self._attempts.attempt(f"route {title}", partial(self._queue_up, title, studies))

    def _queue_up(self, title: str, studies: Mapping[StudyName, float]) -> None:
        self._submitter.submit(self._routes[title], studies, self._link.queue())
        self._arriving.looked_at(studies)

    def _quiet(self, study: StudyName) -> float | None:
        route = self._routes.get(study.route)
        return route.quiet if route else None

    def _opened_listener(self) -> Listener:
        settings, context = self._settings, self._server_context()
        try:
            return Listener(
                settings.address,
                settings.port,
                self._reception,
                settings.limits,
                self._reception.turned_away,
                context,
            )
        except OSError as error:
            raise ConfigError(
                f"The node cannot listen at {settings.address}:{settings.port}: {_why(error)}."
            ) from error

    def _server_context(self) -> ssl.SSLContext | None:
        certificates = self._settings.certificates
        try:
            return certificates.server_context() if certificates else None
        except CertificateError as error:
            raise ConfigError(f"{error}.") from error


def _damage(folder: Path, lines: int) -> str:
    return (
        f"{folder / NAME} is damaged: {lines} of its lines cannot be read. What they told is lost, "
        "and studies may be translated and sent again, with the same identifiers; see to the disk. "
        f"The file as it was is kept as {DAMAGED}."
    )


def _why(error: OSError) -> str:
    """Why nobody can listen at a place, and what to do about it."""
    match error.errno:
        case errno.EADDRINUSE:
            return "another program does; stop it, or choose another with setting port"
        case errno.EACCES:
            return (
                "ports below 1024 are for root, and for services with "
                "AmbientCapabilities=CAP_NET_BIND_SERVICE; choose another with setting port"
            )
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; choose one of its own with setting address"
        case _:
            why = (error.strerror or str(error)).partition(" (")[0]
            return f"the system says: {why}; choose another with setting address or setting port"


def _unseen(inbox: Inbox) -> dict[StudyName, float]:
    """Studies in the inbox that may hold what was not looked at, by their last change."""
    return {study: inbox.folder(study).stat().st_mtime for study in inbox.studies()}
