"""The DICOM node: associations run in threads of their own, all else in steps of one loop."""

import errno
import shutil
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from ...engine.errors import EngineError
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import load_model
from ...io.dicom_network.errors import CertificateError, NetworkError
from ...io.dicom_network.limits import DEFAULT_LIMITS, Limits
from ...io.dicom_network.listener import Listener
from ...io.dicom_network.querying import Query
from ...io.dicom_network.sending import Transmission
from ...io.dicom_network.syslog import SyslogServer
from ...io.dicom_network.tls import Certificates
from ...io.dicom_network.web import WebLink, WebPeer
from ...io.errors import ScanError
from ..cycle import load_reverse_model
from ..decisions import fitted
from ..errors import ConfigError, PipelineError, SettingsError, check_installed
from ..jobs.queue.location import QueuePlace
from ..jobs.queue.queue import QueueLink
from ..results.record_folder import found_record
from ..retries import Backoff, Once, kind_of
from .audit import AuditTrail, facts_of
from .audit_messages import deleted
from .audit_sender import audit_trail
from .commitment import PendingReports, ReportSender
from .context import NodeContext
from .delivery import Deliveries, Destination
from .events import Emptied, NodeEvent, Trouble
from .fetching import Fetcher, connected
from .folder import make_folder, sole_owner
from .inbox import Inbox
from .reception import IncomingStudies, Reception
from .records import StudyName, StudyRecord, digest_of, output_of
from .routes import Route
from .sending_records import SendingRecords
from .store import NodeStore, open_store
from .submission import QueueSync, Submitter

_TROUBLES = (PipelineError, ScanError, EngineError, OSError)
AGAIN_SECONDS = 5.0
"""Seconds after a failure until the next try."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of a node, without its routes, which may change. folder: folder of its inbox,
    results and records. queue: receives the jobs. address, port: where it listens. limits: limits
    for peers. most: maximum bytes of its inbox. reserve: bytes that stay free on its disk.
    certificates: for TLS, or None. audit: folder of the audit trail, or None. syslog: server that
    the trail is sent to, or None.
    """

    folder: Path
    queue: QueuePlace
    address: str = "127.0.0.1"
    port: int = 11112
    limits: Limits = DEFAULT_LIMITS
    most: int = 200 << 30
    reserve: int = 1 << 30
    certificates: Certificates | None = None
    audit: Path | None = None
    syslog: SyslogServer | None = None


@contextmanager
def open_node(
    settings: NodeSettings,
    routes: Mapping[str, Route],
    emit: Callable[[NodeEvent], None],
    clock: Callable[[], float] = time.time,
) -> Generator["DicomNode"]:
    """Open a node that owns its folder, its port and all threads for the block.

    emit: called by any thread. clock: seconds since 1970. Raises ConfigError or OSError.
    """
    make_folder(settings.folder)
    with (
        sole_owner(settings.folder),
        open_store(settings.folder, clock()) as store,
        audit_trail(
            settings.audit, settings.syslog, settings.certificates, routes, emit, clock
        ) as audit,
    ):
        node = DicomNode(settings, routes, store, emit, clock, audit)
        with node.listener, closing(node):
            yield node


