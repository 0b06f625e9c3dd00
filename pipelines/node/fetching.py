"""Studies fetched from a source by polling, and then handled like received ones.

A study is fetched once its list of objects is the same in two polls, and again once that differs.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Protocol

from ...io.dicom_network.access_tokens import AccessTokens
from ...io.dicom_network.errors import NetworkError, RefusedError
from ...io.dicom_network.objects import ListedObject
from ...io.dicom_network.querying import Query, querying
from ...io.dicom_network.tls import Certificates
from ...io.dicom_network.web import WebLink, WebPeer, web_link
from ..retries import Backoff, Once
from .context import NodeContext
from .delivery import LONGEST_PAUSE
from .dimse_source import DimseSource
from .events import Trouble
from .inbox import Inbox
from .periodic_thread import PeriodicThread
from .reception import Reception, RouteSession
from .records import StudyName
from .routes import Source
from .web_source import WebSource


class SourceLink(Protocol):
    """Connection to a source; its methods raise NetworkError, or RefusedError for one study."""

    def studies(self, filters: Mapping[str, str]) -> list[str]:
        """Return the UIDs of the studies that match."""
        ...

    def objects(self, study: str) -> list[ListedObject]:
        """Return the objects of a study that are to be fetched."""
        ...

    def parts(self, lacking: Iterable[ListedObject]) -> Iterator[Sequence[ListedObject]]:
        """Divide objects of a study into those that one request fetches."""
        ...

    def fetch(self, session: RouteSession, part: Sequence[ListedObject]) -> bool:
        """Fetch a part; return whether there was space for it. Raises OSError too."""
        ...


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
        self._pauses: dict[str, Backoff] = {}
        self._unfinished: set[str] = set()
        self._next = 0.0
        self._backoff = self._new_backoff()
        self._trouble = Once()
        self.thread = PeriodicThread(f"source of {route}", self._poll, node.emit)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._source.poll, max(self._source.poll, LONGEST_PAUSE))

    def _poll(self) -> bool:
        now = self._node.clock()
        if not self._backoff.is_over or self._next - self._source.poll <= now < self._next:
            return False
        self._next = now + self._source.poll
        try:
            with self._connected() as link:
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

    @contextmanager
    def _connected(self) -> Generator[SourceLink]:
        """Connect to the source for the block. Raises NetworkError."""
        node = self._node
        with connected(self._source, self._route, node.certificates, node.tokens) as link:
            if isinstance(link, WebLink):
                yield WebSource(link)
            else:
                link.check()
                yield DimseSource(link, self._inbox, self._route, lambda: self.thread.is_open)

    def _fetch_new(self, link: SourceLink, moment: datetime) -> None:
        """Fetch what is new; what earlier polls broke off at comes last, and delays nothing."""
        names = {
            str(self._inbox.study(self._route, study)): study
            for study in link.studies(self._source.filters_at(moment))
        }
        self._forget_all_but(names)
        for name in sorted(names, key=lambda name: self._broken[name, ""]):
            if not self.thread.is_open:
                return
            pause = self._pauses.setdefault(name, self._new_backoff())
            if not pause.is_over:
                continue
            try:
                with self._counted(name, ""):
                    self._fetch_study(link, name, names[name])
            except RefusedError as error:  # of this study alone
                if self._trouble.is_new(str(error), name):
                    peer = self._source.peer
                    self._node.emit(Trouble(f"{name}: not fetched as a whole from {peer}: {error}"))
                pause.lengthen()
            else:
                self._trouble.passed(name)
                pause.reset()

    def _forget_all_but(self, names: Collection[str]) -> None:
        """Forget the studies that are no longer listed."""
        self._listed = {name: self._listed[name] for name in self._listed.keys() & names}
        self._pauses = {name: self._pauses[name] for name in self._pauses.keys() & names}
        for name, instance in list(self._broken):
            if name not in names:
                del self._broken[name, instance]
        self._expect(self._unfinished & set(names))

    def _expect(self, unfinished: set[str]) -> None:
        """Have the source's associations admitted for these studies alone."""
        self._unfinished = unfinished
        self._reception.requested[self._route] = frozenset(map(StudyName.parse, unfinished))

    @contextmanager
    def _counted(self, name: str, instance: str) -> Generator[None]:
        """Count how often the block for an object of a study broke off since it last did not."""
        try:
            yield
        except NetworkError:
            self._broken[name, instance] += 1
            raise
        del self._broken[name, instance]

    def _fetch_study(self, link: SourceLink, name: str, study: str) -> None:
        store, objects = self._node.store, link.objects(study)
        digest = _digest(objects)
        is_complete = self._listed.get(name) == digest
        self._listed[name] = digest
        if is_complete and store.fetched(name) != digest:
            self._expect({*self._unfinished, name})
            if self._fetch(link, name, study, objects):
                store.put_fetched(name, digest, self._node.clock())
                self._expect(self._unfinished - {name})

    def _fetch(
        self, link: SourceLink, name: str, study: str, objects: Collection[ListedObject]
    ) -> bool:
        """Fetch the objects of a study that the inbox lacks; return whether it has all now.

        Raises RefusedError if the source did not send some, after the others.
        """
        held = self._inbox.holding(self._route, {one.instance for one in objects})
        lacking = [one for one in objects if one.instance not in held]
        session = self._reception.fetching(self._route, str(self._source.peer))
        broken = "it was not fetched completely"
        refusal: RefusedError | None = None
        try:
            session.expect(study, [one.instance for one in lacking])
            parts = link.parts(lacking)
            for part in sorted(parts, key=lambda part: self._broken[name, part[0].instance]):
                if not self.thread.is_open:
                    return False
                try:
                    with self._counted(name, part[0].instance):
                        if not link.fetch(session, part):
                            return False
                except RefusedError as error:  # of this part alone
                    refusal = refusal or error
            if refusal:
                raise refusal
            broken = ""
            return True
        finally:
            session.end(broken)


def connected(
    source: Source,
    route: str,
    certificates: Certificates | None,
    tokens: AccessTokens | None = None,
) -> AbstractContextManager[WebLink | Query]:
    """Connect to a source for a block. route: AE title of its route. tokens: those in use.

    Raises NetworkError.
    """
    if isinstance(source.peer, WebPeer):
        return web_link(source.peer, certificates, source.limits, tokens)
    tls = certificates.client_context() if certificates and source.uses_tls else None
    return querying(source.peer, route, tls, source.limits.listed)


def _digest(objects: Collection[ListedObject]) -> str:
    names = sorted(one.instance for one in objects)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
