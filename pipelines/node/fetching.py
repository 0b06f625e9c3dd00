"""Studies fetched from a DICOMweb server by polling, and then handled like received ones.

A study is fetched once its list of objects is the same in two polls, and again once that differs.
"""

import hashlib
from collections.abc import Callable, Collection
from datetime import datetime

from ...io.dicom_network.commands import Refusal
from ...io.dicom_network.errors import NetworkError
from ...io.dicom_network.objects import NotUnderstoodError, ObjectFile
from ...io.dicom_network.tls import Certificates
from ...io.dicom_network.web import WebInstance, WebLink, web_link
from ..retries import Backoff
from .delivery import LONGEST_PAUSE, PeriodicThread
from .events import NodeEvent, Trouble
from .inbox import Inbox
from .reception import Reception, RouteSession
from .routes import Source
from .store import NodeStore


class Fetcher:
    """Fetcher of one route's studies, in a thread of its own.

    route: its AE title. certificates: for HTTPS, or None. clock: seconds since 1970. thread: in
    which it polls and fetches.
    """

    def __init__(
        self,
        route: str,
        source: Source,
        inbox: Inbox,
        reception: Reception,
        store: NodeStore,
        certificates: Certificates | None,
        emit: Callable[[NodeEvent], None],
        clock: Callable[[], float],
    ) -> None:
        self._route, self._source, self._certificates = route, source, certificates
        self._inbox, self._reception, self._store = inbox, reception, store
        self._emit, self._clock = emit, clock
        self._listed: dict[str, str] = {}
        self._next = 0.0
        self._backoff = Backoff(source.poll, max(source.poll, LONGEST_PAUSE))
        self._trouble = ""
        self.thread = PeriodicThread(f"source of {route}", self._poll, emit)

    def _poll(self) -> bool:
        now = self._clock()
        if not self._backoff.is_over or self._next - self._source.poll <= now < self._next:
            return False
        self._next = now + self._source.poll
        try:
            with web_link(self._source.peer, self._certificates) as link:
                self._fetch_new(link, datetime.fromtimestamp(now))
        except (NetworkError, OSError) as error:
            reason = str(error) if isinstance(error, NetworkError) else f"{error.strerror}"
            if reason != self._trouble:
                self._emit(
                    Trouble(f"{self._route}: nothing fetched from {self._source.peer}: {reason}")
                )
            self._trouble = reason
            self._backoff.lengthen()
        else:
            self._trouble = ""
            self._backoff.reset()
        return False

    def _fetch_new(self, link: WebLink, moment: datetime) -> None:
        listed: dict[str, str] = {}
        for study in link.studies(self._source.filters_at(moment)):
            if not self.thread.is_open:
                return
            name = str(self._inbox.study(self._route, study))
            objects = link.instances(study)
            listed[name] = digest = _digest(objects)
            is_complete = self._listed.get(name) == digest
            if is_complete and self._store.fetched(name) != digest and self._fetch(link, objects):
                self._store.put_fetched(name, digest, self._clock())
        self._listed = listed

    def _fetch(self, link: WebLink, objects: Collection[WebInstance]) -> bool:
        """Fetch the objects of a study that the inbox lacks; return whether it has all now."""
        held = self._inbox.holding(self._route, {one.instance for one in objects})
        session = self._reception.fetching(self._route, str(self._source.peer))
        broken = "it was not fetched completely"
        try:
            for one in objects:
                if one.instance in held:
                    continue
                if not self.thread.is_open or not _take(session, link, one):
                    return False
            broken = ""
            return True
        finally:
            session.end(broken)


def _take(session: RouteSession, link: WebLink, asked: WebInstance) -> bool:
    """Fetch one object; return whether there was space for it. Raises NetworkError or OSError."""
    part = session.place()
    if isinstance(part, Refusal):
        session.refused(asked.instance, asked.study, part.reason)
        return False
    offer, data = link.fetch(asked)
    file = ObjectFile(part, offer, session.claim)
    try:
        file.write(memoryview(data))
        session.take(file.finish())
    except NotUnderstoodError as error:
        session.refused(asked.instance, asked.study, error.refusal.reason)
    finally:
        file.discard()
    return True


def _digest(objects: Collection[WebInstance]) -> str:
    names = sorted(one.instance for one in objects)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
