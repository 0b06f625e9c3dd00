"""The node at work: associations come in threads of their own, all else is a step done in turn."""

import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...engine.errors import EngineError
from ...io.dicom_network.limits import DEFAULT_LIMITS, Limits
from ...io.dicom_network.listener import Listener
from ...io.dicom_network.tls import Certificates
from ...io.errors import ScanError
from ..errors import ConfigError, PipelineError, QueueLostError
from ..jobs.queue.location import QueuePlace
from ..jobs.queue.queue import Queue, open_queue
from .delivery import Deliverer, Destination, Result, results_to_send, resume_sending
from .emptying import Emptier
from .events import NodeEvent, Trouble
from .folder import make_folder, sole_owner
from .inbox import Inbox, StudyName
from .ledger import Ledger, open_ledger
from .outcomes import note_outcomes
from .reception import Arriving, Reception
from .routes import Route
from .submission import Submitter

LOOK_SECONDS, SELDOM_SECONDS = 1.0, 10.0
"""Between two looks into the queue: while jobs of the node are in it, and while there are only
failed ones, which somebody may have queued again."""
_TROUBLES = (PipelineError, ScanError, EngineError, OSError)
_AGAIN_SECONDS = 5.0
"""After what went wrong, the same is tried again."""


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
        self._settings, self._routes, self._tell, self._clock = settings, routes, tell, clock
        self._queue_stack = ExitStack()
        self._queue: Queue | None = None
        self._deliverers: dict[Destination, Deliverer] = {}
        self._troubles: dict[str, tuple[str, float]] = {}
        self._results = settings.folder / "results"
        self._looked = 0.0
        self._lock = threading.Lock()
        self._sent = {
            one.job: (one.begun, one.sent)
            for record in ledger.present()
            for one in record.series
            if one.sent
        }
        known = [StudyName.parse(record.study) for record in ledger.studies()]
        inbox = Inbox(settings.folder, settings.most, settings.reserve, known)
        self._arriving = Arriving(_unseen(inbox), clock)
        self._reception = Reception(routes, inbox, self._arriving, tell)
        self._submitter = Submitter(inbox, ledger, self._results, tell, clock)
        self._emptier = Emptier(inbox, ledger, self._arriving, self._results, tell, clock)
        self._emptier.finish()
        self.listener = self._opened_listener()

    def close(self) -> None:
        """Stop sending, and leave the queue."""
        for deliverer in self._deliverers.values():
            deliverer.stop()
        for deliverer in self._deliverers.values():
            deliverer.join(10.0)
        self._queue_stack.close()

    @property
    def port(self) -> int:
        """At which it listens."""
        return self.listener.port

    def use(self, routes: Mapping[str, Route]) -> None:
        """Go on with other routes, and with certificates as they are now. Raises OSError."""
        self.listener.use_tls(self._server_context())
        self._routes = self._reception.routes = routes
        self._troubles.clear()  # some may have been of routes that are no more

    def step(self) -> None:
        """Each thing that is due, once; what goes wrong is told, and tried again."""
        self._submit()
        self._carefully("outcomes", self._note_outcomes)
        self._carefully("given up", self._resume_sending)
        self._send()
        self._carefully("sent", self._note_sent)
        self._carefully("emptying", lambda: self._emptier.step(self._routes))

    def _submit(self) -> None:
        complete = self._arriving.complete(self._quiet)
        by_route: dict[str, dict[StudyName, float]] = defaultdict(dict)
        for study, since in complete.items():
            by_route[study.route][study] = since
        for title, studies in by_route.items():
            self._carefully(f"route {title}", partial(self._queue_up, title, studies))

    def _queue_up(self, title: str, studies: Mapping[StudyName, float]) -> None:
        self._submitter.submit(self._routes[title], studies, self._opened_queue())
        self._arriving.looked_at(studies)

    def _quiet(self, study: StudyName) -> float | None:
        route = self._routes.get(study.route)
        return route.quiet if route else None

    def _note_outcomes(self) -> None:
        states = {one.state for record in self.ledger.present() for one in record.series}
        pause = LOOK_SECONDS if "queued" in states else SELDOM_SECONDS
        is_early = 0 <= self._clock() - self._looked < pause  # below 0 it was set back
        if states & {"queued", "failed"} and not is_early:
            note_outcomes(self.ledger, self._opened_queue(), self._tell, self._clock)
            self._looked = self._clock()

    def _resume_sending(self) -> None:
        resume_sending(self.ledger, self._routes, self._clock(), self._tell)

    def _send(self) -> None:
        for destination in results_to_send(self.ledger.present(), self._routes, self._results):
            if destination not in self._deliverers:
                self._deliverers[destination] = self._deliverer(destination)
                self._deliverers[destination].start()
            self._deliverers[destination].wake()

    def _deliverer(self, destination: Destination) -> Deliverer:
        def due() -> list[Result]:
            found = results_to_send(self.ledger.present(), self._routes, self._results)
            return found.get(destination, [])

        def secured() -> ssl.SSLContext | None:
            certificates = self._settings.certificates if destination.uses_tls else None
            return certificates.client_context() if certificates else None

        return Deliverer(
            destination, due, self.ledger, self._tell, secured, self._note_later, self._clock
        )

    def _note_later(self, job: str, moments: tuple[float, float]) -> None:
        with self._lock:
            self._sent[job] = moments

    def _note_sent(self) -> None:
        """Tell the queue what was sent; after a restart all of it again, for some may be new."""
        for job, moments in list(self._sent.items()):
            self._opened_queue().note_sent(job, moments)
            with self._lock:
                del self._sent[job]

    def _carefully(self, what: str, do: Callable[[], None]) -> None:
        """Do something; if it cannot be done now, say so once, and wait a little.

        What keeps several things from being done is said once for all of them.
        """
        if time.monotonic() < self._troubles.get(what, ("", 0.0))[1]:
            return
        try:
            do()
        except _TROUBLES as error:
            self._queue_stack.close()
            self._queue = None
            reason = _kind_of(error)
            if all(reason != known for known, _ in self._troubles.values()):
                self._tell(Trouble(str(error)))
            self._troubles[what] = reason, time.monotonic() + _AGAIN_SECONDS
        else:
            self._troubles.pop(what, None)

    def _opened_queue(self) -> Queue:
        if self._queue is None:
            opening = open_queue(self._settings.queue, create=True)
            self._queue = self._queue_stack.enter_context(opening)
        return self._queue

    def _opened_listener(self) -> Listener:
        settings = self._settings
        try:
            return Listener(
                settings.address,
                settings.port,
                self._reception,
                settings.limits,
                self._reception.turned_away,
                self._server_context(),
            )
        except OSError as error:
            raise ConfigError(
                f"The node cannot listen at {settings.address}:{settings.port} "
                f"({error.strerror or error}); see setting address and setting port."
            ) from error

    def _server_context(self) -> ssl.SSLContext | None:
        certificates = self._settings.certificates
        return certificates.server_context() if certificates else None


def _unseen(inbox: Inbox) -> dict[StudyName, float]:
    """Studies in the inbox that may hold what was not looked at, by their last change."""
    return {study: inbox.folder(study).stat().st_mtime for study in inbox.studies()}


def _kind_of(trouble: Exception) -> str:
    """What is the same for the same trouble; a server that goes and comes says much."""
    is_lost = isinstance(trouble, QueueLostError)
    return type(trouble).__name__ if is_lost else str(trouble)