class DicomNode:
    """Listening node, created by `open_node`."""

    def __init__(
        self,
        settings: NodeSettings,
        routes: Mapping[str, Route],
        store: NodeStore,
        emit: Callable[[NodeEvent], None],
        clock: Callable[[], float],
        audit: AuditTrail,
    ) -> None:
        self.store = store
        for problem in store.problems:
            emit(Trouble(problem))
        self._settings = settings
        results, certificates = settings.folder / "results", settings.certificates
        self._context = node = NodeContext(
            store, results, emit, clock, certificates, routes, audit=audit
        )
        self._link = QueueLink(settings.queue)
        self._retries = Retries(emit, failed=self._link.close)
        self._sync = QueueSync(node, self._link)
        records = SendingRecords(node, self._sync.sent)
        self._deliveries = Deliveries(node, records)
        volumes = _volumes(routes)
        self._inbox = Inbox(settings.folder, settings.most, settings.reserve, store, volumes)
        self._incoming = IncomingStudies(_unseen(self._inbox), clock)
        pending = PendingReports(node)
        self._reports = ReportSender(node, self._inbox, pending)
        self._reception = Reception(node, self._inbox, self._incoming, pending, records)
        self._submitter = Submitter(node, self._inbox, self._incoming)
        self._cleaner = InboxCleaner(node, self._inbox, self._incoming)
        self._cleaner.finish()
        self._fetchers = self._opened_fetchers()
        self.listener = self._opened_listener()

    def close(self) -> None:
        """Stop sending, and disconnect from the queue."""
        for fetcher in self._fetchers.values():
            fetcher.thread.close()
        self._deliveries.close()
        self._reports.close()
        self._reception.close()
        self._link.close()

    @property
    def port(self) -> int:
        """Port at which it listens."""
        return self.listener.port

    def use(self, routes: Mapping[str, Route]) -> None:
        """Replace the routes, and read the certificates again. Raises ConfigError, or an error of
        a route's model.
        """
        self._inbox.volumes = _volumes(routes)
        self.listener.use_tls(self._server_context())
        self._context.routes = routes
        for fetcher in self._fetchers.values():
            fetcher.thread.close()
        self._fetchers = self._opened_fetchers()
        self._retries.forget()  # some may belong to removed routes
        for record in self.store.present():
            if record.left_out or record.held:
                self._incoming.changed(StudyName.parse(record.study))

    def step(self) -> None:
        """Do all pending work once; failures are reported and retried."""
        attempt = self._retries.attempt
        self._submit()
        attempt("outcomes", self._sync.note)
        attempt("given up", self._deliveries.resume)
        self._deliveries.wake()
        for fetcher in self._fetchers.values():
            fetcher.thread.wake()
        self._reports.wake()
        attempt("sent", self._sync.report_sent)
        attempt("emptying", self._cleaner.step)

    def _submit(self) -> None:
        complete = {**self._submitter.due(), **self._incoming.complete(self._quiet)}
        by_route: dict[str, dict[StudyName, float]] = defaultdict(dict)
        for study, since in complete.items():
            if study.route in self._context.routes:
                by_route[study.route][study] = since
        for title, studies in by_route.items():
            self._retries.attempt(f"route {title}", partial(self._queue_up, title, studies))

    def _queue_up(self, title: str, studies: Mapping[StudyName, float]) -> None:
        self._submitter.submit(self._context.routes[title], studies, self._link.queue())
        self._incoming.examined(studies)

    def _quiet(self, study: StudyName) -> float | None:
        route = self._context.routes.get(study.route)
        return route.quiet if route else None

    def _opened_fetchers(self) -> dict[str, Fetcher]:
        return {
            title: Fetcher(self._context, self._inbox, self._reception, title, route.source)
            for title, route in self._context.routes.items()
            if route.source
        }

    def _opened_listener(self) -> Listener:
        settings, context = self._settings, self._server_context()
        try:
            return Listener(
                settings.address,
                settings.port,
                self._reception,
                settings.limits,
                self._reception.on_reject,
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


def _volumes(routes: Mapping[str, Route]) -> dict[str, int]:
    """Return the number of results and maps that a scan of each route becomes."""
    return {title: route.request.volumes() for title, route in routes.items()}


def _why(error: OSError) -> str:
    """Return why listening failed, and what to do about it."""
    match error.errno:
        case errno.EADDRINUSE:
            return "another program uses it; stop that, or choose another with setting port"
        case errno.EACCES:
            return (
                "ports below 1024 are for root, and for services with "
                "AmbientCapabilities=CAP_NET_BIND_SERVICE; choose another with setting port"
            )
        case errno.EADDRNOTAVAIL:
            return "this machine has no such address; choose one of its own with setting address"
        case _:
            why = (error.strerror or str(error)).partition(" (")[0]
            return f"the system reports: {why}; choose another with setting address or setting port"


def _unseen(inbox: Inbox) -> dict[StudyName, float]:
    """Return studies in the inbox that may have unexamined objects, with their last change."""
    return {study: inbox.folder(study).stat().st_mtime for study in inbox.studies()}


class Retries:
    """Repeated actions that may fail, by name. failed: called after each failure."""

    def __init__(self, emit: Callable[[NodeEvent], None], failed: Callable[[], None]) -> None:
        self._emit, self._failed = emit, failed
        self._troubles, self._pauses = Once(), dict[str, Backoff]()

    def attempt(self, what: str, do: Callable[[], None]) -> None:
        """Run an action; if it fails, report that once and retry after AGAIN_SECONDS."""
        pause = self._pauses.setdefault(what, Backoff(AGAIN_SECONDS, AGAIN_SECONDS))
        if not pause.is_over:
            return
        try:
            do()
        except _TROUBLES as error:
            self._failed()
            if self._troubles.is_new(kind_of(error), what):
                self._emit(Trouble(str(error)))
            pause.lengthen()
        else:
            self._troubles.passed(what)
            pause.reset()

    def forget(self) -> None:
        """Retry everything now, and report every failure again."""
        self._troubles, self._pauses = Once(), {}


class InboxCleaner:
    """Removal of studies some time after all of their results were confirmed.

    Their records stay in the store.
    """

    def __init__(self, node: NodeContext, inbox: Inbox, incoming: IncomingStudies) -> None:
        self._node, self._inbox, self._incoming = node, inbox, incoming
        self._store = node.store

    def finish(self) -> None:
        """Complete removals that a kill interrupted."""
        present = {record.study for record in self._store.present()}
        for name in self._store.names():
            if name not in present:
                self._remove_results(StudyName.parse(name))

    def step(self) -> None:
        """Remove the studies whose time is over. Raises OSError."""
        now = self._node.clock()
        for record in self._store.present():
            study = StudyName.parse(record.study)
            if record.is_pending:
                self._inbox.expect(study)
            else:
                self._inbox.settle(record)
            route = self._node.routes.get(study.route)
            if route is None or now < _removal_time(record, route):
                continue
            if not self._incoming.is_busy(study):
                self._remove(study, record)

    def _remove(self, study: StudyName, record: StudyRecord) -> None:
        objects = self._inbox.objects(study)
        if objects and digest_of(objects) != record.objects:
            return  # new objects arrived meanwhile
        audit = self._node.audit
        facts = facts_of([self._inbox.folder(study)]) if audit.is_kept else None
        if self._inbox.remove(study, objects):
            if facts:
                audit.record(deleted(study.route, facts))
            self._store.change(record.study, lambda now: replace(now, emptied=self._node.clock()))
            self._remove_results(study)
            self._node.emit(Emptied(record.study))

    def _remove_results(self, study: StudyName) -> None:
        output = output_of(self._node.results, study.route, study.day)
        if not output.is_dir():
            return
        shutil.rmtree(output / study.name, ignore_errors=True)
        yesterday = f"{datetime.now() - timedelta(days=1):%Y%m%d}"
        with suppress(OSError):
            record = found_record(output)
            if study.day < yesterday and set(output.iterdir()) <= {record}:
                shutil.rmtree(output)
                if record:
                    shutil.rmtree(record, ignore_errors=True)


def _removal_time(record: StudyRecord, route: Route) -> float:
    """Return when a study may be removed, in seconds since 1970; never while it is in progress."""
    states = {one.state for one in record.series}
    if record.held or states & {"queued", "sending"}:
        return float("inf")
    last = max([record.looked, *(max(one.done, one.sent) for one in record.series)])
    return last + (route.keep if states <= {"sent"} else route.keep_failed)


def check_routes(
    routes: Mapping[str, Route], certificates: Certificates | None
) -> dict[str, ModelCard]:
    """Return the card of each route's model, by AE title.

    Raises ConfigError, ModelFileError, PatchShapeError or SettingsError for a bad route.
    """
    cards = dict[str, ModelCard]()
    for title, route in routes.items():
        peers = (route.destination, route.source.peer if route.source else None)
        if any(isinstance(peer, WebPeer) for peer in peers):
            check_installed("requests", "DICOMweb needs", "dicomweb")
        if route.uses_tls and certificates is None:
            raise ConfigError(
                f"The route {route.title} sends over TLS, which needs setting tls-certificate, "
                "setting tls-key and setting tls-trusted."
            )
        model = load_model(route.request.model)
        try:
            options = fitted(model, route.request.options)
        except SettingsError as error:
            raise SettingsError(f"[route.{title}] {error}", *error.settings) from None
        model.network.graph.check_patch(options.patch or model.card.patch)
        load_reverse_model(model, options)
        cards[title] = model.card
    return cards


def check_destinations(
    routes: Mapping[str, Route], certificates: Certificates | None
) -> Iterator[tuple[str, list[str], str | None]]:
    """Yield each destination, the titles of its routes, and its error or None."""
    for destination in dict.fromkeys(map(Destination.of, routes.values())):
        titles = [title for title, route in routes.items() if Destination.of(route) == destination]
        yield str(destination.peer), titles, _trouble(destination.connected(certificates))


def check_sources(
    routes: Mapping[str, Route], certificates: Certificates | None
) -> Iterator[tuple[str, str, str | None]]:
    """Yield the source of each route that has one, the route's title, and its error or None."""
    for title, route in routes.items():
        if source := route.source:
            yield str(source.peer), title, _trouble(connected(source, title, certificates))


def _trouble(
    connection: AbstractContextManager[Transmission | WebLink | Query],
) -> str | None:
    """Return why a peer does not answer."""
    try:
        with connection as link:
            link.echo()
    except NetworkError as error:
        return str(error)
    return None
