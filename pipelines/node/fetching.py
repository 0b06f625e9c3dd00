"""Studies fetched from a DICOMweb server by polling, and then handled like received ones.

A study is fetched once its list of objects is the same in two polls, and again once that differs.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ...io.dicom_network.commands import Refusal
from ...io.dicom_network.errors import NetworkError, ProtocolError, RefusedError
from ...io.dicom_network.negotiation import IMAGES
from ...io.dicom_network.objects import NotUnderstoodError, ObjectFile, is_whole_image
from ...io.dicom_network.web import ArrivingObject, WebInstance, WebLink, web_link
from ..retries import Backoff, Once
from .context import NodeContext
from .delivery import LONGEST_PAUSE
from .events import Trouble
from .inbox import Inbox
from .periodic_thread import PeriodicThread
from .reception import Reception, RouteSession
from .routes import Source


class Fetcher:
    """Fetcher of one route's studies, in a thread of its own.

    route: its AE title. thread: in which it polls and fetches.
    """

    def __init__(
        self, node: NodeContext, inbox: Inbox, reception: Reception, route: str, source: Source
    ) -> None:
        self._node, self._inbox, self._reception = node, inbox, reception
        self._route, self._source = route, source
        self._listed: dict[str, str] = {}
        self._broken = Counter[tuple[str, str]]()
        self._next = 0.0
        self._backoff = Backoff(source.poll, max(source.poll, LONGEST_PAUSE))
        self._trouble = Once()
        self.thread = PeriodicThread(f"source of {route}", self._poll, node.emit)

    def _poll(self) -> bool:
        now = self._node.clock()
        if not self._backoff.is_over or self._next - self._source.poll <= now < self._next:
            return False
        self._next = now + self._source.poll
        try:
            source, node = self._source, self._node
            with web_link(source.peer, node.certificates, source.limits, node.tokens) as link:
                self._fetch_new(link, datetime.fromtimestamp(now))
        except (NetworkError, OSError) as error:
            reason = str(error) if isinstance(error, NetworkError) else f"{error.strerror}"
            if isinstance(error, NetworkError):
                self._node.audit.failed(self._route, self._source.peer, error)
            if self._trouble.is_new(reason):
                self._node.emit(
                    Trouble(f"{self._route}: nothing fetched from {self._source.peer}: {reason}")
                )
            self._backoff.lengthen()
        else:
            self._trouble.passed()
            self._backoff.reset()
        return False

    def _fetch_new(self, link: WebLink, moment: datetime) -> None:
        """Fetch what is new; what earlier polls broke off at comes last, and delays nothing."""
        names = {
            str(self._inbox.study(self._route, study)): study
            for study in link.studies(self._source.filters_at(moment))
        }
        self._listed = {name: self._listed[name] for name in self._listed.keys() & names}
        for name, instance in list(self._broken):
            if name not in names:
                del self._broken[name, instance]
        for name in sorted(names, key=lambda name: self._broken[name, ""]):
            if not self.thread.is_open:
                return
            with self._counted(name, ""):
                self._fetch_study(link, name, names[name])

    @contextmanager
    def _counted(self, name: str, instance: str) -> Generator[None]:
        """Count how often the block for an object of a study broke off since it last did not."""
        try:
            yield
        except NetworkError:
            self._broken[name, instance] += 1
            raise
        del self._broken[name, instance]

    def _fetch_study(self, link: WebLink, name: str, study: str) -> None:
        store, objects = self._node.store, link.instances(study)
        digest = _digest(objects)
        is_complete = self._listed.get(name) == digest
        self._listed[name] = digest
        if is_complete and store.fetched(name) != digest and self._fetch(link, name, objects):
            store.put_fetched(name, digest, self._node.clock())

    def _fetch(self, link: WebLink, name: str, objects: Collection[WebInstance]) -> bool:
        """Fetch the objects of a study that the inbox lacks; return whether it has all now."""
        held = self._inbox.holding(self._route, {one.instance for one in objects})
        session = self._reception.fetching(self._route, str(self._source.peer))
        broken = "it was not fetched completely"
        try:
            for one in sorted(objects, key=lambda one: self._broken[name, one.instance]):
                if one.instance in held:
                    continue
                if not self.thread.is_open:
                    return False
                with self._counted(name, one.instance):
                    if not _take(session, link, one):
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
    try:
        with link.fetching(asked) as arriving:
            _store(session, part, asked, arriving)
    except NotUnderstoodError as error:
        session.refused(asked.instance, asked.study, error.refusal.reason)
    except (RefusedError, ProtocolError) as error:
        session.refused(asked.instance, asked.study, str(error))
    return True


def _store(session: RouteSession, part: Path, asked: WebInstance, arriving: ArrivingObject) -> None:
    """Store an object. Raises NotUnderstoodError, NetworkError or OSError."""
    file = ObjectFile(part, arriving.offer, session.claim)
    try:
        for piece in arriving.pieces:
            file.write(memoryview(piece))
        received = file.finish()
        if received.study != asked.study:
            raise RefusedError("its StudyInstanceUID differs from that of the request")
        if arriving.offer.sop_class in IMAGES and not is_whole_image(part):
            raise RefusedError("its pixels are not complete")
        session.take(received)
    finally:
        file.discard()


def _digest(objects: Collection[WebInstance]) -> str:
    names = sorted(one.instance for one in objects)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
